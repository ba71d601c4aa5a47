//! A set of things already recorded, as keyed hashes: it stores eight bytes per path, whatever its length. The key is
//! random, so a sandbox cannot construct collisions.

use std::collections::HashSet;
use std::hash::{BuildHasher as _, Hash, RandomState};

pub(super) struct SeenSet {
    key: RandomState,
    known: HashSet<u64>,
    most: usize,
}

impl SeenSet {
    pub(super) fn new(most: usize) -> Self {
        Self { key: RandomState::new(), known: HashSet::new(), most }
    }

    pub(super) fn is_full(&self) -> bool {
        self.known.len() >= self.most
    }

    /// Removes all entries.
    pub(super) fn forget(&mut self) {
        self.known.clear();
    }

    /// Adds an entry; returns whether it was new.
    pub(super) fn is_new(&mut self, thing: impl Hash) -> bool {
        self.known.insert(self.key.hash_one(thing))
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.known.len()
    }
}
