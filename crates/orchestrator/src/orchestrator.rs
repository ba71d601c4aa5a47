//! What callers may do with jobs.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use sandbox::Backend;
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::answers::{Accepted, JobFilter, JobPage, ReadyState, Repeated, Submission};
use crate::core::{Core, OnShutdown, Settings};
use crate::error::OrchestratorError;
use crate::event::{Artifact, Event, EventBody, Fence, Wish};
use crate::folder::DataFolder;
use crate::ids::{JobId, Sequence};
use crate::live::LiveJobs;
use crate::metrics::Metrics;
use crate::pool::Pool;
use crate::request::{InvalidField, JobSpec, Work};
use crate::scheduler::start_driver;
use crate::state::JobState;
use crate::store::{Created, NewRecord, SqliteStore, Store, digest};
use crate::view::JobView;
use crate::{pool, reconcile, scheduler};

/// Said to whoever sends a task while no model is configured.
const NO_MODEL: &str = "no language model is configured, and this release has no setting for one yet: it runs `steps`. The \
    task is kept, and goes on when a server with a model takes over this data folder";
/// When to try again where the queue is full.
const RETRY_AFTER_S: u64 = 5;

/// Runs jobs. Cheap to clone.
#[derive(Clone)]
pub struct Orchestrator {
    pub(crate) core: Arc<Core>,
    queued: Arc<AtomicUsize>,
}

impl Orchestrator {
    /// Takes the data folder, and goes on with every job that an earlier server left behind.
    ///
    /// # Errors
    /// Another server holds the folder, or it cannot be read.
    pub async fn start(
        folder: DataFolder,
        backend: Arc<dyn Backend>,
        settings: Settings,
    ) -> Result<Self, OrchestratorError> {
        let metrics = Arc::new(Metrics::default());
        let store: Arc<dyn Store> =
            Arc::new(SqliteStore::open_measured(&folder.database(), Arc::clone(&metrics))?);
        let queued = Arc::new(AtomicUsize::new(store.count_queued().await?));
        let pool = Pool::new(&settings);
        let core = Arc::new(Core {
            settings,
            store,
            backend,
            folder,
            live: LiveJobs::default(),
            pool,
            queue_changed: Notify::new(),
            metrics,
            draining: CancellationToken::new(),
            shutdown: CancellationToken::new(),
            tasks: TaskTracker::new(),
        });
        core.tasks.spawn(scheduler::run(Arc::clone(&core)));
        core.tasks.spawn(reconcile::run(Arc::clone(&core)));
        core.tasks.spawn(pool::run(Arc::clone(&core)));
        Ok(Self { core, queued })
    }

    /// Picks no further job, and waits for those that run where the settings say so. Everything else goes on:
    /// jobs can be watched, cancelled and submitted, and those that are submitted wait for the next server.
    pub async fn drain(&self) {
        self.core.draining.cancel();
        let OnShutdown::Wait(patience) = self.core.settings.on_shutdown else { return };
        let running = self.core.live.count_jobs();
        if running == 0 {
            return;
        }
        tracing::info!(running, patience_s = patience.as_secs(), "waiting for the jobs that run");
        if tokio::time::timeout(patience, self.core.live.all_left()).await.is_err() {
            tracing::warn!(running = self.core.live.count_jobs(), "these jobs took too long to wait for");
        }
    }

    /// Stops working. Sandboxes live on: what runs in them goes on, and the next server takes it up.
    pub async fn shutdown(&self) {
        self.core.shutdown.cancel();
        self.core.tasks.close();
        self.core.tasks.wait().await;
    }

    /// Accepts a job; it is durable when this returns.
    ///
    /// # Errors
    /// A field cannot be accepted, the queue is full, or the store fails.
    pub async fn submit(&self, submission: Submission) -> Result<Accepted, OrchestratorError> {
        let Submission { job, idempotency_key } = submission;
        let idempotency = idempotency_key.map(|key| {
            let body = serde_json::to_vec(&job).unwrap_or_default();
            (key, digest(&body).to_vec())
        });
        let start = job.start;
        let spec = job.check(&self.core.settings.defaults)?;
        self.check_policy(&spec)?;
        let (state, code, reason) = match start {
            Some(false) => (JobState::Draft, None, None),
            _ => Self::first_state(&spec.work),
        };
        let hint = reason.clone();
        if state == JobState::Queued {
            self.check_queue().await?;
        }
        let events = vec![EventBody::StateChanged { state, code, reason }.into()];
        let record = NewRecord { id: JobId::generate(), spec, events, idempotency };
        match self.core.store.create(record).await? {
            Created::New(view) => {
                self.queued.fetch_add(1, Ordering::Relaxed);
                self.core.queue_changed.notify_one();
                Ok(Accepted { view: *view, repeated: Repeated::No, hint })
            }
            Created::Repeated(job) => {
                let view = self.core.store.job(job).await?;
                Ok(Accepted { hint: view.hint(), view, repeated: Repeated::Yes })
            }
            Created::Mismatch => Err(OrchestratorError::IdempotencyMismatch),
        }
    }

