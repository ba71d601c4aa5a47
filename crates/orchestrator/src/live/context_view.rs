//! The prompt that the model of a job got, or would get, at a given event: each segment with its cost and the events
//! it covers. Derived from the event log alone.

use context::explain::{self, Explanation, Part};
use context::{EventId, EventRange, POLICY_VERSION};
use job::{JobId, Sequence};
use serde::Serialize;
use utoipa::ToSchema;

use crate::core::Orchestrator;
use crate::driver::{describe, logged};
use crate::error::OrchestratorError;

/// Number of events read per page.
const PAGE: usize = 256;

/// What the model saw, or would see.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct ContextView {
    /// The event up to which the log was read.
    pub at: Sequence,
    /// Whether the model was asked with exactly this at that event. Otherwise it is what it would be asked with, or the log
    /// was written by other rules.
    pub asked: bool,
    /// Who is asked.
    pub model: String,
    /// The rules by which it was made.
    pub policy_version: u32,
    /// The most that a prompt may cost, by our count.
    pub budget: u32,
    /// What this one costs, by our count.
    pub tokens: u32,
    /// What the provider counts for one of our tokens, as far as its usage has taught.
    pub factor: f64,
    /// How often the stable part was rebuilt.
    pub epoch: u32,
    /// The pieces, in the order of the prompt.
    pub segments: Vec<ContextSegment>,
}

/// One piece of a prompt.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct ContextSegment {
    /// `system`, `tools`, `task`, `pin`, `notes`, `map`, `plan`, `summary`, `masked`, `cut`, `raw`, `missing`, `pending`
    /// or `volatile`.
    pub kind: String,
    /// Who speaks: `user`, `assistant`, `tool`; empty for the system prompt and the tools.
    pub role: String,
    /// The level of a summary: 1 for events, more for summaries of summaries.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub level: Option<u8>,
    /// Who wrote a summary: `model`, or `extract` for rules.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub author: Option<String>,
    /// The events that it represents, such as `e12-e57`; absent for content that is in no event.
    pub covers: Option<String>,
    /// The same as numbers.
    pub events: Option<EventSpan>,
    /// What it costs, by our count.
    pub tokens: u32,
    /// What the model reads.
    pub text: String,
    /// The events that a summary cites.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub cites: Vec<EventSpan>,
}

/// Events from the first to the last, both counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
pub struct EventSpan {
    /// The oldest.
    pub first: Sequence,
    /// The newest.
    pub last: Sequence,
}

impl From<EventRange> for EventSpan {
    fn from(range: EventRange) -> Self {
        Self { first: range.first.0, last: range.last.0 }
    }
}

impl From<Part> for ContextSegment {
    fn from(part: Part) -> Self {
        let author = part.kind.author.map(|author| match author {
            context::Author::Extract => "extract".to_owned(),
            context::Author::Model => "model".to_owned(),
        });
        Self {
            kind: part.kind.kind.to_owned(),
            role: part.kind.role.to_owned(),
            level: part.kind.level,
            author,
            covers: part.covers.map(|range| range.to_string()),
            events: part.covers.map(EventSpan::from),
            tokens: part.tokens,
            text: part.text,
            cites: part.cites.into_iter().map(EventSpan::from).collect(),
        }
    }
}

impl Orchestrator {
    /// The prompt after the event `at`, or after the newest event if `at` is `None`.
    ///
    /// # Errors
    /// There is no such job or event, or the job has not prepared a model call yet.
    pub async fn context(&self, id: JobId, at: Option<Sequence>) -> Result<ContextView, OrchestratorError> {
        let (view, model, asked) = self.explained(id, at).await?;
        Ok(ContextView {
            at: view.at.map_or(0, |event| event.0),
            asked,
            model,
            policy_version: view.policy_version,
            budget: view.budget,
            tokens: view.tokens,
            factor: f64::from(view.factor_thousandths) / 1000.0,
            epoch: view.epoch,
            segments: view.segments.into_iter().map(ContextSegment::from).collect(),
        })
    }

    /// Like [`Orchestrator::context`], as text for people.
    pub async fn context_text(&self, id: JobId, at: Option<Sequence>) -> Result<String, OrchestratorError> {
        Ok(self.explained(id, at).await?.0.render())
    }

    /// The events up to `at` that concern the agent, and the sequence of the newest event read. Reads page by page:
    /// most of a log is command output, which is not needed here.
    async fn agent_log(
        &self,
        id: JobId,
        at: Option<Sequence>,
    ) -> Result<(Vec<agent::SequencedEvent>, Sequence), OrchestratorError> {
        let (mut log, mut newest) = (Vec::new(), 0);
        loop {
            let left = at.map_or(PAGE, |at| PAGE.min(usize::try_from(at - newest).unwrap_or(PAGE)));
            let events = self.core.store.events(id, newest, left).await?;
            log.extend(events.iter().filter_map(logged));
            newest = events.last().map_or(newest, |event| event.sequence);
            // A page may be short because of its size in bytes; only an empty page is the end.
            if events.is_empty() || at.is_some_and(|at| newest >= at) {
                return Ok((log, newest));
            }
        }
    }

    async fn explained(
        &self,
        id: JobId,
        at: Option<Sequence>,
    ) -> Result<(Explanation, String, bool), OrchestratorError> {
        self.core.store.job(id).await?;
        // `at = 0` reads the whole log, so that the error can say how many events there are.
        let (log, newest) = self.agent_log(id, at.filter(|at| *at > 0)).await?;
        if let Some(at) = at.filter(|at| *at == 0 || *at > newest) {
            return Err(OrchestratorError::NoEvent { at, newest });
        }
        let made = tokio::task::spawn_blocking(move || agent::replay(&log));
        let broken =
            |why: String| OrchestratorError::Agent { why: format!("its log cannot be replayed: {why}") };
        let replayed = made.await.map_err(|error| broken(error.to_string()))?;
        let replayed = replayed.map_err(|error| broken(describe(&error)))?;
        let conversation = replayed.ok_or(OrchestratorError::NoContext(id))?;
        let engine = conversation.engine();
        let mut view = engine.view();
        if let Some(status) = conversation.asked() {
            view = view.with_volatile(status);
        }
        let mut explained = explain::explain_view(engine, &view);
        explained.at = Some(EventId(newest));
        let model = engine.window().map(|window| window.model.clone()).unwrap_or_default();
        let is_by_our_rules = engine.window().is_some_and(|window| window.policy_version == POLICY_VERSION);
        Ok((explained, model, is_by_our_rules && conversation.asked().is_some()))
    }
}
