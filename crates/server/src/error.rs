//! What can go wrong with serving as a whole. What goes wrong with one request is a [`crate::Problem`].

/// Serving could not go on.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// There is nothing to listen on.
    #[error("no address to listen on was given")]
    NoListener,
    /// A task of the server ended by a panic.
    #[error("accepting connections ended unexpectedly")]
    AcceptStopped(#[source] tokio::task::JoinError),
    /// Who did what cannot be written down.
    #[error("opening access.jsonl in the data folder")]
    AccessLog(#[source] std::io::Error),
    /// TLS cannot be spoken.
    #[error("{what}")]
    Certificate {
        /// What was being done.
        what: String,
        /// Why it failed.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

impl ServerError {
    /// Whether the same call may succeed later without anyone changing anything.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::NoListener | Self::AcceptStopped(_) | Self::AccessLog(_) | Self::Certificate { .. } => {
                false
            }
        }
    }
}
