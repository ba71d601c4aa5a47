//! Keeps the output of one call: its beginning and its end on disk, or in memory where it is short; counts of everything.
//!
//! Chunks are stored as records (stream, length, bytes) in segments of fixed size. The head is a file of segments that
//! are written once; the tail is a file whose segments are used in turn, so that neither file grows. What can no longer
//! be stored or was overwritten is a gap. The index in memory is one entry a segment, whatever a process prints.

mod cursor;
mod early;
mod store;
#[cfg(test)]
mod tests;

pub(crate) use cursor::{Cursor, Next, Reach};
pub(crate) use early::Allowance;
pub(crate) use store::{FULL_SHAPE, OutputStore};
