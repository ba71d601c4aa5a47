//! Errors in an egress policy that are found before any connection is made.

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EgressError {
    /// Unknown mode.
    #[error(
        "egress {mode:?} is unknown; allowed are \"off\", \"packages\", \"open\", \"learn\" and {{\"allow\": [...]}}"
    )]
    UnknownMode { mode: String },
    /// An entry of an allow list cannot be parsed.
    #[error(
        "egress entry {entry:?}: {why}; allowed are a name (example.org), its sub-domains (*.example.org), \
         an address or range (192.0.2.0/24, 2001:db8::/32), each with an optional port (example.org:8443, \
         [2001:db8::/32]:8443), and the word packages"
    )]
    Entry { entry: String, why: String },
    /// The job requests more than the operator allows for any job.
    #[error("{mode:?} exceeds the ceiling of this server, {ceiling:?} (`ceiling` in the section [egress])")]
    AboveCeiling {
        /// The mode that the job requests.
        mode: String,
        ceiling: String,
    },
    /// A secret that cannot be used.
    #[error("secret {secret:?}: {why}")]
    Secret {
        /// The secret's name.
        secret: String,
        /// The problem, without the secret's value.
        why: String,
    },
    /// A certificate or key cannot be created or parsed.
    #[error("certificates of the proxy: {0}")]
    Certificate(String),
    /// An address range cannot be parsed.
    #[error(
        "address range {range:?}: {why}; allowed are an address or a range such as 10.0.0.0/8 or fc00::/7"
    )]
    Range { range: String, why: String },
    /// A host cannot be parsed.
    #[error("host {host:?}: {why}")]
    Host {
        /// The input, shortened.
        host: String,
        why: String,
    },
    /// Built-in data cannot be parsed.
    #[error("reading the built-in {file}: {why}")]
    Data { file: &'static str, why: String },
}

impl EgressError {
    /// Always false: only a changed input can succeed.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        false
    }
}
