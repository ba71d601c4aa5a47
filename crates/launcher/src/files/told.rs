//! What was told of already, by keyed hashes: of a path of any length eight bytes are remembered. Who does not know the key, and
//! nobody in a sandbox does, finds no two with the same.

use std::collections::HashSet;
use std::hash::{BuildHasher as _, Hash, RandomState};

/// Things that were told of.
pub(super) struct Told {
    key: RandomState,
    known: HashSet<u64>,
    most: usize,
}

impl Told {
    pub(super) fn new(most: usize) -> Self {
        Self { key: RandomState::new(), known: HashSet::new(), most }
    }

    /// Whether no more can be remembered.
    pub(super) fn is_full(&self) -> bool {
        self.known.len() >= self.most
    }

    /// Remembers nothing any more.
    pub(super) fn forget(&mut self) {
        self.known.clear();
    }

    /// Whether it is new.
    pub(super) fn is_new(&mut self, thing: impl Hash) -> bool {
        self.known.insert(self.key.hash_one(thing))
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.known.len()
    }
}
