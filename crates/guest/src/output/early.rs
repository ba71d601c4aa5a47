//! The beginning of a call's output, in memory while it is short: most calls print little, and a file with its folder takes longer
//! to make and to delete than all the rest of such a call.

use std::cell::Cell;
use std::rc::Rc;

/// What one call may have in memory.
const OF_ONE_CALL: usize = 4096;
/// What all calls may have together: some are never forgotten.
const OF_ALL_CALLS: usize = 256 * 1024;

/// What is left of what all calls may have. Clones share it.
#[derive(Debug, Clone)]
pub(crate) struct Allowance(Rc<Cell<usize>>);

impl Allowance {
    pub(crate) fn full() -> Self {
        Self::of(OF_ALL_CALLS)
    }

    pub(super) fn of(bytes: usize) -> Self {
        Self(Rc::new(Cell::new(bytes)))
    }

    #[cfg(test)]
    pub(super) fn left(&self) -> usize {
        self.0.get()
    }
}

/// The bytes of one call. What they take of the allowance is given back when they are dropped.
#[derive(Debug)]
pub(super) struct Early {
    allowance: Allowance,
    bytes: Vec<u8>,
}

impl Early {
    pub(super) fn new(allowance: Allowance) -> Self {
        Self { allowance, bytes: Vec::new() }
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Adds a record at a place; false where it has to go elsewhere.
    pub(super) fn add(&mut self, at: u64, header: &[u8], piece: &[u8]) -> bool {
        let more = header.len() + piece.len();
        let left = self.allowance.0.get();
        if at != self.bytes.len() as u64 || self.bytes.len() + more > OF_ONE_CALL || more > left {
            return false;
        }
        self.allowance.0.set(left - more);
        self.bytes.extend_from_slice(header);
        self.bytes.extend_from_slice(piece);
        true
    }

    /// Nothing is in memory any more.
    pub(super) fn clear(&mut self) {
        self.allowance.0.set(self.allowance.0.get() + self.bytes.len());
        self.bytes = Vec::new();
    }
}

impl Drop for Early {
    fn drop(&mut self) {
        self.clear();
    }
}
