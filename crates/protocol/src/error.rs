//! Errors of the link and of requests on it.

use crate::credentials::LinkRefusal;
use crate::file::FileError;

#[derive(Debug, thiserror::Error)]
pub enum ProtocolError {
    /// The underlying byte stream failed.
    #[error("reading from or writing to the link")]
    Io(#[from] std::io::Error),
    /// The multiplexer has stopped: the other side is gone or violated the protocol.
    #[error("the link is closed")]
    Closed,
    /// The other side sent a message that is not valid at this point.
    #[error("the other side sent {0}")]
    Unexpected(String),
    /// A frame, message or image exceeded its size limit.
    #[error("the other side sent a {what} of {size} bytes, at most {limit} are allowed")]
    TooLarge {
        /// `frame`, `message` or `image`.
        what: &'static str,
        size: usize,
        limit: usize,
    },
    /// A message was not valid JSON for its type.
    #[error("decoding a message")]
    Decode(#[source] serde_json::Error),
    #[error("encoding a message")]
    Encode(#[source] serde_json::Error),
    /// Host and guest have no version in common.
    #[error(
        "the guest speaks link versions {guest_oldest} to {guest_newest}, this server {host_oldest} to {host_newest}"
    )]
    Version { guest_newest: u16, guest_oldest: u16, host_newest: u16, host_oldest: u16 },
    /// The guest refused a file request.
    #[error(transparent)]
    File(#[from] FileError),
    /// An action on the desktop failed.
    #[error(transparent)]
    Gui(#[from] crate::desktop::GuiError),
    #[error("the guest refused: {0}")]
    Refused(String),
    #[error("the guest refused the link")]
    LinkRefused(#[source] LinkRefusal),
}

impl ProtocolError {
    /// Whether the same request may succeed on a new link.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        matches!(self, Self::Io(_) | Self::Closed)
    }
}
