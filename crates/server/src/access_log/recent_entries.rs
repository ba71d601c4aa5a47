//! The latest access log entries in memory.

use std::collections::{HashMap, VecDeque};

use super::entry::AccessLogEntry;

/// The number of entries kept in memory.
pub(super) const MAX_ENTRIES: usize = 1000;
/// How many of these may come from callers without a key, who therefore cannot push out the entries of others.
pub(super) const MAX_UNAUTHENTICATED: usize = 200;

/// The latest entries, oldest first.
#[derive(Default)]
pub(super) struct Recent {
    entries: VecDeque<AccessLogEntry>,
    /// Entries per caller. A busy server adds one per request and must not scan all entries for it.
    by_caller: HashMap<String, usize>,
    unauthenticated: usize,
}

impl Recent {
    /// Adds an entry and evicts an old one if the limit is reached.
    pub(super) fn push(&mut self, entry: AccessLogEntry) {
        if entry.is_unauthenticated() && self.unauthenticated >= MAX_UNAUTHENTICATED {
            let oldest = self.entries.iter().position(AccessLogEntry::is_unauthenticated);
            self.remove(oldest.unwrap_or_default());
        }
        if self.entries.len() >= MAX_ENTRIES {
            // Evict from the caller with the most entries, so that a busy caller pushes out only its own.
            let most = self.by_caller.values().max();
            let busiest: Vec<_> = self.by_caller.iter().filter(|(_, count)| Some(*count) == most).collect();
            let is_theirs = |entry: &AccessLogEntry| busiest.iter().any(|(who, _)| **who == entry.who);
            let oldest = self.entries.iter().position(is_theirs);
            self.remove(oldest.unwrap_or_default());
        }
        self.unauthenticated += usize::from(entry.is_unauthenticated());
        match self.by_caller.get_mut(&entry.who) {
            Some(count) => *count += 1,
            None => drop(self.by_caller.insert(entry.who.clone(), 1)),
        }
        self.entries.push_back(entry);
    }

    /// The latest entries, newest first.
    pub(super) fn newest(&self, count: usize) -> Vec<AccessLogEntry> {
        self.entries.iter().rev().take(count).cloned().collect()
    }

    fn remove(&mut self, at: usize) {
        let Some(entry) = self.entries.remove(at) else { return };
        self.unauthenticated -= usize::from(entry.is_unauthenticated());
        if let Some(count) = self.by_caller.get_mut(&entry.who) {
            *count -= 1;
            if *count == 0 {
                self.by_caller.remove(&entry.who);
            }
        }
    }
}

impl FromIterator<AccessLogEntry> for Recent {
    fn from_iter<T: IntoIterator<Item = AccessLogEntry>>(entries: T) -> Self {
        let mut recent = Self::default();
        entries.into_iter().for_each(|entry| recent.push(entry));
        recent
    }
}
