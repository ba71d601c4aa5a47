//! The index of a history: segments on disk, the newest events in memory, and optional vectors.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::memory::{Document, Memory, Posting};
use super::segment::{Segment, WordEntry, Writer};
use super::vectors::Vectors;
use super::words::Form;
use super::{merge, rank, words};
use crate::entry::Entry;
use crate::error::ContextError;
use crate::event_id::EventId;

/// How many events are committed together.
pub const COMMIT_EVENTS: usize = 200;
/// The maximum delay of a commit in milliseconds.
pub const COMMIT_MS: i64 = 1_000;

/// How many segments of about the same size are merged into one.
const FAN_IN: usize = 8;
/// Further words of a query are ignored.
const MAX_WORDS: usize = 32;
/// This many bytes of text are committed immediately, however few events they are.
const COMMIT_BYTES: usize = 4 * 1024 * 1024;
/// At most this much of one event is indexed, half from the head and half from the tail. No tool prints more.
const MAX_TEXT: usize = 32 * 1024 * 1024;
/// Weight of a match in a part of an identifier, relative to a match of the whole identifier.
const PART_WEIGHT: f32 = 0.3;
/// How many entries of each ranking are fused.
const FUSION_DEPTH: usize = 100;

/// Finds events by words and, if available, by vectors. Belongs to one history.
#[derive(Debug)]
pub struct Index {
    folder: PathBuf,
    /// Oldest first.
    segments: Vec<Segment>,
    memory: Memory,
    /// When the oldest uncommitted event was added, by the caller's clock.
    waiting_since_ms: Option<i64>,
    vectors: Vectors,
}

#[derive(Debug, Clone, Copy)]
pub struct Query<'a> {
    /// Words, identifiers, paths, or a day such as `2026-11-15`.
    pub text: &'a str,
    /// The query as a vector of the model that made the events' vectors.
    pub vector: Option<&'a [f32]>,
    /// The maximum number of hits.
    pub limit: usize,
}

