//! Stores the output of one call: its beginning and its end, on disk or in memory if it is short, and counts of
//! everything.
//!
//! Chunks are stored as records (stream, length, bytes) in segments of fixed size. The head is a file whose segments
//! are written once. The tail is a file whose segments are reused in turn, so that neither file grows without limit.
//! Output that could not be stored or was overwritten becomes a gap. The index in memory has one entry per segment,
//! no matter what a process prints.

mod cursor;
mod in_memory;
mod store;
#[cfg(test)]
mod tests;

pub(crate) use cursor::{Cursor, Next, Position, Reach};
pub(crate) use in_memory::MemoryBudget;
pub(crate) use store::{DEFAULT_LIMITS, OutputStore};
