//! What can be wrong with a policy before any connection is made.

/// A policy that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EgressError {
    /// A mode is not one of the known ones.
    #[error(
        "egress {mode:?} is unknown: allowed are \"off\", \"packages\", \"open\", \"learn\" and {{\"allow\": [...]}}"
    )]
    UnknownMode {
        /// What was written.
        mode: String,
    },
    /// An entry of an allow list cannot be read.
    #[error(
        "egress entry {entry:?}: {why}; allowed are a name (example.org), its sub-domains (*.example.org), \
         an address or range (192.0.2.0/24, 2001:db8::/32), each with an optional port (example.org:8443, \
         [2001:db8::/32]:8443), and the word packages"
    )]
    Entry {
        /// What was written.
        entry: String,
        /// What is wrong with it.
        why: String,
    },
    /// A job asks for more than the operator allows any job.
    #[error(
        "{mode:?} exceeds what any job of this server may have, {ceiling:?} (`ceiling` in the section [egress])"
    )]
    AboveCeiling {
        /// What the job asks for.
        mode: String,
        /// What is allowed.
        ceiling: String,
    },
    /// A secret cannot work.
    #[error("secret {secret:?}: {why}")]
    Secret {
        /// Its name.
        secret: String,
        /// What is wrong with it; never its value.
        why: String,
    },
    /// A certificate or key cannot be made or read.
    #[error("certificates of the proxy: {0}")]
    Certificate(String),
    /// A range of addresses cannot be read.
    #[error(
        "address range {range:?}: {why}; allowed are an address or a range such as 10.0.0.0/8 or fc00::/7"
    )]
    Range {
        /// What was written.
        range: String,
        /// What is wrong with it.
        why: String,
    },
    /// A host cannot be read.
    #[error("host {host:?}: {why}")]
    Host {
        /// What was written, shortened.
        host: String,
        /// What is wrong with it.
        why: String,
    },
    /// The data that travels with the program cannot be read.
    #[error("reading the built-in {file}: {why}")]
    Data {
        /// Which file.
        file: &'static str,
        /// What is wrong with it.
        why: String,
    },
}

impl EgressError {
    /// Whether the same call may succeed later without anyone changing anything: never.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        false
    }
}
