//! Errors of the context engine and its recall index.

use std::path::PathBuf;

use crate::event_id::{EventId, ParseEventIdError};

#[derive(Debug, thiserror::Error)]
pub enum ContextError {
    /// The caller appended an entry out of order.
    #[error("append {id} to the context: the newest entry is {newest} already, and numbers only grow")]
    OutOfOrder { id: EventId, newest: EventId },
    /// The window is too small to work with.
    #[error("a budget of {tokens} tokens is too small: at least {least} are needed")]
    BudgetTooSmall { tokens: u32, least: u32 },
    /// System prompt and tools leave no room for the history.
    #[error(
        "system prompt ({system} tokens) and tools ({tools} tokens) may take {allowed} tokens of this budget: \
         offer fewer tools or a shorter prompt"
    )]
    FixedTooLarge { system: u32, tools: u32, allowed: u32 },
    /// The log was written by a newer program.
    #[error(
        "the log was written by version {version} of the rules for prompts, this program knows {known} at most: use a newer one"
    )]
    PolicyVersion { version: u32, known: u32 },
    #[error(transparent)]
    EventName(#[from] ParseEventIdError),
    #[error("there is no event {id} in this history")]
    NoSuchEvent { id: EventId },
    #[error("encode entry {id}")]
    Encode {
        id: EventId,
        #[source]
        source: serde_json::Error,
    },
    #[error("decode an entry of the log")]
    Decode {
        #[source]
        source: serde_json::Error,
    },
    /// An index file cannot be accessed.
    #[error("{action} {}", path.display())]
    File {
        action: &'static str,
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    /// An index file has unexpected content.
    #[error("{} is damaged ({what}); delete the folder, it is rebuilt from the log", path.display())]
    Damaged { path: PathBuf, what: &'static str },
}

impl ContextError {
    /// Whether the same call may succeed later.
    pub fn is_retryable(&self) -> bool {
        matches!(self, ContextError::File { .. })
    }
}
