//! The latest access log entries in memory.

use std::collections::{HashMap, VecDeque};

use super::journal::Deed;

/// The number of entries kept in memory.
pub(super) const KEPT: usize = 1000;
/// How many of these may come from callers without a key, who therefore cannot push out the entries of others.
pub(super) const KEPT_OF_NOBODY: usize = 200;

/// The latest entries, oldest first.
#[derive(Default)]
pub(super) struct Recent {
    deeds: VecDeque<Deed>,
    /// Entries per caller. A busy server adds one per request and must not scan all entries for it.
    by_caller: HashMap<String, usize>,
    of_nobody: usize,
}

impl Recent {
    /// Adds an entry and evicts an old one if the limit is reached.
    pub(super) fn push(&mut self, deed: Deed) {
        if deed.is_of_nobody() && self.of_nobody >= KEPT_OF_NOBODY {
            let oldest = self.deeds.iter().position(Deed::is_of_nobody);
            self.remove(oldest.unwrap_or_default());
        }
        if self.deeds.len() >= KEPT {
            // Evict from the caller with the most entries, so that a busy caller pushes out only its own.
            let most = self.by_caller.values().max();
            let busiest: Vec<_> = self.by_caller.iter().filter(|(_, count)| Some(*count) == most).collect();
            let is_theirs = |deed: &Deed| busiest.iter().any(|(who, _)| **who == deed.who);
            let oldest = self.deeds.iter().position(is_theirs);
            self.remove(oldest.unwrap_or_default());
        }
        self.of_nobody += usize::from(deed.is_of_nobody());
        match self.by_caller.get_mut(&deed.who) {
            Some(count) => *count += 1,
            None => drop(self.by_caller.insert(deed.who.clone(), 1)),
        }
        self.deeds.push_back(deed);
    }

    /// The latest entries, newest first.
    pub(super) fn newest(&self, count: usize) -> Vec<Deed> {
        self.deeds.iter().rev().take(count).cloned().collect()
    }

    fn remove(&mut self, at: usize) {
        let Some(deed) = self.deeds.remove(at) else { return };
        self.of_nobody -= usize::from(deed.is_of_nobody());
        if let Some(count) = self.by_caller.get_mut(&deed.who) {
            *count -= 1;
            if *count == 0 {
                self.by_caller.remove(&deed.who);
            }
        }
    }
}

impl FromIterator<Deed> for Recent {
    fn from_iter<T: IntoIterator<Item = Deed>>(deeds: T) -> Self {
        let mut recent = Self::default();
        deeds.into_iter().for_each(|deed| recent.push(deed));
        recent
    }
}
