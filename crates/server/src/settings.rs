//! The bounds of the server. Values arrive checked; the binary reads them from the configuration.

use std::net::IpAddr;
use std::time::Duration;

use crate::access::{AccessLog, OidcSettings};
use crate::tls::Certificate;

/// How the server answers, and what it puts up with.
#[derive(Debug, Clone, PartialEq)]
pub struct ServerSettings {
    /// The largest JSON or text body.
    pub max_json_bytes: usize,
    /// How many bodies of more than 64 KiB are held in memory at the same time; others wait.
    pub max_large_bodies: usize,
    /// The largest head of a request: request line and headers.
    pub max_header_bytes: usize,
    /// The TLS handshake must be complete after this time.
    pub handshake_timeout: Duration,
    /// The head of a request must have arrived after this time; also ends idle connections.
    pub header_timeout: Duration,
    /// A JSON or text body must have arrived after this time.
    pub request_timeout: Duration,
    /// The longest silence within an upload, and the longest time in which a client takes nothing of its answer.
    pub idle_timeout: Duration,
    /// Quiet event streams say something after this time, so that both ends notice a lost connection.
    pub heartbeat: Duration,
    /// Connections at once. For one more the server closes an idle one; where none is idle, it waits to be accepted.
    pub max_connections: usize,
    /// Connections of one address at once, loopback and trusted proxies excepted.
    pub max_connections_per_address: usize,
    /// How many of `max_connections` are reserved for callers with a key and for health checks.
    pub reserved_connections: usize,
    /// How long requests may go on when the server shuts down.
    pub shutdown_grace: Duration,
    /// Names (without port) by which the server may be called besides `localhost` and loopback addresses; `*` for any.
    pub allowed_hosts: Vec<String>,
    /// Where callers reach the server, when that is not what they write in `Host`: `https://caisson.example`.
    pub public_url: Option<String>,
    /// The name below which jobs have their origins for who does not come by the names of loopback: `jobs.example`.
    pub job_domain: Option<String>,
    /// Proxies whose word on where a request comes from, and how, is believed (`X-Forwarded-For`, `X-Forwarded-Proto`).
    pub trusted_proxies: Vec<IpAddr>,
    /// With it, TLS is spoken on every listener of the API.
    pub certificate: Option<Certificate>,
    /// How people log in with accounts elsewhere.
    pub oidc: Option<OidcSettings>,
    /// Where it is kept who did what.
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
