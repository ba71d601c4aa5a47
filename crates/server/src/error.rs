//! Errors that stop the server. A failure of a single request is a [`crate::Problem`].

/// An error that stops the server.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    #[error("no address to listen on was given")]
    NoListener,
    /// The task that accepts connections panicked.
    #[error("accepting connections ended unexpectedly")]
    AcceptStopped(#[source] tokio::task::JoinError),
    #[error("opening access.jsonl in the data folder")]
    AccessLog(#[source] std::io::Error),
    /// TLS cannot be set up.
    #[error("{what}")]
    Certificate {
        /// The operation that failed.
        what: String,
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}
