//! Jobs as callers see them: view, list, events, cancel, artifact.

use std::path::PathBuf;

use job::{
    Artifact, ControlRequest, Event, EventBody, Fence, JobFilter, JobId, JobPage, JobView, NewEvent, Sequence,
};
use tokio::sync::watch;

use crate::core::Orchestrator;
use crate::error::OrchestratorError;
use crate::scheduler::start_driver;

impl Orchestrator {
    /// The view of a job.
    ///
    /// # Errors
    /// There is no such job.
    pub async fn job(&self, id: JobId) -> Result<JobView, OrchestratorError> {
        Ok(self.with_waiting_reason(self.core.store.job(id).await?))
    }

    /// Adds what the job currently waits for, if the operator must act. No event records this, since the cause may be
    /// that the database cannot be written.
    pub(crate) fn with_waiting_reason(&self, mut view: JobView) -> JobView {
        if view.code.is_none()
            && !view.state.is_over()
            && let Some(live) = self.core.live.get(view.job_id)
            && let Some(cause) = live.recorder.waiting().cause()
        {
            view.code = Some(cause.code().to_owned());
            view.reason = Some(cause.to_string());
        }
        view
    }

    /// Lists jobs, newest first, without their steps.
    pub async fn jobs(&self, filter: JobFilter) -> Result<JobPage, OrchestratorError> {
        let limit = filter.limit;
        let mut jobs = self.core.store.jobs(JobFilter { limit: limit + 1, ..filter }).await?;
        let more = jobs.len() > limit;
        jobs.truncate(limit);
        let jobs: Vec<JobView> = jobs.into_iter().map(|view| self.with_waiting_reason(view)).collect();
        let next = if more { jobs.last().map(|view| view.job_id) } else { None };
        Ok(JobPage { jobs, next })
    }

    /// Cancels a job. Idempotent while the job is not over.
    ///
    /// # Errors
    /// The job is over, or there is none.
    pub async fn cancel(&self, id: JobId) -> Result<JobView, OrchestratorError> {
        let view = self.core.store.job(id).await?;
        if view.state.is_over() {
            return Err(OrchestratorError::WrongState {
                job: id,
                state: view.state,
                problem: "it has ended and cannot be cancelled".into(),
            });
        }
        if view.control_request != Some(ControlRequest::Cancel) {
            let control_requested: NewEvent =
                EventBody::ControlRequested { request: ControlRequest::Cancel }.into();
            self.core
                .store
                .append(id, Fence::Anybody, vec![control_requested.with_actor(self.actor())])
                .await?;
        }
        match self.core.live.get(id) {
            Some(live) => {
                let _ = live.control_request.send(Some(ControlRequest::Cancel));
                live.recorder.catch_up().await?;
            }
            // The job has no driver yet; start one to end it, whether or not there is room to run it.
            None => start_driver(&self.core, id).await?,
        }
        Ok(self.core.store.job(id).await?)
    }

    /// The events after a sequence number, oldest first.
    pub async fn events(
        &self,
        id: JobId,
        after: Sequence,
        limit: usize,
    ) -> Result<Vec<Event>, OrchestratorError> {
        Ok(self.core.store.events(id, after, limit).await?)
    }

    /// A receiver that changes when a job has new events.
    #[must_use]
    pub fn watch(&self, id: JobId) -> watch::Receiver<Sequence> {
        self.core.store.watch(id)
    }

    /// The metadata and path of a job's artifact.
    ///
    /// # Errors
    /// There is none (yet).
    pub async fn artifact(&self, id: JobId) -> Result<(Artifact, PathBuf), OrchestratorError> {
        let view = self.core.store.job(id).await?;
        match view.artifact {
            Some(artifact) => Ok((artifact, self.core.folder.output(id))),
            None if view.state.is_over() => Err(OrchestratorError::NoArtifact {
                job: id,
                why: "the job ended before it had a workspace".into(),
            }),
            None => Err(OrchestratorError::NoArtifact { job: id, why: "the job has not ended".into() }),
        }
    }

    /// The path of a job's human-readable log. The file exists once the job has started.
    ///
    /// # Errors
    /// There is no such job.
    pub async fn log(&self, id: JobId) -> Result<PathBuf, OrchestratorError> {
        self.core.store.job(id).await?;
        Ok(self.core.folder.agent_log(id))
    }
}
