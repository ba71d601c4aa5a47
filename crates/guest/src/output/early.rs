//! Keeps short output in memory. Most calls print little, and creating and deleting a file and its folder takes
//! longer than everything else in such a call.

use std::cell::Cell;
use std::rc::Rc;

/// The most bytes of one call in memory.
const OF_ONE_CALL: usize = 4096;
/// The most bytes of all calls in memory together. The host never forgets some calls.
const OF_ALL_CALLS: usize = 256 * 1024;

/// The rest of the memory budget of all calls. Clones share it.
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

/// The output of one call in memory. Returns its bytes to the budget when dropped.
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

    /// Adds a record at an offset. Returns false if the record must go to a file.
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

    /// Frees the memory and returns the bytes to the budget.
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
