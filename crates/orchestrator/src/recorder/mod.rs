//! Appends to the log of one job on behalf of its owner. Several tasks share a recorder: the driver, outbound
//! connections, and API calls.
//!
//! It also reads what others have appended (a control request, an answer), in log order. The agent's state is a fold
//! over that order, and must be the same now and after a restart.

pub(crate) mod agent_log;
pub(crate) mod operator_wait;
pub(crate) mod redact;
pub(crate) mod refused_connections;
pub(crate) mod running_calls;
pub(crate) mod time_limit;

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use agent::ToolEffect;
use egress::Redactor;
use job::{
    CallRef, CallStatus, Event, EventBody, EventKind, Fence, Generation, JobId, JobView, Kinds, NewEvent,
    Sequence, Transition, WITHOUT_OUTPUT, tool_effect,
};
use store::{Store, StoreError};
use tokio::sync::{Mutex, MutexGuard, Notify, mpsc, oneshot, watch};

use crate::clock::now_ms;
use crate::error::OrchestratorError;
use crate::recorder::agent_log::AgentLog;
use crate::recorder::operator_wait::Waiting;
use crate::recorder::redact::redact_event;
use crate::recorder::refused_connections::RefusedConnections;
use crate::recorder::running_calls::RunningCalls;
use crate::recorder::time_limit::TimeLimit;

/// How often a store error of unknown cause is retried.
const MAX_TRIES: u32 = 6;

pub(crate) struct Recorder {
    store: Arc<dyn Store>,
    job: JobId,
    generation: Generation,
    written: Mutex<Written>,
    changed: Notify,
    waiting: Waiting,
    time_limit: TimeLimit,
    /// Number of ended calls that may have written files without logging which.
    writing_calls: watch::Sender<u64>,
    /// Masks the values of the job's secrets.
    redactor: OnceLock<Redactor>,
    /// Requests that pending connection events be appended.
    flushes: OnceLock<Flushes>,
}

/// Requests that pending connection events be appended; the sender is notified once they are.
pub(crate) type Flushes = mpsc::Sender<oneshot::Sender<()>>;

struct Written {
    view: JobView,
    time_limit: TimeLimit,
    log: AgentLog,
    last: Sequence,
    /// Events that the agent has not seen yet; `None` while no agent follows the log.
    unread_events: Option<Vec<Event>>,
    /// Whether a call that may write files without logging which runs or has run.
    is_writing: bool,
    /// Tracing spans of running calls.
    calls: HashMap<CallRef, tracing::Span>,
    /// Started calls, as far as this recorder appended them; complete once `has_read_all_calls` is set.
    made: HashSet<CallRef>,
    has_read_all_calls: bool,
    running: RunningCalls,
    /// Refused connections of running calls.
    refused: RefusedConnections,
    /// Whether the log contains a connection.
    has_connections: bool,
}

/// Whether a call may change files without saying so in the log.
fn may_write_unlogged(tool: &str) -> bool {
    matches!(tool_effect(tool), None | Some(ToolEffect::Writes | ToolEffect::Screen | ToolEffect::Anything))
}

fn is_connection(event: &Event) -> bool {
    matches!(event.body, EventBody::Egress(_))
}

impl Written {
    fn take(&mut self, events: &[Event]) {
        for event in events {
            self.view.apply(event);
            self.last = event.sequence;
            self.trace(event);
            self.running.take(event);
            self.refused.take(event);
            self.has_connections |= is_connection(event);
            if let Some(unread_events) = &mut self.unread_events
                && !matches!(
                    event.body,
                    EventBody::CallOutput { .. }
                        | EventBody::CallOutputDropped { .. }
                        | EventBody::CallDisplay { .. }
                        | EventBody::Egress(_)
                        | EventBody::FilesChanged(_)
                )
            {
                unread_events.push(event.clone());
            }
        }
        self.time_limit.update(&self.view);
        self.log.append(events);
    }

    /// Returns whether a call ended in `events` that may have written files without logging which.
    fn track_writing_calls(&mut self, events: &[Event]) -> bool {
        let mut has_ended = false;
        for event in events {
            match &event.body {
                EventBody::CallStarted { tool, .. } if may_write_unlogged(tool) => {
                    self.is_writing = true;
                }
                EventBody::CallEnded(_) => has_ended |= std::mem::take(&mut self.is_writing),
                _ => {}
            }
        }
        has_ended
    }
}

