//! Keeps short output in memory. Most calls print little, and creating and deleting a file and its folder takes
//! longer than everything else in such a call.

use std::cell::Cell;
use std::rc::Rc;

/// The most bytes of one call in memory.
const MAX_CALL_BYTES: usize = 4096;
/// The most bytes of all calls in memory together. The host never forgets some calls.
const MAX_TOTAL_BYTES: usize = 256 * 1024;

/// The rest of the memory budget of all calls. Clones share it.
#[derive(Debug, Clone)]
pub(crate) struct MemoryBudget(Rc<Cell<usize>>);

impl MemoryBudget {
    pub(crate) fn full() -> Self {
        Self::of(MAX_TOTAL_BYTES)
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
pub(super) struct MemoryBuffer {
    memory_budget: MemoryBudget,
    bytes: Vec<u8>,
}

impl MemoryBuffer {
    pub(super) fn new(memory_budget: MemoryBudget) -> Self {
        Self { memory_budget, bytes: Vec::new() }
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Adds a record at an offset. Returns false if the record must go to a file.
    pub(super) fn add(&mut self, at: u64, header: &[u8], piece: &[u8]) -> bool {
        let more = header.len() + piece.len();
        let left = self.memory_budget.0.get();
        if at != self.bytes.len() as u64 || self.bytes.len() + more > MAX_CALL_BYTES || more > left {
            return false;
        }
        self.memory_budget.0.set(left - more);
        self.bytes.extend_from_slice(header);
        self.bytes.extend_from_slice(piece);
        true
    }

    /// Frees the memory and returns the bytes to the budget.
    pub(super) fn clear(&mut self) {
        self.memory_budget.0.set(self.memory_budget.0.get() + self.bytes.len());
        self.bytes = Vec::new();
    }
}

impl Drop for MemoryBuffer {
    fn drop(&mut self) {
        self.clear();
    }
}