    /// Where a job begins, and why where it must wait.
    pub(crate) fn first_state(work: &Work) -> (JobState, Option<String>, Option<String>) {
        match work {
            Work::Steps(_) | Work::Session { .. } => (JobState::Queued, None, None),
            Work::Task(_) => (JobState::Paused, Some("no_model".to_owned()), Some(NO_MODEL.to_owned())),
        }
    }

    pub(crate) fn check_policy(&self, spec: &JobSpec) -> Result<(), InvalidField> {
        egress::Policy::new(spec.egress.clone(), self.core.settings.egress_ranges.clone())
            .map(drop)
            .map_err(|error| InvalidField { field: "egress".into(), problem: error.to_string() })
    }

    /// Starts a driver for a job, whether there is room in the queue or not.
    pub(crate) async fn start_now(&self, id: JobId) -> Result<(), OrchestratorError> {
        start_driver(&self.core, id).await
    }

    /// The count in memory only grows, so the store is asked once it says that the queue may be full.
    pub(crate) async fn check_queue(&self) -> Result<(), OrchestratorError> {
        let limit = self.core.settings.max_queued;
        if self.queued.load(Ordering::Relaxed) < limit {
            return Ok(());
        }
        let queued = self.core.store.count_queued().await?;
        self.queued.store(queued, Ordering::Relaxed);
        if queued >= limit {
            return Err(OrchestratorError::QueueFull { queued, retry_after_s: RETRY_AFTER_S });
        }
        Ok(())
    }

    /// What is known of a job.
    ///
    /// # Errors
    /// There is no such job.
    pub async fn job(&self, id: JobId) -> Result<JobView, OrchestratorError> {
        self.core.store.job(id).await
    }

    /// Jobs, newest first, without their steps.
    ///
    /// # Errors
    /// The store fails.
    pub async fn jobs(&self, filter: JobFilter) -> Result<JobPage, OrchestratorError> {
        let limit = filter.limit;
        let mut jobs = self.core.store.jobs(JobFilter { limit: limit + 1, ..filter }).await?;
        let more = jobs.len() > limit;
        jobs.truncate(limit);
        let next = if more { jobs.last().map(|view| view.job_id) } else { None };
        Ok(JobPage { jobs, next })
    }

    /// Wants a job to end. May be said more than once.
    ///
    /// # Errors
    /// The job is over, or there is none.
    pub async fn cancel(&self, id: JobId) -> Result<JobView, OrchestratorError> {
        let view = self.core.store.job(id).await?;
        if view.state.is_over() {
            return Err(OrchestratorError::WrongState {
                job: id,
                state: view.state,
                problem: "it is over and cannot be cancelled".into(),
            });
        }
        if view.wish.is_none() {
            let wished = vec![EventBody::Wished { wish: Wish::Cancel }.into()];
            self.core.store.append(id, Fence::Anybody, wished).await?;
        }
        match self.core.live.get(id) {
            Some(live) => drop(live.wish.send(Some(Wish::Cancel))),
            // Nobody drives it yet: a driver ends it, whether there is room in the queue or not.
            None => start_driver(&self.core, id).await?,
        }
        self.core.store.job(id).await
    }

    /// Removes a job that is over, with its events and files.
    ///
    /// # Errors
    /// The job is not over, or there is none.
    pub async fn delete(&self, id: JobId) -> Result<(), OrchestratorError> {
        let view = self.core.store.job(id).await?;
        if !view.state.is_over() {
            return Err(OrchestratorError::WrongState {
                job: id,
                state: view.state,
                problem: "it is not over; cancel it first".into(),
            });
        }
        self.core.store.delete(id).await?;
        self.core.folder.remove_job(id)
    }

    /// Events after a sequence number, oldest first.
    ///
    /// # Errors
    /// The store fails.
    pub async fn events(
        &self,
        id: JobId,
        after: Sequence,
        limit: usize,
    ) -> Result<Vec<Event>, OrchestratorError> {
        self.core.store.events(id, after, limit).await
    }

    /// Changes when a job has new events.
    #[must_use]
    pub fn watch(&self, id: JobId) -> watch::Receiver<Sequence> {
        self.core.store.watch(id)
    }

    /// The result of a job.
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
            None => Err(OrchestratorError::NoArtifact { job: id, why: "the job is not over".into() }),
        }
    }

    /// The log of a job for people. The file is there once the job has started.
    ///
    /// # Errors
    /// There is no such job.
    pub async fn log(&self, id: JobId) -> Result<PathBuf, OrchestratorError> {
        self.core.store.job(id).await?;
        Ok(self.core.folder.agent_log(id))
    }

    /// Whether jobs can be taken.
    pub async fn ready(&self) -> ReadyState {
        let mut problems = Vec::new();
        if let Err(error) = self.core.store.check().await {
            problems.push(error.to_string());
        }
        if self.core.draining.is_cancelled() || self.core.shutdown.is_cancelled() {
            problems.push("the server is shutting down".into());
        }
        let queued = self.core.store.count_queued().await.unwrap_or_default();
        ReadyState { ready: problems.is_empty(), problems, running: self.core.live.count_jobs(), queued }
    }
}