impl Written {
    /// Opens a tracing span when a call starts, and closes it when the call ends.
    fn trace(&mut self, event: &Event) {
        let Some(call) = &event.call else { return };
        match &event.body {
            EventBody::CallStarted { .. } => {
                self.made.insert(call.clone());
                let span = tracing::info_span!(
                    target: "caisson_trace", "call", call = call.id, attempt = call.attempt, outcome = tracing::field::Empty
                );
                self.calls.insert(call.clone(), span);
            }
            EventBody::CallEnded(end) => {
                if let Some(span) = self.calls.remove(call) {
                    let outcome = if end.status == CallStatus::Succeeded { "succeeded" } else { "failed" };
                    span.record("outcome", outcome);
                }
            }
            _ => {}
        }
    }
}

impl Recorder {
    /// `last` is the newest event that `view` includes.
    pub(crate) fn new(
        store: Arc<dyn Store>,
        job: JobId,
        generation: Generation,
        view: JobView,
        log: AgentLog,
        last: Sequence,
    ) -> Self {
        let time_limit = TimeLimit::of(&view);
        // While its sandbox was frozen, the job waited for the operator.
        let frozen_ms = u64::try_from(view.frozen_until(now_ms())).unwrap_or(0);
        let written = Mutex::new(Written {
            view,
            time_limit: time_limit.clone(),
            log,
            last,
            unread_events: None,
            is_writing: false,
            calls: HashMap::new(),
            made: HashSet::new(),
            has_read_all_calls: false,
            running: RunningCalls::default(),
            refused: RefusedConnections::default(),
            has_connections: false,
        });
        Self {
            store,
            job,
            generation,
            written,
            changed: Notify::new(),
            waiting: Waiting::after(Duration::from_millis(frozen_ms)),
            time_limit,
            writing_calls: watch::Sender::new(0),
            redactor: OnceLock::new(),
            flushes: OnceLock::new(),
        }
    }

    /// Initializes the state that depends on earlier events of the job.
    pub(crate) fn after(mut self, past: &[Event]) -> Self {
        let written = self.written.get_mut();
        written.has_connections = past.iter().any(is_connection);
        past.iter().for_each(|event| written.running.take(event));
        self
    }

    /// Whether a call is in progress.
    pub(crate) async fn has_running_calls(&self) -> bool {
        !self.written.lock().await.running.is_empty()
    }

    /// Whether the log contains a connection.
    pub(crate) async fn has_connections(&self) -> bool {
        self.written.lock().await.has_connections
    }

    /// From now on, masks these values in everything that is appended.
    pub(crate) fn cover(&self, redactor: Redactor) {
        let _ = self.redactor.set(redactor);
    }

    /// Counts ended calls that may have written files without logging which.
    pub(crate) fn writing_calls(&self) -> watch::Receiver<u64> {
        self.writing_calls.subscribe()
    }

    /// Masks the values of the job's secrets.
    pub(crate) fn redactor(&self) -> Redactor {
        self.redactor.get().cloned().unwrap_or_else(|| Redactor::new([]))
    }

    /// Sets the channel to the task that appends connection events.
    pub(crate) fn set_connection_flusher(&self, flushes: Flushes) {
        let _ = self.flushes.set(flushes);
    }

    /// Waits until all connection events reported so far are appended.
    pub(crate) async fn flush_connections(&self) {
        let Some(flushes) = self.flushes.get() else { return };
        let (done, written) = oneshot::channel();
        if flushes.send(done).await.is_ok() {
            let _ = written.await;
        }
    }

    /// Describes the refused connections of an ended call, and of the kernel that ran it, that the client could not show;
    /// `None` if there were none.
    pub(crate) async fn refusals_of(&self, call: &CallRef, kernel: Option<&str>) -> Option<String> {
        self.flush_connections().await;
        let Written { refused, view, .. } = &mut *self.written.lock().await;
        refused.tell(call, kernel, &view.egress)
    }

    pub(crate) fn job(&self) -> JobId {
        self.job
    }

    /// The generation of the lease under which events are appended.
    pub(crate) fn generation(&self) -> Generation {
        self.generation
    }

    /// The view after all events appended so far.
    pub(crate) async fn view(&self) -> JobView {
        self.written.lock().await.view.clone()
    }

