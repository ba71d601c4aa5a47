//! Searches earlier events. The index of a job's history is a directory beside its log and is filled in the
//! background.
//!
//! The index is a cache. It is opened once something has left the view or a search runs. Missing events are added
//! from the records, which are a fold over the log, and complete outputs from the store. A damaged index is deleted
//! and rebuilt.

#[cfg(test)]
mod tests;
mod vectors;

use std::collections::{HashMap, VecDeque};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use async_trait::async_trait;
use context::recall::{self, History, Hit, Index, Query};
use context::{CallResult, ContextError, Entry, EntryBody, EventId};
use model::Embeddings;

use crate::conversation::{Record, RecordKind};

/// Maximum number of events in one search result.
pub(crate) const MAX_HITS: usize = 5;
/// At most this many bytes of one event go to the embeddings model, which reads only a few hundred words.
const MAX_EMBEDDED: usize = 6_000;
/// Maximum number of bytes of complete outputs that one search reads to find matching lines.
const MAX_SHOWN_BYTES: usize = 32 * 1024 * 1024;
/// The file that names the model of the stored vectors.
const MARKER: &str = "vectors.model";

/// Access to outputs that are too large for the log.
#[async_trait]
pub trait OutputStore: Send + Sync {
    /// The text with this digest; `None` if it no longer exists. An error means that reading failed and may succeed
    /// later.
    async fn whole(&self, digest: &str) -> Result<Option<String>, String>;
}

/// The search index of one job's history.
#[derive(Clone)]
pub struct Recall {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    folder: Option<PathBuf>,
    embeddings: Option<Embeddings>,
    texts: Option<Arc<dyn OutputStore>>,
    state: Mutex<State>,
    index: Mutex<Option<Index>>,
    /// Held while filling or rebuilding the index.
    filling: tokio::sync::Mutex<()>,
    /// Held while requesting vectors of events, because they must be stored in log order.
    embedding: tokio::sync::Mutex<()>,
    query_timeout: vectors::QueryTimeout,
}

#[derive(Default)]
struct State {
    /// The number of records that were queued so far.
    queued_records: usize,
    queue: VecDeque<QueuedEvent>,
    without_vector: VecDeque<(EventId, String)>,
    is_indexing: bool,
    paused_until: Option<Instant>,
}

impl State {
    /// All records are queued again the next time.
    fn forget_queued(&mut self) {
        self.queued_records = 0;
        self.queue.clear();
        self.without_vector.clear();
    }
}

/// An event that is not indexed yet.
#[derive(Clone)]
struct QueuedEvent {
    id: EventId,
    time_ms: i64,
    text: String,
    /// Digest of the complete output, if `text` is only part of it.
    digest: Option<String>,
}

impl Recall {
    /// An index in this directory. Nothing is read or created until it is needed.
    #[must_use]
    pub fn new(folder: PathBuf, embeddings: Option<Embeddings>, texts: Option<Arc<dyn OutputStore>>) -> Self {
        Self { shared: Arc::new(Shared { folder: Some(folder), embeddings, texts, ..Shared::default() }) }
    }

    /// No index: a search scans all records.
    #[must_use]
    pub fn none() -> Self {
        Self { shared: Arc::default() }
    }

    fn queue_new(&self, records: &[Record]) {
        let mut state = self.shared.lock();
        let new = records.get(state.queued_records..).unwrap_or_default();
        for record in new {
            let (id, text) = (EventId(record.sequence), record.searchable_text());
            if text.trim().is_empty() {
                continue;
            }
            let digest = record.whole.as_ref().map(|blob| blob.digest.clone());
            state.queue.push_back(QueuedEvent { id, time_ms: record.time_ms, text: text.to_owned(), digest });
            if self.shared.embeddings.is_some() {
                let end = text.floor_char_boundary(MAX_EMBEDDED);
                state.without_vector.push_back((id, text[..end].to_owned()));
            }
        }
        state.queued_records = records.len();
    }

