//! Writes to the log of one job, on behalf of its owner. Several tasks may share it: the driver, outgoing
//! connections, and calls that come over the API.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Mutex;

use crate::agent_log::AgentLog;
use crate::error::OrchestratorError;
use crate::event::{Event, EventBody, Fence, NewEvent};
use crate::ids::{Generation, JobId};
use crate::state::Happening;
use crate::store::Store;
use crate::view::JobView;

/// How long to wait before a write that failed is tried again.
const RETRY_PAUSE: Duration = Duration::from_millis(500);

/// Writes to the log of one job.
pub(crate) struct Recorder {
    store: Arc<dyn Store>,
    job: JobId,
    generation: Generation,
    written: Mutex<Written>,
}

struct Written {
    view: JobView,
    log: AgentLog,
}

impl Recorder {
    pub(crate) fn new(
        store: Arc<dyn Store>,
        job: JobId,
        generation: Generation,
        view: JobView,
        log: AgentLog,
    ) -> Self {
        Self { store, job, generation, written: Mutex::new(Written { view, log }) }
    }

    /// The job that is written about.
    pub(crate) fn job(&self) -> JobId {
        self.job
    }

    /// The view after everything that was written so far.
    pub(crate) async fn view(&self) -> JobView {
        self.written.lock().await.view.clone()
    }

    /// Appends events; they are durable when this returns. While the disk is full or the database is busy it waits
    /// and tries again: the job stands still, and nothing is lost.
    pub(crate) async fn append(&self, events: Vec<NewEvent>) -> Result<Vec<Event>, OrchestratorError> {
        let mut written = self.written.lock().await;
        self.append_locked(&mut written, events).await
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
        let mut written = self.written.lock().await;
        let state = written.view.state.after(happening)?;
        let (code, reason) = why.map_or((None, None), |why| (Some(why.code), Some(why.reason)));
        let mut events = before;
        let told = code.clone().unwrap_or_default();
        events.push(EventBody::StateChanged { state, code, reason }.into());
        self.append_locked(&mut written, events).await?;
        if state.is_over() {
            tracing::info!(job = %self.job, ?state, code = told, "the job is over");
        } else {
            tracing::debug!(job = %self.job, ?state, code = told, "the job goes on");
        }
        Ok(())
    }

    async fn append_locked(
        &self,
        written: &mut Written,
        events: Vec<NewEvent>,
    ) -> Result<Vec<Event>, OrchestratorError> {
        loop {
            match self.store.append(self.job, Fence::Owner(self.generation), events.clone()).await {
                Ok(placed) => {
                    for event in &placed {
                        written.view.apply(event);
                    }
                    written.log.append(&placed);
                    return Ok(placed);
                }
                Err(error @ (OrchestratorError::DiskFull | OrchestratorError::Store { .. })) => {
                    tracing::warn!(job = %self.job, %error, "the log cannot be written, trying again");
                    tokio::time::sleep(RETRY_PAUSE).await;
                }
                Err(error) => return Err(error),
            }
        }
    }
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
