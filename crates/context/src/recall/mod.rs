//! Finds events that are no longer shown: an index on disk over single events, and the results of the agent's tools
//! `history_search` and `history_read`.
//!
//! The index is a cache of the log: delete its directory and it is rebuilt. It holds no text, only words and where
//! they occur. Texts come from the log through [`History`].

mod history;
mod index;
mod memory;
mod merge;
mod rank;
mod segment;
mod varint;
mod vectors;
mod words;

pub use history::{History, Lines, Part, READ_LIMITS, answer, history_read};
pub use index::{COMMIT_EVENTS, COMMIT_MS, Hit, Index, Query};
pub use rank::{RECIPROCAL_K, fuse};
pub use words::{each_word, text_of};