    /// Part of the view after all events appended so far.
    pub(crate) async fn with_view<T>(&self, read: impl FnOnce(&JobView) -> T) -> T {
        read(&self.written.lock().await.view)
    }

    /// Whether the job has started this call, whatever a process in the sandbox claims.
    pub(crate) async fn has_started_call(&self, call: &CallRef) -> bool {
        let mut written = self.written.lock().await;
        if !written.made.contains(call) && !written.has_read_all_calls {
            // Add calls from before a server restart; the log is read for them only once.
            let started = self.store.all_events(self.job, Kinds::Only(&[EventKind::CallStarted]), 0).await;
            written.made.extend(started.unwrap_or_default().into_iter().filter_map(|event| event.call));
            written.has_read_all_calls = true;
        }
        written.made.contains(call)
    }

    /// Sequence of the newest event seen.
    pub(crate) async fn last(&self) -> Sequence {
        self.written.lock().await.last
    }

    /// The whole log without output. Afterwards, [`Recorder::take_news`] returns the events that follow.
    pub(crate) async fn follow_events(&self) -> Result<Vec<Event>, OrchestratorError> {
        let mut written = self.written.lock().await;
        let events = self.store.all_events(self.job, WITHOUT_OUTPUT, 0).await?;
        let newest = events.last().map_or(0, |event| event.sequence);
        written.unread_events = None;
        let last = written.last;
        let mut take = |missed: Vec<Event>| {
            // Another writer may have appended while the log was read.
            let (known, later) = missed.split_at(missed.partition_point(|event| event.sequence <= newest));
            written.take(known);
            if !later.is_empty() {
                written.unread_events.get_or_insert_default();
                written.take(later);
            }
        };
        self.store.each_page(self.job, Kinds::All, last, &mut take).await?;
        written.unread_events.get_or_insert_default();
        Ok(events)
    }

    /// The events since the last call, in log order, without output and connections.
    pub(crate) async fn take_news(&self) -> Vec<Event> {
        self.written.lock().await.unread_events.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Reads what others have appended. Does nothing while the driver waits for the database: it reads the events
    /// when it continues.
    pub(crate) async fn catch_up(&self) -> Result<(), OrchestratorError> {
        let Ok(mut written) = self.lock_now().await else { return Ok(()) };
        let last = written.last;
        self.store.each_page(self.job, Kinds::All, last, &mut |events| written.take(&events)).await?;
        drop(written);
        self.changed.notify_waiters();
        Ok(())
    }

    /// Resolves at the next append after this call.
    pub(crate) fn changed(&self) -> tokio::sync::futures::Notified<'_> {
        self.changed.notified()
    }

    /// What the job waits for that needs the operator.
    pub(crate) fn waiting(&self) -> &Waiting {
        &self.waiting
    }

    pub(crate) fn time_limit(&self) -> &TimeLimit {
        &self.time_limit
    }

