//! What can go wrong with a log, a setting or the recall index.

use std::path::PathBuf;

use crate::entry::EventId;

/// An error of the context engine.
#[derive(Debug, thiserror::Error)]
pub enum ContextError {
    /// The caller appended out of order.
    #[error("append {id} to the context: the newest entry is {newest} already, and numbers only grow")]
    OutOfOrder {
        /// What was appended.
        id: EventId,
        /// What is there.
        newest: EventId,
    },
    /// The window is smaller than anything can work with.
    #[error("a budget of {tokens} tokens is too small: at least {least} are needed")]
    BudgetTooSmall {
        /// What was asked.
        tokens: u32,
        /// What is allowed.
        least: u32,
    },
    /// System prompt and tools leave no room.
    #[error(
        "system prompt ({system} tokens) and tools ({tools} tokens) may take {allowed} tokens of this budget: \
         offer fewer tools or a shorter prompt"
    )]
    FixedTooLarge {
        /// The system prompt.
        system: u32,
        /// All tool specifications.
        tools: u32,
        /// What both may take.
        allowed: u32,
    },
    /// A log from a newer program.
    #[error(
        "the log was written by version {version} of the rules for prompts, this program knows {known} at most: use a newer one"
    )]
    PolicyVersion {
        /// What the log names.
        version: u32,
        /// What is known here.
        known: u32,
    },
    /// Not the name of an event.
    #[error("`{text}` is not an event: write a number such as e123")]
    EventName {
        /// What was written.
        text: String,
    },
    /// No such event in this history.
    #[error("there is no event {id} in this history")]
    NoSuchEvent {
        /// What was asked for.
        id: EventId,
    },
    /// An entry has no stored form.
    #[error("encode entry {id}")]
    Encode {
        /// Which.
        id: EventId,
        /// Why.
        #[source]
        source: serde_json::Error,
    },
    /// A stored entry cannot be read.
    #[error("decode an entry of the log")]
    Decode {
        /// Why.
        #[source]
        source: serde_json::Error,
    },
    /// A file of the index.
    #[error("{action} {}", path.display())]
    File {
        /// What was being done.
        action: &'static str,
        /// To what.
        path: PathBuf,
        /// Why not.
        #[source]
        source: std::io::Error,
    },
    /// A file of the index is not what was written.
    #[error("{} is damaged ({what}); delete the folder, it is rebuilt from the log", path.display())]
    Damaged {
        /// Which.
        path: PathBuf,
        /// What is wrong with it.
        what: &'static str,
    },
}

impl ContextError {
    /// Whether the same call may succeed later.
    pub fn is_retryable(&self) -> bool {
        matches!(self, ContextError::File { .. })
    }
}
