//! Errors of MCP servers. Both users and the model read the messages.

use std::time::Duration;

/// An error of an MCP server.
#[derive(Debug, thiserror::Error)]
pub enum McpError {
    /// The server did not complete the initialization.
    #[error("it did not answer the greeting: {0}")]
    Initialization(String),
    #[error("it did not {what} within {} s", .limit.as_secs_f64())]
    Timeout {
        /// What it should have done.
        what: &'static str,
        limit: Duration,
    },
    /// The server returned a protocol error.
    #[error("it answered: {0}")]
    ProtocolError(String),
    /// The connection is closed.
    #[error("its connection is gone: {0}")]
    ConnectionClosed(String),
    /// The server sent an unexpected message.
    #[error("it gave an answer that was not understood: {0}")]
    InvalidResponse(String),
}

impl McpError {
    /// Whether a retry may succeed.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        matches!(self, Self::Timeout { .. } | Self::ConnectionClosed(_) | Self::Initialization(_))
    }
}
