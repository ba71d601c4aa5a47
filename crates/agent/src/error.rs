//! Errors that prevent an agent from starting.

use context::ContextError;

#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// The model's window is too small, or the log cannot be read.
    #[error("preparing the prompt")]
    Context(#[from] ContextError),
}

impl AgentError {
    /// Whether the same call may succeed later.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Context(error) => error.is_retryable(),
        }
    }
}
