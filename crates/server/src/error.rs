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
}

impl ServerError {
    /// Whether the same call may succeed later without anyone changing anything.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::NoListener | Self::AcceptStopped(_) => false,
        }
    }
}