    /// Indexes these records in the background.
    pub(crate) fn follow(&self, records: &[Record], now_ms: i64) {
        if self.shared.folder.is_none() {
            return;
        }
        self.queue_new(records);
        {
            let mut state = self.shared.lock();
            if state.is_indexing {
                return;
            }
            state.is_indexing = true;
        }
        let shared = Arc::clone(&self.shared);
        tokio::spawn(async move {
            if let Err(error) = shared.catch_up(now_ms).await {
                tracing::warn!(%error, "the index of a job's history cannot be written");
            }
            shared.embed_waiting().await;
            shared.lock().is_indexing = false;
        });
    }

    /// Answers `history_search`.
    pub(crate) async fn search(
        &self,
        query: &str,
        records: &[Record],
        now_ms: i64,
    ) -> Result<String, ContextError> {
        match self.try_search(query, records, now_ms).await {
            // Rebuild the index from the log, once.
            Err(error) if is_damage(&error) => {
                self.shared.rebuild(&error).await;
                self.try_search(query, records, now_ms).await
            }
            done => done,
        }
    }

    async fn try_search(&self, query: &str, records: &[Record], now_ms: i64) -> Result<String, ContextError> {
        self.queue_new(records);
        self.shared.catch_up(now_ms).await?;
        let (vector, note) = match self.shared.vector_of(query).await {
            Ok(vector) => (vector, ""),
            Err(reason) => (None, reason.note()),
        };
        let has_vector = vector.is_some();
        let owned_query = query.to_owned();
        let (hits, events, newest_vector) = self
            .shared
            .with_index(move |index| {
                let query = Query { text: &owned_query, vector: vector.as_deref(), limit: MAX_HITS };
                Ok((index.search(query)?, index.len(), index.newest_vector()))
            })
            .await?;
        let mut note = note.to_owned();
        let missing = self.shared.count_without_vector(newest_vector);
        if has_vector && missing > 0 {
            note +=
                &format!("[by words alone for {missing} of {events} events, which have no vectors yet]\n");
        }
        let found = RecordHistory { records, whole: self.whole_texts(&hits, records).await };
        Ok(note + &recall::answer(&hits, events, &found, query)?)
    }

    /// Loads the complete outputs of hits whose record has only a preview.
    async fn whole_texts(&self, hits: &[Hit], records: &[Record]) -> HashMap<EventId, String> {
        let mut texts = HashMap::new();
        let Some(source) = &self.shared.texts else { return texts };
        let mut room = MAX_SHOWN_BYTES as u64;
        for hit in hits {
            let Some(blob) = record_of(records, hit.id).and_then(|record| record.whole.as_ref()) else {
                continue;
            };
            if blob.bytes > room {
                continue;
            }
            if let Ok(Some(text)) = source.whole(&blob.digest).await {
                room -= blob.bytes;
                texts.insert(hit.id, text);
            }
        }
        texts
    }

    pub(crate) fn has_index(&self) -> bool {
        self.shared.folder.is_some()
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn open(&self) -> Result<Index, ContextError> {
        let Some(folder) = &self.folder else {
            let source = std::io::Error::from(std::io::ErrorKind::NotFound);
            return Err(ContextError::File { action: "open the index", path: PathBuf::new(), source });
        };
        if let Some(embeddings) = &self.embeddings {
            let marker = folder.join(MARKER);
            // Vectors of different models are not comparable.
            if std::fs::read_to_string(&marker).is_ok_and(|name| name != embeddings.name()) {
                let _ = std::fs::remove_file(folder.join("vectors"));
            }
            let _ = std::fs::create_dir_all(folder).and_then(|()| std::fs::write(&marker, embeddings.name()));
        }
        Index::open(folder).or_else(|error| {
            tracing::warn!(%error, "the index of a job's history is made again");
            let _ = std::fs::remove_dir_all(folder);
            Index::open(folder)
        })
    }

    /// Runs `work` on the index, opening it first if necessary.
    async fn with_index<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(&mut Index) -> Result<T, ContextError> + Send + 'static,
    ) -> Result<T, ContextError> {
        let shared = Arc::clone(self);
        let done = tokio::task::spawn_blocking(move || {
            let mut index = shared.index.lock().unwrap_or_else(PoisonError::into_inner);
            if index.is_none() {
                *index = Some(shared.open()?);
            }
            index.as_mut().map(work).transpose()
        });
        let stopped = || {
            let source = std::io::Error::other("the work on it was given up");
            ContextError::File { action: "use the index", path: PathBuf::new(), source }
        };
        done.await.map_err(|_| stopped())?.and_then(|done| done.ok_or_else(stopped))
    }

