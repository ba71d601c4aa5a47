//! The events of the egress log.

use std::net::IpAddr;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;

use crate::refusal::ReasonCode;

/// An entry of the egress log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "event")]
pub enum EgressEvent {
    /// A connection was allowed and established. Sent before its first byte.
    Opened(Connection),
    /// The connection has ended. Sent exactly once after each [`EgressEvent::Opened`].
    Closed(Connection),
    /// A connection was refused or could not be established. No further event follows.
    Refused(Connection),
    /// A response was read to its end. Only if the proxy can read it: plain HTTP, and hosts whose TLS it terminates.
    Fetched(Fetch),
}

/// A response that passed through the proxy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fetch {
    /// The connection that carried it.
    pub connection: u64,
    /// When it ended, in milliseconds since 1970.
    pub time_ms: u64,
    /// The call that sent the request, if known.
    pub call: Option<String>,
    pub method: String,
    /// The URL without user and query.
    pub url: String,
    pub status: u16,
    /// The size of the body.
    pub bytes: u64,
    /// SHA-256 of the body in hexadecimal; absent if the body is incomplete.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sha256: Option<String>,
    /// The names of the secrets whose values were inserted into the request.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub secrets: Vec<String>,
    /// The rule by which a person allowed this request only; empty if nobody was asked.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub rule: String,
}

impl Connection {
    /// A connection of which only the id is known.
    pub(crate) fn numbered(id: u64) -> Self {
        Self {
            id,
            time_ms: now_ms(),
            call: None,
            method: String::new(),
            host: String::new(),
            port: 0,
            address: None,
            bytes_up: 0,
            bytes_down: 0,
            duration_ms: 0,
            verdict: Verdict::Allowed,
            code: None,
            rule: String::new(),
            reason: String::new(),
            remedy: String::new(),
            without_tls: false,
            repeated: 0,
        }
    }
}

impl EgressEvent {
    /// The connection, for events about a whole connection.
    #[must_use]
    pub fn connection(&self) -> Option<&Connection> {
        match self {
            Self::Opened(connection) | Self::Closed(connection) | Self::Refused(connection) => {
                Some(connection)
            }
            Self::Fetched(_) => None,
        }
    }

    /// The call that it belongs to, if known.
    #[must_use]
    pub fn call(&self) -> Option<&str> {
        match self {
            Self::Fetched(fetch) => fetch.call.as_deref(),
            Self::Opened(connection) | Self::Closed(connection) | Self::Refused(connection) => {
                connection.call.as_deref()
            }
        }
    }
}

/// A connection or, for plain HTTP, a request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Connection {
    /// Increases within one proxy.
    pub id: u64,
    /// When this event happened, in milliseconds since 1970.
    pub time_ms: u64,
    /// The call that made it, if the client sends the proxy's user name.
    pub call: Option<String>,
    /// `CONNECT`, or the method of a plain HTTP request; empty if the request could not be parsed.
    pub method: String,
    /// The requested name or address; empty if the request could not be parsed.
    pub host: String,
    /// The requested port; 0 if the request could not be parsed.
    pub port: u16,
    /// The address of the actual connection.
    pub address: Option<IpAddr>,
    /// Bytes sent to the server so far.
    pub bytes_up: u64,
    /// Bytes received from the server so far.
    pub bytes_down: u64,
    /// Time since the request was read.
    pub duration_ms: u64,
    pub verdict: Verdict,
    /// Machine-readable reason why it was refused, failed or ended early.
    pub code: Option<ReasonCode>,
    /// The deciding rule, as written in the policy.
    pub rule: String,
    /// Human-readable reason.
    pub reason: String,
    /// What would allow it; empty if it was allowed or nothing would.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub remedy: String,
    /// Whether a tunnel carried something other than TLS; known when it ends.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub without_tls: bool,
    /// How many unlogged refusals with the same target and reason this event also stands for.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub repeated: u64,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// The policy allowed it.
    Allowed,
    /// The policy refused it.
    Refused,
    /// The policy allowed it, but it failed.
    Failed,
}

pub(crate) type EventSender = mpsc::Sender<EgressEvent>;

pub(crate) fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
