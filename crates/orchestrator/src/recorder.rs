//! Writes to the log of one job, on behalf of its owner. Several tasks may share it: the driver, outgoing
//! connections, and calls that come over the API.
//!
//! It also sees what others have written (a wish, an answer), in the order of the log: an agent's state is a fold over
//! that order, and must be the same now and after a restart.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, OnceLock};

use egress::Redactor;
use tokio::sync::{Mutex, MutexGuard, Notify, mpsc, oneshot, watch};

use crate::agent_log::AgentLog;
use crate::error::OrchestratorError;
use crate::event::{CallRef, CallStatus, Event, EventBody, Fence, NewEvent};
use crate::ids::{Generation, JobId, Sequence};
use crate::outward::cover_event;
use crate::refused::RefusedOfCalls;
use crate::state::Happening;
use crate::store::{Kinds, Store, WITHOUT_OUTPUT};
use crate::view::JobView;
use crate::waiting::Waiting;

/// How often what has no known reason is tried again.
const MOST_TRIES: u32 = 6;

/// Writes to the log of one job.
pub(crate) struct Recorder {
    store: Arc<dyn Store>,
    job: JobId,
    generation: Generation,
    written: Mutex<Written>,
    changed: Notify,
    waiting: Waiting,
    /// How many calls have ended that may have written files without saying which.
    writing_calls: watch::Sender<u64>,
    /// Covers the values of the job's secrets.
    redactor: OnceLock<Redactor>,
    /// Asks for what was told of connections to be written down.
    flushes: OnceLock<Flushes>,
}

/// Asks for what was told of connections to be written down; answered when it is.
pub(crate) type Flushes = mpsc::Sender<oneshot::Sender<()>>;

struct Written {
    view: JobView,
    log: AgentLog,
    last: Sequence,
    /// Events that an agent has not seen yet; nothing is kept while nobody wants them.
    news: Option<Vec<Event>>,
    /// Whether a call runs, or has run, that may write files without saying which.
    is_writing: bool,
    /// Calls that run, for a collector of traces.
    calls: HashMap<CallRef, tracing::Span>,
    /// Calls that were made, as far as they were written here; all of them once the log was read for it.
    made: HashSet<CallRef>,
    knows_all_made: bool,
    /// What the calls that run were refused.
    refused: RefusedOfCalls,
    /// Whether the log has a connection.
    has_connections: bool,
}

/// Tools that write nothing, or whose calls tell in the log what they write.
const KNOWN_TOOLS: [&str; 17] = [
    "write_file",
    "edit_file",
    "move_file",
    "delete_file",
    "make_directory",
    "read_file",
    "list_files",
    "search_files",
    "screenshot",
    "http_request",
    "plan",
    "notes",
    "history_search",
    "history_read",
    "ask_user",
    "finish",
    "wait",
];

fn is_connection(event: &Event) -> bool {
    matches!(event.body, EventBody::Egress(_))
}

impl Written {
    fn take(&mut self, events: &[Event]) {
        for event in events {
            self.view.apply(event);
            self.last = event.sequence;
            self.trace(event);
            self.refused.take(event);
            self.has_connections |= is_connection(event);
            if let Some(news) = &mut self.news
                && !matches!(
                    event.body,
                    EventBody::CallOutput { .. }
                        | EventBody::CallOutputDropped { .. }
                        | EventBody::CallDisplay { .. }
                        | EventBody::Egress(_)
                        | EventBody::FilesChanged(_)
                )
            {
                news.push(event.clone());
            }
        }
        self.log.append(events);
    }