    /// Deletes a damaged index; everything is indexed again from the records.
    async fn rebuild(&self, cause: &ContextError) {
        let _turn = self.filling.lock().await;
        tracing::warn!(error = %cause, "the index of a job's history is made again");
        *self.index.lock().unwrap_or_else(PoisonError::into_inner) = None;
        if let Some(folder) = &self.folder {
            let _ = std::fs::remove_dir_all(folder);
        }
        self.lock().forget_queued();
    }

    /// Indexes waiting events and commits if due. Events that could not be added stay in the queue.
    async fn catch_up(self: &Arc<Self>, now_ms: i64) -> Result<(), ContextError> {
        let turn = self.filling.lock().await;
        let done = self.add_waiting(now_ms).await;
        drop(turn);
        if let Err(error) = &done
            && is_damage(error)
        {
            self.rebuild(error).await;
        }
        done
    }

    async fn add_waiting(self: &Arc<Self>, now_ms: i64) -> Result<(), ContextError> {
        loop {
            let Some(mut next) = self.lock().queue.front().cloned() else { break };
            if let (Some(digest), Some(texts)) = (&next.digest, &self.texts) {
                match texts.whole(digest).await {
                    Ok(Some(whole)) => next.text = whole,
                    // Retention deleted the output, so only the preview is left.
                    Ok(None) => {}
                    Err(problem) => {
                        tracing::warn!(%problem, event = %next.id, "an output cannot be read for the index yet");
                        return Ok(());
                    }
                }
            }
            let id = next.id;
            let add = move |index: &mut Index| {
                index.add_text(next.id, next.time_ms, &next.text);
                Ok(index.commit_if_due(now_ms))
            };
            let committed = self.with_index(add).await?;
            // It is in the index even if writing to disk failed.
            self.lock().queue.pop_front_if(|first| first.id == id);
            committed?;
        }
        self.with_index(move |index| index.commit_if_due(now_ms)).await
    }
}

/// Whether the error means that the index files are damaged.
fn is_damage(error: &ContextError) -> bool {
    use std::io::ErrorKind::{InvalidData, NotFound, UnexpectedEof};
    match error {
        ContextError::Damaged { .. } => true,
        ContextError::File { source, .. } => matches!(source.kind(), InvalidData | NotFound | UnexpectedEof),
        _ => false,
    }
}

fn record_of(records: &[Record], id: EventId) -> Option<&Record> {
    records.binary_search_by_key(&id.0, |record| record.sequence).ok().map(|at| &records[at])
}

/// Gives the search access to the records' texts.
struct RecordHistory<'a> {
    records: &'a [Record],
    whole: HashMap<EventId, String>,
}

impl History for RecordHistory<'_> {
    fn entry(&self, id: EventId) -> Result<Option<Entry>, ContextError> {
        let Some(record) = record_of(self.records, id) else { return Ok(None) };
        let text = self.whole.get(&id).unwrap_or(&record.text).clone();
        Ok(Some(entry_of(record, text)))
    }

    fn blob(&self, _digest: &str) -> Result<Option<String>, ContextError> {
        Ok(None)
    }
}

/// Converts a record to a log entry with this text. Tokens are not counted because nothing uses the count.
pub(crate) fn entry_of(record: &Record, text: String) -> Entry {
    let body = match record.kind {
        RecordKind::Person | RecordKind::Notice => EntryBody::User { text, images: Vec::new() },
        RecordKind::Answer => EntryBody::Assistant { reasoning: Vec::new(), text, calls: Vec::new() },
        RecordKind::Result => {
            EntryBody::Result(CallResult { text, blob: record.whole.clone(), ..CallResult::default() })
        }
        RecordKind::Plan => EntryBody::Plan { text },
        RecordKind::Note => {
            let (name, text) = text.split_once(": ").unwrap_or(("note", &text));
            EntryBody::Note { name: name.to_owned(), text: text.to_owned() }
        }
    };
    Entry { id: EventId(record.sequence), time_ms: record.time_ms, tokens: 0, body }
}
