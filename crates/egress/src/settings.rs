//! The settings of a proxy.

use std::time::Duration;

use crate::usage::{Allowance, Used};

/// Limits of a proxy. All of them apply per proxy, and therefore per sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProxySettings {
    /// Maximum number of concurrent connections; further ones are answered with 503.
    pub connections: usize,
    /// How long a client may take to send a request head, also for subsequent requests.
    pub header_timeout: Duration,
    /// The time limit for resolving a name.
    pub resolve_timeout: Duration,
    /// The time limit for connecting to one address.
    pub connect_timeout: Duration,
    /// After how much time without a byte a connection is ended.
    pub idle_timeout: Duration,
    /// The id of the first connection. A proxy that replaces another continues its numbering.
    pub first_id: u64,
    /// The job's network limits.
    pub allowance: Allowance,
    /// What the job has already used.
    pub used: Used,
    /// How long a connection waits for a person's answer.
    pub approval_timeout: Duration,
}

impl Default for ProxySettings {
    fn default() -> Self {
        Self {
            connections: 512,
            header_timeout: Duration::from_secs(30),
            resolve_timeout: Duration::from_secs(10),
            connect_timeout: Duration::from_secs(10),
            idle_timeout: Duration::from_secs(600),
            first_id: 1,
            allowance: Allowance::default(),
            used: Used::default(),
            approval_timeout: Duration::ZERO,
        }
    }
}
