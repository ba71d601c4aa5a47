//! The part of the index that is not on disk yet.

use std::collections::HashMap;

use super::words;
use crate::event_id::EventId;

/// An indexed event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Document {
    pub(super) id: EventId,
    pub(super) time_ms: i64,
    /// Number of words, including repetitions.
    pub(super) length: u32,
}

/// How often a word occurs in one document.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Posting {
    pub(super) document: u32,
    pub(super) count: u32,
}

/// The uncommitted events.
#[derive(Debug, Default)]
pub(super) struct Memory {
    pub(super) documents: Vec<Document>,
    pub(super) words: HashMap<Box<str>, Vec<Posting>>,
    /// The total size of their texts.
    pub(super) bytes: usize,
}

impl Memory {
    pub(super) fn add(&mut self, id: EventId, time_ms: i64, text: &str) {
        let number = u32::try_from(self.documents.len()).unwrap_or(u32::MAX);
        let mut length = 0_u32;
        self.bytes += text.len();
        let words = &mut self.words;
        let mut take = |word: &str| {
            length = length.saturating_add(1);
            match words.get_mut(word) {
                Some(postings) => match postings.last_mut() {
                    Some(last) if last.document == number => last.count = last.count.saturating_add(1),
                    _ => postings.push(Posting { document: number, count: 1 }),
                },
                None => {
                    words.insert(word.into(), vec![Posting { document: number, count: 1 }]);
                }
            }
        };
        // The day can be searched too: "what failed on 2026-11-15".
        let day = words::day_of(time_ms);
        take(&day);
        words::each_word(text, take);
        self.documents.push(Document { id, time_ms, length });
    }

    pub(super) fn postings(&self, word: &str) -> &[Posting] {
        self.words.get(word).map_or(&[], Vec::as_slice)
    }
}
