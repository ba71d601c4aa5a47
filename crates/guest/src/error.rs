//! Errors while the guest starts or serves. File operations fail with [`protocol::FileError`].

use protocol::ProtocolError;

#[derive(Debug, thiserror::Error)]
pub(crate) enum GuestError {
    /// Invalid command line.
    #[error("{0}")]
    Usage(String),
    /// A system call failed.
    #[error("{doing}")]
    Io {
        /// The operation and its target.
        doing: String,
        #[source]
        source: std::io::Error,
    },
    #[error("serving the link")]
    Link(#[from] ProtocolError),
}

impl GuestError {
    /// Wraps an I/O error with a description of the operation.
    pub(crate) fn io<E: Into<std::io::Error>>(doing: impl Into<String>) -> impl FnOnce(E) -> Self {
        let doing = doing.into();
        move |source| Self::Io { doing, source: source.into() }
    }
}
