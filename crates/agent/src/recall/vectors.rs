//! Requests the vectors of events and queries from an embeddings model.

use std::sync::Arc;
use std::time::{Duration, Instant};

use context::EventId;
use model::MAX_TEXTS;

use super::Shared;

/// Time limit of a request for the vectors of events.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a query waits for missing vectors of events. The rest arrives in the background.
const BACKLOG_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a failed embeddings server is not used.
const PAUSE: Duration = Duration::from_secs(30);

/// Time limit of a request for the vector of a query.
pub(super) struct QueryTimeout(pub(super) Duration);

impl Default for QueryTimeout {
    fn default() -> Self {
        Self(Duration::from_secs(5))
    }
}

/// Why a query has no vector although a model is configured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NoVector {
    /// The model has failed, now or a moment ago.
    NoAnswer,
    /// The model makes vectors of another length than the stored ones.
    OtherModel,
}

impl NoVector {
    /// What the model reads above the hits.
    pub(super) fn note(self) -> &'static str {
        match self {
            Self::NoAnswer => "[by words alone: the embeddings model did not answer]\n",
            Self::OtherModel => {
                "[by words alone: the embeddings model has changed, and all vectors are made again]\n"
            }
        }
    }
}

impl Shared {
    /// Requests the missing vectors, oldest event first, until none is missing or the model fails.
    pub(super) async fn embed_waiting(self: &Arc<Self>) {
        let Some(embeddings) = &self.embeddings else { return };
        let _turn = self.embedding.lock().await;
        while let Some(batch) = self.next_batch().await {
            let texts: Vec<&str> = batch.iter().map(|(_, text)| text.as_str()).collect();
            let vectors = match embeddings.embed(&texts, REQUEST_TIMEOUT).await {
                Ok(vectors) => vectors,
                Err(error) => {
                    tracing::warn!(%error, "events get no vectors for now");
                    self.lock().paused_until = Some(Instant::now() + PAUSE);
                    return;
                }
            };
            let last = batch.last().map(|(id, _)| *id);
            let ids = batch.into_iter().map(|(id, _)| id);
            let vectors: Vec<(EventId, Vec<f32>)> = ids.zip(vectors).collect();
            if let Err(error) = self.with_index(move |index| index.add_vectors(&vectors)).await {
                tracing::warn!(%error, "vectors cannot be stored");
                return;
            }
            let mut state = self.lock();
            while state.without_vector.front().is_some_and(|(id, _)| Some(*id) <= last) {
                state.without_vector.pop_front();
            }
        }
    }

    async fn next_batch(self: &Arc<Self>) -> Option<Vec<(EventId, String)>> {
        if self.is_paused_after_failure() || self.lock().without_vector.is_empty() {
            return None;
        }
        let newest = self.with_index(|index| Ok(index.newest_vector())).await.ok()?;
        let mut state = self.lock();
        while state.without_vector.front().is_some_and(|(id, _)| newest.is_some_and(|newest| newest >= *id)) {
            state.without_vector.pop_front();
        }
        let batch: Vec<_> = state.without_vector.iter().take(MAX_TEXTS).cloned().collect();
        (!batch.is_empty()).then_some(batch)
    }

    fn is_paused_after_failure(&self) -> bool {
        self.lock().paused_until.is_some_and(|until| Instant::now() < until)
    }

    /// The vector of a query; `None` if no model is configured.
    pub(super) async fn vector_of(self: &Arc<Self>, query: &str) -> Result<Option<Vec<f32>>, NoVector> {
        let Some(embeddings) = &self.embeddings else { return Ok(None) };
        if self.is_paused_after_failure() {
            return Err(NoVector::NoAnswer);
        }
        let shared = Arc::clone(self);
        // A separate task, so that it continues in the background after the timeout.
        let backlog = tokio::spawn(async move { shared.embed_waiting().await });
        let _ = tokio::time::timeout(BACKLOG_TIMEOUT, backlog).await;
        match embeddings.embed(&[query], self.query_timeout.0).await {
            Ok(mut vectors) => {
                let vector = vectors.pop();
                if let Some(vector) = vector.clone()
                    && self.replace_other_vectors(vector).await
                {
                    return Err(NoVector::OtherModel);
                }
                Ok(vector)
            }
            Err(error) => {
                tracing::warn!(%error, "a question gets no vector");
                self.lock().paused_until = Some(Instant::now() + PAUSE);
                Err(NoVector::NoAnswer)
            }
        }
    }

    /// Deletes the vectors of another model. All events are queued again with the next records.
    async fn replace_other_vectors(self: &Arc<Self>, vector: Vec<f32>) -> bool {
        // A batch that is being requested belongs to the vectors that are there; the next search looks again.
        let Ok(_turn) = self.embedding.try_lock() else { return false };
        let cleared = self.with_index(move |index| index.clear_vectors_unlike(&vector)).await;
        let is_cleared = cleared.unwrap_or_else(|error| {
            tracing::warn!(%error, "the vectors of another embeddings model cannot be removed");
            false
        });
        if is_cleared {
            self.lock().forget_queued();
        }
        is_cleared
    }

    /// How many of the events up to now have no vector. `newest` is the newest event with one.
    pub(super) fn count_without_vector(&self, newest: Option<EventId>) -> usize {
        let state = self.lock();
        state.without_vector.iter().filter(|(id, _)| newest.is_none_or(|newest| *id > newest)).count()
    }
}