    /// Locks the log for a caller that must not wait with the job: fails while the job waits.
    async fn lock_now(&self) -> Result<MutexGuard<'_, Written>, OrchestratorError> {
        tokio::select! {
            biased;
            written = self.written.lock() => Ok(written),
            error = self.waiting.begun() => Err(error),
        }
    }

    /// Appends events; they are durable when this returns. Waits and retries while the database cannot be written, so
    /// the job stalls but loses nothing. Any other store error is returned after a few tries.
    pub(crate) async fn append(&self, events: Vec<NewEvent>) -> Result<Vec<Event>, OrchestratorError> {
        let mut written = self.written.lock().await;
        self.append_locked(&mut written, events).await
    }

    /// Like [`Recorder::append`] for API callers: fails at once if the events cannot be appended now.
    pub(crate) async fn append_now(&self, events: Vec<NewEvent>) -> Result<Vec<Event>, OrchestratorError> {
        self.append_now_if(events, |_| Ok(())).await
    }

    /// Like [`Recorder::append_now`], unless `check` refuses. No event is appended between the check and these events.
    pub(crate) async fn append_now_if(
        &self,
        events: Vec<NewEvent>,
        check: impl FnOnce(&JobView) -> Result<(), OrchestratorError> + Send,
    ) -> Result<Vec<Event>, OrchestratorError> {
        let mut written = self.lock_now().await?;
        check(&written.view)?;
        let placed = self.place(self.covered(events)).await?;
        self.take_placed(&mut written, &placed).await?;
        Ok(placed)
    }

    /// Stores bytes that an event will refer to and returns their digest. Waits like [`Recorder::append`].
    pub(crate) async fn put_blob(&self, bytes: Vec<u8>) -> Result<String, OrchestratorError> {
        let mut tries = self.waiting.tries();
        loop {
            match self.store.put_blob(self.job, bytes.clone()).await.map_err(OrchestratorError::from) {
                Err(error) if should_retry(&error, tries.count()) => {
                    tracing::warn!(job = %self.job, %error, "a payload cannot be stored, trying again");
                    tries.pause(&error).await;
                }
                other => return other,
            }
        }
    }

    pub(crate) async fn record(&self, event: impl Into<NewEvent>) -> Result<(), OrchestratorError> {
        self.append(vec![event.into()]).await.map(drop)
    }

    /// Applies a state transition, with a code and a reason, and appends `before` in the same transaction.
    pub(crate) async fn change(
        &self,
        before: Vec<NewEvent>,
        transition: Transition,
        why: Option<StateReason>,
    ) -> Result<(), OrchestratorError> {
        self.append_transition(before, transition, why, Vec::new()).await
    }

    /// Applies a state transition and appends `after` in the same transaction.
    pub(crate) async fn transition_then(
        &self,
        transition: Transition,
        after: Vec<NewEvent>,
    ) -> Result<(), OrchestratorError> {
        self.append_transition(Vec::new(), transition, None, after).await
    }

    async fn append_transition(
        &self,
        before: Vec<NewEvent>,
        transition: Transition,
        why: Option<StateReason>,
        after: Vec<NewEvent>,
    ) -> Result<(), OrchestratorError> {
        let mut written = self.written.lock().await;
        let state = written.view.state.after(transition)?;
        let (code, reason) = why.map_or((None, None), |why| (Some(why.code), Some(why.reason)));
        let mut events = before;
        let told = code.clone().unwrap_or_default();
        events.push(EventBody::StateChanged { state, code, reason }.into());
        events.extend(after);
        self.append_locked(&mut written, events).await?;
        if state.is_over() {
            tracing::info!(job = %self.job, %state, code = told, "the job is over");
        } else {
            tracing::debug!(job = %self.job, %state, code = told, "the job continues");
        }
        Ok(())
    }

    async fn append_locked(
        &self,
        written: &mut Written,
        events: Vec<NewEvent>,
    ) -> Result<Vec<Event>, OrchestratorError> {
        if events.is_empty() {
            return Ok(Vec::new());
        }
        let events = self.covered(events);
        let mut tries = self.waiting.tries();
        let placed = loop {
            match self.place(events.clone()).await {
                Ok(placed) => break placed,
                Err(error) if should_retry(&error, tries.count()) => {
                    tracing::warn!(job = %self.job, %error, "the log cannot be written, trying again");
                    tries.pause(&error).await;
                }
                Err(error) => return Err(error),
            }
        };
        drop(tries);
        self.take_placed(written, &placed).await?;
        Ok(placed)
    }

    fn covered(&self, events: Vec<NewEvent>) -> Vec<NewEvent> {
        match self.redactor.get() {
            Some(redactor) => events.into_iter().map(|event| redact_event(event, redactor)).collect(),
            None => events,
        }
    }

    async fn place(&self, events: Vec<NewEvent>) -> Result<Vec<Event>, OrchestratorError> {
        Ok(self.store.append(self.job, Fence::Owner(self.generation), events).await?)
    }

    /// Applies the appended events, after those that others appended before them.
    async fn take_placed(&self, written: &mut Written, placed: &[Event]) -> Result<(), OrchestratorError> {
        let first = placed.first().map_or(0, |event| event.sequence);
        while first > written.last + 1 {
            // Another writer appended in between.
            let missing = usize::try_from(first - written.last - 1).unwrap_or(usize::MAX);
            let missed = self.store.events(self.job, written.last, missing).await?;
            if missed.is_empty() {
                break;
            }
            written.take(&missed);
        }
        written.take(placed);
        if written.track_writing_calls(placed) {
            self.writing_calls.send_modify(|count| *count += 1);
        }
        self.changed.notify_waiters();
        Ok(())
    }
}

