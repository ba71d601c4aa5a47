//! The settings of the server. The binary reads them from the configuration and validates them.

mod certificate;
mod oidc;

use std::net::IpAddr;
use std::time::Duration;

use crate::access_log::AccessLog;

pub use self::certificate::Certificate;
pub use self::oidc::{ClientSecret, OidcSettings};

/// The settings of the server.
#[derive(Debug, Clone, PartialEq)]
pub struct ServerSettings {
    /// The size limit of a JSON or text body.
    pub max_json_bytes: usize,
    /// How many bodies larger than 64 KiB are held in memory at the same time. Further ones wait.
    pub max_large_bodies: usize,
    /// The size limit of a request head: request line and headers.
    pub max_header_bytes: usize,
    /// The time limit of the TLS handshake.
    pub handshake_timeout: Duration,
    /// The time limit for receiving a request head. It also closes idle connections.
    pub header_timeout: Duration,
    /// The time limit for receiving a JSON or text body.
    pub request_timeout: Duration,
    /// The longest pause within an upload, and the longest time that a client may not read its response.
    pub idle_timeout: Duration,
    /// The interval at which idle event streams send a heartbeat, so that both ends notice a lost connection.
    pub heartbeat: Duration,
    /// The maximum number of connections. For a further one the server closes an idle connection; if none is idle,
    /// the new one waits to be accepted.
    pub max_connections: usize,
    /// The maximum number of connections per address. Loopback and trusted proxies are exempt.
    pub max_connections_per_address: usize,
    /// How many of `max_connections` are reserved for callers with a key and for health checks.
    pub reserved_connections: usize,
    /// How long running requests may continue after a shutdown begins.
    pub shutdown_grace: Duration,
    /// Host names (without port) that are accepted besides `localhost` and loopback addresses. `*` accepts any.
    pub allowed_hosts: Vec<String>,
    /// The public URL of the server, if it differs from what clients send in `Host`: `https://caisson.example`.
    pub public_url: Option<String>,
    /// The domain below which jobs have their origins for clients that do not use loopback names: `jobs.example`.
    pub job_domain: Option<String>,
    /// Proxies whose `X-Forwarded-For` and `X-Forwarded-Proto` headers are trusted.
    pub trusted_proxies: Vec<IpAddr>,
    /// Enables TLS on every listener of the API, and on fixed ports beyond loopback.
    pub certificate: Option<Certificate>,
    /// Login with OpenID Connect.
    pub oidc: Option<OidcSettings>,
    pub access_log: AccessLog,
}

impl Default for ServerSettings {
    fn default() -> Self {
        Self {
            max_json_bytes: 10 * 1024 * 1024,
            max_large_bodies: 16,
            max_header_bytes: 32 * 1024,
            handshake_timeout: Duration::from_secs(10),
            header_timeout: Duration::from_secs(15),
            request_timeout: Duration::from_secs(30),
            idle_timeout: Duration::from_secs(60),
            heartbeat: Duration::from_secs(15),
            max_connections: 1024,
            max_connections_per_address: 256,
            reserved_connections: 64,
            shutdown_grace: Duration::from_secs(5),
            allowed_hosts: Vec::new(),
            public_url: None,
            job_domain: None,
            trusted_proxies: Vec::new(),
            certificate: None,
            oidc: None,
            access_log: AccessLog::default(),
        }
    }
}
