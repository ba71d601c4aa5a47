//! What can go wrong while the guest starts or serves. Failures of file operations are [`protocol::FileError`].

use protocol::ProtocolError;

/// A failure of the guest itself.
#[derive(Debug, thiserror::Error)]
pub(crate) enum GuestError {
    /// The command line makes no sense.
    #[error("{0}")]
    Usage(String),
    /// The operating system refused something.
    #[error("{doing}")]
    Io {
        /// What was being done to what.
        doing: String,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
    /// The link failed.
    #[error("serving the link")]
    Link(#[from] ProtocolError),
}

impl GuestError {
    /// Names what was being done when the operating system refused.
    pub(crate) fn io<E: Into<std::io::Error>>(doing: impl Into<String>) -> impl FnOnce(E) -> Self {
        let doing = doing.into();
        move |source| Self::Io { doing, source: source.into() }
    }
}