/// Whether to retry: without limit for errors that the operator can resolve, a few times for errors of unknown cause.
fn should_retry(error: &OrchestratorError, tries: u32) -> bool {
    error.needs_operator()
        || matches!(error, OrchestratorError::Store(StoreError::Failed { .. })) && tries < MAX_TRIES
}

/// Why a job waits or ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StateReason {
    /// Machine-readable.
    pub(crate) code: String,
    /// Human-readable.
    pub(crate) reason: String,
}

impl StateReason {
    pub(crate) fn new(code: &str, reason: impl Into<String>) -> Self {
        Self { code: code.to_owned(), reason: reason.into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use job::{JobDefaults, NewJob};
    use store::{Created, NewRecord, SqliteStore};

    async fn recorder(folder: &std::path::Path) -> (Arc<SqliteStore>, Arc<Recorder>) {
        let store = Arc::new(SqliteStore::open(&folder.join("caisson.db")).unwrap());
        let id = JobId::generate();
        let json = r#"{"steps":[{"tool":"shell","command":"true"}]}"#;
        let spec = serde_json::from_str::<NewJob>(json).unwrap().check(&JobDefaults::default()).unwrap();
        let record = NewRecord { id, spec, events: Vec::new(), idempotency: None };
        let Created::New(view) = store.create(record).await.unwrap() else { panic!("it is new") };
        let generation = store.claim(id, 60_000).await.unwrap().unwrap();
        let log = AgentLog::start(&folder.join("agent.log")).unwrap();
        let shared: Arc<dyn Store> = Arc::<SqliteStore>::clone(&store);
        (store, Arc::new(Recorder::new(shared, id, generation, *view, log, 1)))
    }

    /// More than fits into the free space of the pages that the database already has.
    fn many_notes() -> Vec<NewEvent> {
        (0..100).map(|_| EventBody::Note { text: "x".repeat(4000) }.into()).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn driver_waits_for_a_full_database_and_api_calls_fail_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let (store, recorder) = recorder(folder.path()).await;
        store.set_full(true).await.unwrap();
        let driver = tokio::spawn({
            let recorder = Arc::clone(&recorder);
            async move { recorder.append(many_notes()).await }
        });
        assert!(matches!(recorder.waiting().begun().await, OrchestratorError::Store(StoreError::DiskFull)));
        let refused = recorder.append_now(vec![EventBody::Note { text: "now".into() }.into()]).await;
        assert!(matches!(refused, Err(OrchestratorError::Store(StoreError::DiskFull))), "{refused:?}");
        recorder.catch_up().await.unwrap();
        assert!(recorder.waiting().cause().is_some() && !driver.is_finished(), "the driver waits on");
        store.set_full(false).await.unwrap();
        assert_eq!(driver.await.unwrap().unwrap().len(), 100);
        assert!(recorder.last().await == 101 && recorder.waiting().cause().is_none());
        assert!(!recorder.waiting().total().is_zero());
    }

    #[tokio::test]
    async fn time_limit_follows_the_events_of_every_writer() {
        let folder = tempfile::tempdir().unwrap();
        let (store, recorder) = recorder(folder.path()).await;
        let changed_to = |after_ms| -> Vec<NewEvent> {
            vec![EventBody::TimeLimitChanged { before_ms: 1, after_ms }.into()]
        };
        let limit = || recorder.time_limit().changed_to().map(|limit| limit.as_secs());
        assert_eq!(limit(), None);
        recorder.append(changed_to(2000)).await.unwrap();
        assert_eq!(limit(), Some(2));
        store.append(recorder.job(), Fence::Anybody, changed_to(3000)).await.unwrap();
        recorder.catch_up().await.unwrap();
        assert_eq!(limit(), Some(3));
    }

    #[test]
    fn errors_that_need_the_operator_are_retried_without_limit() {
        let unavailable = StoreError::Unavailable { why: "read-only".into() };
        for error in [unavailable, StoreError::DiskFull, StoreError::Busy] {
            let error = OrchestratorError::from(error);
            assert!(should_retry(&error, u32::MAX), "{error}");
        }
        let unknown =
            StoreError::Failed { what: "storing an event".into(), source: "constraint".into() }.into();
        assert!(should_retry(&unknown, 0) && !should_retry(&unknown, MAX_TRIES));
    }
}
