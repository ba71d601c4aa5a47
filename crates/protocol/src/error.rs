//! What can go wrong on the link.

use crate::file::FileError;

/// A failure of the link or of a request on it.
#[derive(Debug, thiserror::Error)]
pub enum ProtocolError {
    /// The byte stream below failed.
    #[error("reading from or writing to the link")]
    Io(#[from] std::io::Error),
    /// The multiplexer gave up: the other side is gone or broke the rules.
    #[error("the link is closed")]
    Closed,
    /// A message was not what was expected here.
    #[error("the other side sent {0}")]
    Unexpected(String),
    /// A frame or message was longer than allowed.
    #[error("the other side sent a {what} of {size} bytes, at most {limit} are allowed")]
    TooLarge {
        /// Frame or message.
        what: &'static str,
        /// Its announced size.
        size: usize,
        /// The most that is allowed.
        limit: usize,
    },
    /// A message was not valid JSON for its type.
    #[error("decoding a message")]
    Decode(#[source] serde_json::Error),
    /// A message could not be encoded.
    #[error("encoding a message")]
    Encode(#[source] serde_json::Error),
    /// The two sides share no version.
    #[error(
        "the guest speaks link versions {guest_oldest} to {guest_newest}, this server {host_oldest} to {host_newest}"
    )]
    Version {
        /// Newest version of the guest.
        guest_newest: u16,
        /// Oldest version of the guest.
        guest_oldest: u16,
        /// Newest version of the host.
        host_newest: u16,
        /// Oldest version of the host.
        host_oldest: u16,
    },
    /// A file request was refused.
    #[error(transparent)]
    File(#[from] FileError),
    /// An action on the desktop failed.
    #[error(transparent)]
    Gui(#[from] crate::desktop::GuiError),
    /// The guest refused the request.
    #[error("the guest refused: {0}")]
    Refused(String),
}

impl ProtocolError {
    /// Whether the same request may succeed on a new link.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        matches!(self, Self::Io(_) | Self::Closed)
    }
}
