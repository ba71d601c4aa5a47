//! What can go wrong with an MCP server. Messages are read by people and by the model.

use std::time::Duration;

/// What went wrong with an MCP server.
#[derive(Debug, thiserror::Error)]
pub enum McpError {
    /// It did not greet back.
    #[error("it did not answer the greeting: {0}")]
    Greeting(String),
    /// It took too long.
    #[error("it did not {what} within {} s", .limit.as_secs_f64())]
    Timeout {
        /// What it should have done.
        what: &'static str,
        /// How long it had.
        limit: Duration,
    },
    /// It answered with an error of the protocol.
    #[error("it answered: {0}")]
    Answered(String),
    /// The connection is gone.
    #[error("its connection is gone: {0}")]
    Gone(String),
    /// It said something that has no meaning here.
    #[error("it gave an answer that was not understood: {0}")]
    NotUnderstood(String),
}

impl McpError {
    /// Whether the same may succeed when it is tried again.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        matches!(self, Self::Timeout { .. } | Self::Gone(_) | Self::Greeting(_))
    }
}
