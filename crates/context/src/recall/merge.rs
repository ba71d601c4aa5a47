//! Merges several segments word by word, with at most one block of each in memory.

use std::path::Path;

use super::memory::{Document, Posting};
use super::segment::{Segment, WordEntry, Writer};
use crate::error::ContextError;

/// Iterates over the words of one segment.
struct Cursor<'a> {
    segment: &'a Segment,
    blocks: Box<dyn Iterator<Item = Result<Vec<WordEntry>, ContextError>> + 'a>,
    block: std::vec::IntoIter<WordEntry>,
    word: Option<WordEntry>,
    /// The offset added to its document numbers.
    base: u32,
}

impl Cursor<'_> {
    fn advance(&mut self) -> Result<(), ContextError> {
        self.word = self.block.next();
        while self.word.is_none() {
            let Some(block) = self.blocks.next() else { break };
            self.block = block?.into_iter();
            self.word = self.block.next();
        }
        Ok(())
    }
}

/// Merges adjacent segments into one.
pub(super) fn merge(segments: &[Segment], path: &Path) -> Result<(), ContextError> {
    let mut writer = Writer::create(path)?;
    let mut documents: Vec<Document> = Vec::new();
    let mut cursors = Vec::with_capacity(segments.len());
    for segment in segments {
        let base = u32::try_from(documents.len()).unwrap_or(u32::MAX);
        documents.extend_from_slice(&segment.documents);
        let blocks = Box::new(segment.words());
        let mut cursor = Cursor { segment, blocks, block: Vec::new().into_iter(), word: None, base };
        cursor.advance()?;
        cursors.push(cursor);
    }
    loop {
        let next = cursors.iter().filter_map(|cursor| cursor.word.as_ref()).map(|word| &word.text).min();
        let Some(text) = next.cloned() else { break };
        let mut postings: Vec<Posting> = Vec::new();
        for cursor in &mut cursors {
            let Some(word) = cursor.word.as_ref().filter(|word| word.text == text) else { continue };
            let base = cursor.base;
            let found = cursor.segment.read_postings(word)?;
            postings.extend(
                found.into_iter().map(|posting| Posting { document: posting.document + base, ..posting }),
            );
            cursor.advance()?;
        }
        writer.word(&text, &postings)?;
    }
    writer.finish(&documents)
}