    /// Whether a call has ended here that may have written files without saying which.
    fn see_writing(&mut self, events: &[Event]) -> bool {
        let mut has_ended = false;
        for event in events {
            match &event.body {
                EventBody::CallStarted { tool, .. } if !KNOWN_TOOLS.contains(&tool.as_str()) => {
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
    /// A call is a span from its start to its end.
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
    /// `last` is the newest event that the view knows.
    pub(crate) fn new(
        store: Arc<dyn Store>,
        job: JobId,
        generation: Generation,
        view: JobView,
        log: AgentLog,
        last: Sequence,
    ) -> Self {
        let written = Mutex::new(Written {
            view,
            log,
            last,
            news: None,
            is_writing: false,
            calls: HashMap::new(),
            made: HashSet::new(),
            knows_all_made: false,
            refused: RefusedOfCalls::default(),
            has_connections: false,
        });
        Self {
            store,
            job,
            generation,
            written,
            changed: Notify::new(),
            waiting: Waiting::default(),
            writing_calls: watch::Sender::new(0),
            redactor: OnceLock::new(),
            flushes: OnceLock::new(),
        }
    }

    /// The same for a job that has a past.
    pub(crate) fn after(mut self, past: &[Event]) -> Self {
        self.written.get_mut().has_connections = past.iter().any(is_connection);
        self
    }

    /// Whether the log has a connection.
    pub(crate) async fn has_connections(&self) -> bool {
        self.written.lock().await.has_connections
    }

    /// From now on these values are covered in whatever is written.
    pub(crate) fn cover(&self, redactor: Redactor) {
        let _ = self.redactor.set(redactor);
    }

    /// Counts calls that have ended and may have written files without saying which.
    pub(crate) fn writing_calls(&self) -> watch::Receiver<u64> {
        self.writing_calls.subscribe()
    }

    /// What covers the values of the job's secrets.
    pub(crate) fn redactor(&self) -> Redactor {
        self.redactor.get().cloned().unwrap_or_else(|| Redactor::new([]))
    }

    /// From now on connections are written down by who takes these.
    pub(crate) fn settle_by(&self, flushes: Flushes) {
        let _ = self.flushes.set(flushes);
    }

    /// Returns when all that was told of connections so far is written down.
    pub(crate) async fn settle_connections(&self) {
        let Some(flushes) = self.flushes.get() else { return };
        let (done, written) = oneshot::channel();
        if flushes.send(done).await.is_ok() {
            let _ = written.await;
        }
    }

    /// What a call that has ended was refused and its client could not show; `None` where there was nothing.
    pub(crate) async fn refusals_of(&self, call: &CallRef) -> Option<String> {
        self.settle_connections().await;
        let Written { refused, view, .. } = &mut *self.written.lock().await;
        refused.tell(call, &view.egress)
    }

    /// The job that is written about.
    pub(crate) fn job(&self) -> JobId {
        self.job
    }

    /// The view after everything that was written so far.
    pub(crate) async fn view(&self) -> JobView {
        self.written.lock().await.view.clone()
    }

    /// Something of the view after everything that was written so far.
    pub(crate) async fn look<T>(&self, look: impl FnOnce(&JobView) -> T) -> T {
        look(&self.written.lock().await.view)
    }

    /// Whether the job has made a call, whatever somebody in the sandbox claims.
    pub(crate) async fn has_made(&self, call: &CallRef) -> bool {
        let mut written = self.written.lock().await;
        if !written.made.contains(call) && !written.knows_all_made {
            // Those of before a restart of the server; the log is read for them once.
            let started = self.store.all_events(self.job, Kinds::Only(&["call_started"]), 0).await;
            written.made.extend(started.unwrap_or_default().into_iter().filter_map(|event| event.call));
            written.knows_all_made = true;
        }
        written.made.contains(call)
    }

    /// The newest event that was written.
    pub(crate) async fn last(&self) -> Sequence {
        self.written.lock().await.last
    }

    /// The whole log without output, and from then on [`Recorder::take_news`] has what comes after it.
    pub(crate) async fn follow_news(&self) -> Result<Vec<Event>, OrchestratorError> {
        let mut written = self.written.lock().await;
        let events = self.store.all_events(self.job, WITHOUT_OUTPUT, 0).await?;
        let newest = events.last().map_or(0, |event| event.sequence);
        written.news = None;
        let last = written.last;
        let mut take = |missed: Vec<Event>| {
            // Somebody else may have written while this was read.
            let (known, later) = missed.split_at(missed.partition_point(|event| event.sequence <= newest));
            written.take(known);
            if !later.is_empty() {
                written.news.get_or_insert_default();
                written.take(later);
            }
        };
        self.store.each_page(self.job, Kinds::All, last, &mut take).await?;
        written.news.get_or_insert_default();
        Ok(events)
    }

    /// What was written since it was last asked, in the order of the log. Output and connections are left out.
    pub(crate) async fn take_news(&self) -> Vec<Event> {
        self.written.lock().await.news.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Takes in what others have written. A driver that waits for the database takes it in when it goes on.
    pub(crate) async fn catch_up(&self) -> Result<(), OrchestratorError> {
        let Ok(mut written) = self.lock_now().await else { return Ok(()) };
        let last = written.last;
        self.store.each_page(self.job, Kinds::All, last, &mut |events| written.take(&events)).await?;
        drop(written);
        self.changed.notify_waiters();
        Ok(())
    }

    /// Returns when something was written after this was called.
    pub(crate) fn changed(&self) -> tokio::sync::futures::Notified<'_> {
        self.changed.notified()
    }

    /// What the job waits for that the operator must give.
    pub(crate) fn waiting(&self) -> &Waiting {
        &self.waiting
    }

    /// The log, for somebody who does not wait with the job: an error while it waits.
    async fn lock_now(&self) -> Result<MutexGuard<'_, Written>, OrchestratorError> {
        tokio::select! {
            biased;
            written = self.written.lock() => Ok(written),
            error = self.waiting.begun() => Err(error),
        }
    }

    /// Appends events; they are durable when this returns. While the database cannot be written it waits and tries
    /// again: the job stands still, and nothing is lost. Any other failure of the store is an error after a few tries.
    pub(crate) async fn append(&self, events: Vec<NewEvent>) -> Result<Vec<Event>, OrchestratorError> {
        let mut written = self.written.lock().await;
        self.append_locked(&mut written, events).await
    }

    /// The same for a caller of the API, who is told at once that it cannot be done now.
    pub(crate) async fn append_now(&self, events: Vec<NewEvent>) -> Result<Vec<Event>, OrchestratorError> {
        let mut written = self.lock_now().await?;
        let placed = self.place(self.covered(events)).await?;
        self.take_placed(&mut written, &placed).await?;
        Ok(placed)
    }

    /// Stores bytes that an event will refer to, and waits as [`Recorder::append`] does; their digest.
    pub(crate) async fn put_blob(&self, bytes: Vec<u8>) -> Result<String, OrchestratorError> {
        let mut tries = self.waiting.tries();
        loop {
            match self.store.put_blob(self.job, bytes.clone()).await {
                Err(error) if may_pass(&error, tries.count()) => {
                    tracing::warn!(job = %self.job, %error, "a payload cannot be stored, trying again");
                    tries.pause(&error).await;
                }
                other => return other,
            }
        }
    }

    /// Appends one event.
    pub(crate) async fn record(&self, event: impl Into<NewEvent>) -> Result<(), OrchestratorError> {
        self.append(vec![event.into()]).await.map(drop)
    }

    /// Changes the state of the job, with a code and a reason, and what else happened at the same moment.
    pub(crate) async fn change(
        &self,
        before: Vec<NewEvent>,
        happening: Happening,
        why: Option<Why>,
    ) -> Result<(), OrchestratorError> {
        self.change_among(before, happening, why, Vec::new()).await
    }

    /// Changes the state of the job, and writes what follows from it at the same moment.
    pub(crate) async fn change_then(
        &self,
        happening: Happening,
        after: Vec<NewEvent>,
    ) -> Result<(), OrchestratorError> {
        self.change_among(Vec::new(), happening, None, after).await
    }

    async fn change_among(
        &self,
        before: Vec<NewEvent>,
        happening: Happening,
        why: Option<Why>,
        after: Vec<NewEvent>,
    ) -> Result<(), OrchestratorError> {
        let mut written = self.written.lock().await;
        let state = written.view.state.after(happening)?;
        let (code, reason) = why.map_or((None, None), |why| (Some(why.code), Some(why.reason)));
        let mut events = before;
        let told = code.clone().unwrap_or_default();
        events.push(EventBody::StateChanged { state, code, reason }.into());
        events.extend(after);
        self.append_locked(&mut written, events).await?;
        if state.is_over() {
            tracing::info!(job = %self.job, %state, code = told, "the job is over");
        } else {
            tracing::debug!(job = %self.job, %state, code = told, "the job goes on");
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
                Err(error) if may_pass(&error, tries.count()) => {
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
            Some(redactor) => events.into_iter().map(|event| cover_event(event, redactor)).collect(),
            None => events,
        }
    }

    async fn place(&self, events: Vec<NewEvent>) -> Result<Vec<Event>, OrchestratorError> {
        self.store.append(self.job, Fence::Owner(self.generation), events).await
    }

    /// Takes in what was appended, and what others have written before it.
    async fn take_placed(&self, written: &mut Written, placed: &[Event]) -> Result<(), OrchestratorError> {
        let first = placed.first().map_or(0, |event| event.sequence);
        while first > written.last + 1 {
            // Somebody else has written in between.
            let missing = usize::try_from(first - written.last - 1).unwrap_or(usize::MAX);
            let missed = self.store.events(self.job, written.last, missing).await?;
            if missed.is_empty() {
                break;
            }
            written.take(&missed);
        }
        written.take(placed);
        if written.see_writing(placed) {
            self.writing_calls.send_modify(|count| *count += 1);
        }
        self.changed.notify_waiters();
        Ok(())
    }
}

/// What passes is waited for as long as it takes; what nobody knows the reason of, for a while.
fn may_pass(error: &OrchestratorError, tries: u32) -> bool {
    error.is_passing() || matches!(error, OrchestratorError::Store { .. }) && tries < MOST_TRIES
}

/// Why a job waits or ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Why {
    /// For programs.
    pub(crate) code: String,
    /// For people.
    pub(crate) reason: String,
}

impl Why {
    pub(crate) fn new(code: &str, reason: impl Into<String>) -> Self {
        Self { code: code.to_owned(), reason: reason.into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::{JobDefaults, NewJob};
    use crate::store::{Created, NewRecord, SqliteStore};

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

    /// Too much for what a database has free in the pages that it has.
    fn many_notes() -> Vec<NewEvent> {
        (0..100).map(|_| EventBody::Note { text: "x".repeat(4000) }.into()).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn a_job_waits_for_its_database_and_callers_of_the_api_do_not() {
        let folder = tempfile::tempdir().unwrap();
        let (store, recorder) = recorder(folder.path()).await;
        store.set_full(true).await;
        let driver = tokio::spawn({
            let recorder = Arc::clone(&recorder);
            async move { recorder.append(many_notes()).await }
        });
        assert!(matches!(recorder.waiting().begun().await, OrchestratorError::DiskFull));
        let refused = recorder.append_now(vec![EventBody::Note { text: "now".into() }.into()]).await;
        assert!(matches!(refused, Err(OrchestratorError::DiskFull)), "{refused:?}");
        recorder.catch_up().await.unwrap();
        assert!(recorder.waiting().cause().is_some() && !driver.is_finished(), "the driver waits on");
        store.set_full(false).await;
        assert_eq!(driver.await.unwrap().unwrap().len(), 100);
        assert!(recorder.last().await == 101 && recorder.waiting().cause().is_none());
        assert!(!recorder.waiting().total().is_zero());
    }

    #[test]
    fn what_passes_is_waited_for_as_long_as_it_takes() {
        let unavailable = OrchestratorError::StoreUnavailable { why: "read-only".into() };
        for error in [unavailable, OrchestratorError::DiskFull, OrchestratorError::StoreBusy] {
            assert!(may_pass(&error, u32::MAX), "{error}");
        }
        let unknown =
            OrchestratorError::Store { what: "storing an event".into(), source: "constraint".into() };
        assert!(may_pass(&unknown, 0) && !may_pass(&unknown, MOST_TRIES));
    }
}