impl<'a> Query<'a> {
    /// A query without a vector.
    pub fn words(text: &'a str, limit: usize) -> Self {
        Self { text, vector: None, limit }
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct Hit {
    pub id: EventId,
    pub time_ms: i64,
    /// Higher is better. Comparable only within one result.
    pub score: f32,
    /// The events before and after it, if they exist.
    pub neighbours: Vec<EventId>,
}

impl Index {
    /// Opens the index in a directory, creating it if necessary. Removes files left by a crash.
    ///
    /// # Errors
    /// The directory or a file cannot be read, or a file is damaged.
    pub fn open(folder: &Path) -> Result<Self, ContextError> {
        let failed = |action| {
            let path = folder.to_owned();
            move |source| ContextError::File { action, path, source }
        };
        std::fs::create_dir_all(folder).map_err(failed("make the folder"))?;
        let mut names: BTreeMap<(u64, std::cmp::Reverse<u64>), PathBuf> = BTreeMap::new();
        for file in std::fs::read_dir(folder).map_err(failed("list the folder"))? {
            let path = file.map_err(failed("list the folder"))?.path();
            match range_of(&path) {
                Some((first, last)) => {
                    names.insert((first, std::cmp::Reverse(last)), path);
                }
                None if path.extension().is_some_and(|extension| extension == "tmp") => remove(&path),
                None => {}
            }
        }
        let mut segments: Vec<Segment> = Vec::new();
        let mut newest = None;
        for ((_, std::cmp::Reverse(last)), path) in names {
            // An interrupted merge leaves the merged segments beside the result.
            if newest.is_some_and(|newest| last <= newest) {
                remove(&path);
                continue;
            }
            segments.push(Segment::open(&path)?);
            newest = Some(last);
        }
        let vectors = Vectors::open(folder)?;
        let folder = folder.to_owned();
        Ok(Self { folder, segments, memory: Memory::default(), waiting_since_ms: None, vectors })
    }

    /// The newest event on disk. After a restart, add the log's events after it.
    pub fn newest_committed(&self) -> Option<EventId> {
        self.segments.last().and_then(|segment| segment.documents.last()).map(|document| document.id)
    }

    /// The newest event that can be found.
    pub fn newest(&self) -> Option<EventId> {
        self.memory.documents.last().map(|document| document.id).or_else(|| self.newest_committed())
    }

    /// Adds an entry. It can be found immediately and is on disk after the next commit. Entries without text and
    /// entries that are already indexed are ignored.
    pub fn add(&mut self, entry: &Entry) {
        self.add_text(entry.id, entry.time_ms, &words::text_of(entry));
    }

    /// Adds an event with its complete text, if the entry has only a preview.
    pub fn add_text(&mut self, id: EventId, time_ms: i64, text: &str) {
        if text.is_empty() || self.newest().is_some_and(|newest| newest >= id) {
            return;
        }
        if text.len() > MAX_TEXT {
            let head = &text[..crate::tokens::truncate::floor(text, MAX_TEXT / 2)];
            let tail = &text[crate::tokens::truncate::ceil(text, text.len() - MAX_TEXT / 2)..];
            self.memory.add(id, time_ms, &format!("{head}\n{tail}"));
        } else {
            self.memory.add(id, time_ms, text);
        }
    }

    /// Commits if enough events are waiting or one has waited long enough. Call it after each add, with any clock.
    ///
    /// # Errors
    /// A file cannot be written. Nothing is lost; the next commit tries again.
    pub fn commit_if_due(&mut self, now_ms: i64) -> Result<(), ContextError> {
        if self.memory.documents.is_empty() {
            return Ok(());
        }
        let since = *self.waiting_since_ms.get_or_insert(now_ms);
        let is_much = self.memory.documents.len() >= COMMIT_EVENTS || self.memory.bytes >= COMMIT_BYTES;
        if is_much || now_ms.saturating_sub(since) >= COMMIT_MS {
            self.commit()?;
        }
        Ok(())
    }

    /// Writes the in-memory part to disk and merges segments if there are too many.
    ///
    /// # Errors
    /// A file cannot be written. The in-memory part is kept.
    pub fn commit(&mut self) -> Result<(), ContextError> {
        let documents = &self.memory.documents;
        let (Some(first), Some(last)) = (documents.first(), documents.last()) else { return Ok(()) };
        let (first, last) = (first.id, last.id);
        let memory = &self.memory;
        let segment = self.write(first, last, |path| {
            let mut sorted: Vec<(&str, &[Posting])> =
                memory.words.iter().map(|(word, postings)| (&**word, postings.as_slice())).collect();
            sorted.sort_unstable_by_key(|(word, _)| *word);
            let mut writer = Writer::create(path)?;
            for (word, postings) in sorted {
                writer.word(word, postings)?;
            }
            writer.finish(documents)
        })?;
        self.segments.push(segment);
        self.memory = Memory::default();
        self.waiting_since_ms = None;
        self.merge_where_due()
    }

    /// Writes a segment to a temporary file and renames it when it is complete.
    fn write(
        &self,
        first: EventId,
        last: EventId,
        write: impl FnOnce(&Path) -> Result<(), ContextError>,
    ) -> Result<Segment, ContextError> {
        let path = self.folder.join(format!("{:016x}-{:016x}.words", first.0, last.0));
        let temporary = path.with_extension("tmp");
        write(&temporary)?;
        std::fs::rename(&temporary, &path).map_err(|source| ContextError::File {
            action: "name the index file",
            path: path.clone(),
            source,
        })?;
        Segment::open(&path)
    }

    fn merge_where_due(&mut self) -> Result<(), ContextError> {
        while let Some(start) = self.newest_mergeable_run() {
            let run = &self.segments[start..];
            let ends = run.first().and_then(|segment| segment.documents.first()).zip(self.newest_committed());
            let Some((first, last)) = ends else { return Ok(()) };
            let merged = self.write(first.id, last, |path| merge::merge(run, path))?;
            for old in self.segments.drain(start..) {
                remove(&old.path);
            }
            self.segments.push(merged);
        }
        Ok(())
    }

    /// The start of the newest run of segments of about the same size, if it is long enough to merge.
    fn newest_mergeable_run(&self) -> Option<usize> {
        let start = self.segments.len().checked_sub(FAN_IN)?;
        let newest = self.segments.last()?.documents.len();
        let is_equal = |segment: &Segment| {
            segment.documents.len() <= newest.max(COMMIT_EVENTS).saturating_mul(FAN_IN / 2)
        };
        self.segments[start..].iter().all(is_equal).then_some(start)
    }

    /// The best matching events.
    ///
    /// # Errors
    /// A file cannot be read.
    pub fn search(&self, query: Query<'_>) -> Result<Vec<Hit>, ContextError> {
        let by_words = self.search_words(query.text, query.limit.max(FUSION_DEPTH))?;
        let ranked = match query.vector {
            None => by_words,
            Some(vector) => {
                let words = by_words.iter().map(|(id, _)| *id).collect();
                rank::fuse(&[words, self.vectors.nearest(vector, FUSION_DEPTH)])
            }
        };
        let hits = ranked.into_iter().take(query.limit).filter_map(|(id, score)| {
            let (document, neighbours) = self.find(id)?;
            Some(Hit { id, time_ms: document.time_ms, score, neighbours })
        });
        Ok(hits.collect())
    }

    fn search_words(&self, text: &str, most: usize) -> Result<Vec<(EventId, f32)>, ContextError> {
        let mut wanted: BTreeMap<String, Form> = BTreeMap::new();
        words::each_form(text, |word, form| {
            let is_known = wanted.contains_key(word);
            if (is_known && form == Form::Whole) || (!is_known && wanted.len() < MAX_WORDS) {
                wanted.insert(word.to_owned(), form);
            }
        });
        let parts = self.segments.len() + 1;
        let lengths = self.segments.iter().map(|segment| segment.length);
        let in_memory: u64 = self.memory.documents.iter().map(|document| u64::from(document.length)).sum();
        let documents = self.len() as u64;
        let average = (lengths.sum::<u64>() + in_memory) as f32 / (documents.max(1)) as f32;
        let mut scores: Vec<Vec<f32>> = vec![Vec::new(); parts];
        for (word, form) in &wanted {
            // The number of documents with a word is known before its postings are read, so postings need not be
            // kept.
            let mut found: Vec<Option<WordEntry>> = Vec::with_capacity(parts);
            for segment in &self.segments {
                found.push(segment.find(word)?);
            }
            let in_memory = self.memory.postings(word);
            let on_disk: u64 = found.iter().flatten().map(|word| u64::from(word.documents)).sum();
            let share = if *form == Form::Whole { 1.0 } else { PART_WEIGHT };
            let idf = share * rank::idf(documents, on_disk + in_memory.len() as u64);
            let score = |part: usize, posting: Posting, scores: &mut Vec<f32>| {
                let known = self.part(part);
                scores.resize(known.len(), 0.0);
                let at = posting.document as usize;
                scores[at] += rank::weight(idf, posting.count, known[at].length, average);
            };
            for (part, (segment, word)) in self.segments.iter().zip(&found).enumerate() {
                if let Some(word) = word {
                    let scores = &mut scores[part];
                    segment.each_posting(word, |posting| score(part, posting, scores))?;
                }
            }
            for posting in in_memory {
                score(parts - 1, *posting, &mut scores[parts - 1]);
            }
        }
        let mut ranked: Vec<(EventId, f32)> = Vec::new();
        for (part, scores) in scores.iter().enumerate() {
            let known = self.part(part);
            ranked.extend(
                scores.iter().zip(known).filter(|(score, _)| **score > 0.0).map(|(score, d)| (d.id, *score)),
            );
        }
        // Among equal scores, the newer event is more useful.
        let better = |a: &(EventId, f32), b: &(EventId, f32)| b.1.total_cmp(&a.1).then(b.0.cmp(&a.0));
        if ranked.len() > most {
            ranked.select_nth_unstable_by(most, better);
            ranked.truncate(most);
        }
        ranked.sort_unstable_by(better);
        Ok(ranked)
    }

    /// The documents of one part: a segment, or the in-memory part, which comes last.
    fn part(&self, part: usize) -> &[Document] {
        self.segments.get(part).map_or(&self.memory.documents, |segment| &segment.documents)
    }

    /// A document and its neighbours.
    fn find(&self, id: EventId) -> Option<(Document, Vec<EventId>)> {
        let parts = 0..=self.segments.len();
        let part =
            parts.into_iter().find(|part| self.part(*part).last().is_some_and(|last| last.id >= id))?;
        let at = self.part(part).binary_search_by_key(&id, |document| document.id).ok()?;
        let before = match at.checked_sub(1) {
            Some(before) => self.part(part).get(before),
            None => part.checked_sub(1).and_then(|part| self.part(part).last()),
        };
        let after = self.part(part).get(at + 1).or_else(|| {
            // The in-memory part is the last one; a larger index would return it again.
            (part < self.segments.len()).then(|| self.part(part + 1).first()).flatten()
        });
        let neighbours = before.into_iter().chain(after).map(|document| document.id).collect();
        Some((self.part(part)[at], neighbours))
    }

    /// The number of indexed events.
    pub fn len(&self) -> usize {
        self.segments.iter().map(|segment| segment.documents.len()).sum::<usize>()
            + self.memory.documents.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The size of the segments on disk.
    pub fn bytes(&self) -> u64 {
        self.segments.iter().map(|segment| segment.bytes).sum()
    }

    /// Stores the vectors of events, in log order. Skips vectors whose length differs from the first one, and events
    /// that already have a vector. Returns how many were skipped.
    ///
    /// # Errors
    /// A file cannot be written.
    pub fn add_vectors(&mut self, vectors: &[(EventId, Vec<f32>)]) -> Result<usize, ContextError> {
        self.vectors.add(vectors)
    }

    /// Deletes all vectors if they cannot be compared with this one, because the embeddings model has changed. Returns
    /// whether it did.
    ///
    /// # Errors
    /// The file cannot be removed.
    pub fn clear_vectors_unlike(&mut self, vector: &[f32]) -> Result<bool, ContextError> {
        if !self.vectors.differ_from(vector) {
            return Ok(false);
        }
        self.vectors.clear()?;
        Ok(true)
    }

    /// The newest event that has a vector. Later events still need one.
    pub fn newest_vector(&self) -> Option<EventId> {
        self.vectors.newest()
    }
}

/// If removal fails, the next open tries again.
fn remove(path: &Path) {
    let _ = std::fs::remove_file(path);
}

/// The first and last event id in a segment's file name.
fn range_of(path: &Path) -> Option<(u64, u64)> {
    let name = path.file_name()?.to_str()?.strip_suffix(".words")?;
    let (first, last) = name.split_once('-')?;
    Some((u64::from_str_radix(first, 16).ok()?, u64::from_str_radix(last, 16).ok()?))
}
