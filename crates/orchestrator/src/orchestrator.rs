//! The public API of the crate: operations on jobs.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, RwLock};
use std::time::Duration;

use sandbox::Backend;
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::access::{Actor, EndedSessions, KeyRing, Seal, Shares};
use crate::api_types::{Accepted, Bringing, JobFilter, JobPage, ReadyState, Repeated, Submission};
use crate::backend_watch::BackendWatch;
use crate::core::{Core, OnShutdown, Settings};
use crate::data_folder::DataFolder;
use crate::egress::{complete_lists, policy_of};
use crate::error::OrchestratorError;
use crate::event::{Artifact, ControlRequest, Event, EventBody, Fence, NewEvent};
use crate::host_disk::HostDiskWatch;
use crate::ids::{JobId, Sequence};
use crate::images::{self, ChosenImage};
use crate::live::LiveJobs;
use crate::metrics::Metrics;
use crate::models::Models;
use crate::pool::Pool;
use crate::request::{InvalidField, JobSpec, Work};
use crate::retry_backoff::RetryBackoff;
use crate::scheduler::start_driver;
use crate::state::JobState;
use crate::store::{Created, NewRecord, SqliteStore, Store, digest};
use crate::uploads::UploadLocks;
use crate::view::JobView;
use crate::{backend_watch, form_upload, host_disk, pool, reconcile, retention, scheduler};

/// Retry delay reported when the queue is full.
pub(crate) const RETRY_AFTER_S: u64 = 5;
/// Timeout of the readiness check for a database write and for the backend; typical health checkers wait no longer
/// themselves.
const READY_TIMEOUT: Duration = Duration::from_secs(2);

/// Runs jobs. Cheap to clone.
#[derive(Clone)]
pub struct Orchestrator {
    pub(crate) core: Arc<Core>,
    queued: Arc<AtomicUsize>,
    /// The API user who causes the actions.
    actor: Option<Arc<Actor>>,
}

impl Orchestrator {
    /// Locks the data folder, and resumes every job that an earlier server process left unfinished.
    ///
    /// # Errors
    /// Another server has locked the folder, or it cannot be read.
    pub async fn start(
        folder: DataFolder,
        backend: Arc<dyn Backend>,
        settings: Settings,
    ) -> Result<Self, OrchestratorError> {
        let metrics = Arc::new(Metrics::default());
        let store: Arc<dyn Store> =
            Arc::new(SqliteStore::open_measured(&folder.database(), Arc::clone(&metrics))?);
        let queued = Arc::new(AtomicUsize::new(store.count_waiting().await?));
        let keys = KeyRing::new(store.keys().await?);
        keys.restore_oidc_users(store.people().await?);
        let seal = Seal::open(folder.root())?;
        let ended_sessions = EndedSessions::new(store.ended_sessions().await?);
        let shares = Shares::new(store.shares().await?);
        let pool = Pool::new(&settings);
        let model = settings.model.clone();
        let core = Arc::new(Core {
            live_settings: RwLock::new(Arc::new(settings)),
            store,
            backend,
            folder,
            live: LiveJobs::default(),
            backend_watch: BackendWatch::default(),
            retry_backoff: RetryBackoff::default(),
            host_disk: HostDiskWatch::default(),
            pool,
            uploads: UploadLocks::default(),
            keys,
            seal,
            ended_sessions,
            shares,
            models: Models::new(model),
            model_found: Notify::new(),
            holding: tokio::sync::Mutex::default(),
            queue_changed: Notify::new(),
            metrics,
            draining: CancellationToken::new(),
            shutdown: CancellationToken::new(),
            tasks: TaskTracker::new(),
        });
        form_upload::remove_abandoned(&core).await?;
        complete_lists(&core).await?;
        core.tasks.spawn(scheduler::run(Arc::clone(&core)));
        core.tasks.spawn(reconcile::run(Arc::clone(&core)));
        core.tasks.spawn(retention::run(Arc::clone(&core)));
        core.tasks.spawn(pool::run(Arc::clone(&core)));
        core.tasks.spawn(backend_watch::run(Arc::clone(&core)));
        core.tasks.spawn(host_disk::run(Arc::clone(&core)));
        Ok(Self { core, queued, actor: None })
    }

    /// Returns a handle that acts on behalf of `actor`: the events it appends name this actor.
    #[must_use]
    pub fn acting_for(&self, actor: Actor) -> Self {
        Self { actor: Some(Arc::new(actor)), ..self.clone() }
    }

    pub(crate) fn actor(&self) -> Option<&Actor> {
        self.actor.as_deref()
    }

    /// Stops picking jobs from the queue, and waits for running jobs if the settings say so. Everything else
    /// continues: jobs can be watched, cancelled and submitted, and submitted jobs wait for the next server process.
    pub async fn drain(&self) {
        self.core.draining.cancel();
        let OnShutdown::Wait(patience) = self.core.settings().on_shutdown else { return };
        let running = self.core.live.count_jobs();
        if running == 0 {
            return;
        }
        tracing::info!(running, patience_s = patience.as_secs(), "waiting for the jobs that run");
        if tokio::time::timeout(patience, self.core.live.all_drivers_ended()).await.is_err() {
            tracing::warn!(running = self.core.live.count_jobs(), "these jobs took too long to wait for");
        }
    }

    /// Changes the settings while jobs run. Accepted jobs keep their limits, and running jobs keep their egress
    /// rules.
    pub fn change_settings(&self, settings: Settings) {
        self.core.replace_settings(settings);
    }

    /// Stops all tasks. Sandboxes and the programs in them keep running, and the next server process resumes their
    /// jobs.
    pub async fn shutdown(&self) {
        self.core.shutdown.cancel();
        self.core.tasks.close();
        self.core.tasks.wait().await;
    }

    /// Accepts a job. The job is durable when this returns.
    ///
    /// # Errors
    /// A field is invalid, the queue is full, or the store fails.
    pub async fn submit(&self, submission: Submission) -> Result<Accepted, OrchestratorError> {
        let Submission { job, idempotency_key, submitter, bringing } = submission;
        let idempotency = idempotency_key.map(|key| {
            let mut body = serde_json::to_vec(&job).unwrap_or_default();
            // The same job without files is a different request.
            if bringing == Bringing::Files {
                body.extend_from_slice(b" with files");
            }
            // Keys of different callers are independent, even if they are equal.
            let whose = submitter.as_ref().map(|submitter| format!("{}/", submitter.key)).unwrap_or_default();
            (format!("{whose}{key}"), digest(&body).to_vec())
        });
        let start = job.start;
        let asked = job.image.clone();
        let mut spec = job.check(&self.rules_for(submitter.as_ref().map(|submitter| &submitter.key)))?;
        self.check_model(spec.agent.model.as_deref())?;
        let (ChosenImage { image, hint: about_image }, away) =
            images::choose_or_assume(&self.core, asked.as_deref()).await?;
        spec.image = image;
        let away = self.check_limits(&spec).await?.or(away);
        self.check_policy(&spec)?;
        let _turn = self.check_allowance(submitter.as_ref()).await?;
        spec.submitter = submitter;
        let (state, code, reason) = match (bringing, start) {
            (Bringing::Files, _) => form_upload::first_state(),
            (Bringing::Nothing, Some(false)) => (JobState::Draft, None, None),
            (Bringing::Nothing, _) => match (self.first_state(&spec).await?, away) {
                ((JobState::Queued, None, None), Some(away)) => {
                    let reason = format!("{away}. The job waits; what it asks for is checked then");
                    (JobState::Queued, Some(away.code().to_owned()), Some(reason))
                }
                (state, _) => state,
            },
        };
        let hint = match bringing {
            Bringing::Files => about_image,
            Bringing::Nothing => reason.clone().or(about_image),
        };
        // A draft occupies a place in the queue from the start, so that the limit applies to drafts too.
        if matches!(state, JobState::Queued | JobState::Draft) {
            self.check_queue().await?;
        }
        let events = vec![EventBody::StateChanged { state, code, reason }.into()];
        let record = NewRecord { id: JobId::generate(), spec, events, idempotency };
        match self.core.store.create(record).await? {
            Created::New(view) => {
                self.count_queued();
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

    /// Refuses limits that the backend cannot enforce. If the backend does not answer, returns its error as
    /// `Ok(Some)`; creating the sandbox checks the limits later.
    pub(crate) async fn check_limits(
        &self,
        spec: &JobSpec,
    ) -> Result<Option<OrchestratorError>, OrchestratorError> {
        match self.core.backend.check_limits(&spec.limits, spec.isolation).await.map_err(Into::into) {
            Ok(()) => Ok(None),
            Err(error) if OrchestratorError::is_backend_unavailable(&error) => {
                self.core.backend_watch.note(&error);
                Ok(Some(error))
            }
            Err(error) => Err(error),
        }
    }

    /// The first state of a job, with the reason if it must wait.
    pub(crate) async fn first_state(
        &self,
        spec: &JobSpec,
    ) -> Result<(JobState, Option<String>, Option<String>), OrchestratorError> {
        if !matches!(spec.work, Work::Task(_)) {
            return Ok((JobState::Queued, None, None));
        }
        match self.core.models.get(spec.agent.model.as_deref()).await {
            Ok(_) => Ok((JobState::Queued, None, None)),
            Err(model::ModelError::Settings { key, detail }) => {
                Err(InvalidField { field: key, problem: detail }.into())
            }
            Err(error) => {
                let reason = format!("{error}. The task is kept, and goes on when there is a model");
                Ok((JobState::Paused, Some("no_model".to_owned()), Some(reason)))
            }
        }
    }

    pub(crate) fn check_policy(&self, spec: &JobSpec) -> Result<(), InvalidField> {
        let settings = self.core.settings();
        policy_of(spec, &settings)
            .map_err(|error| InvalidField { field: "egress".into(), problem: error.to_string() })?;
        for (name, asked) in &spec.egress_settings.secrets {
            let Some(kept) = settings.secrets.get(name) else {
                let known: Vec<&str> = settings.secrets.keys().map(String::as_str).collect();
                let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
                return Err(InvalidField {
                    field: format!("secrets.{name}"),
                    problem: format!("this server has no secret of this name; it has: {known}"),
                });
            };
            if let Some((number, problem)) = kept.refusal(&asked.hosts) {
                return Err(InvalidField { field: format!("secrets.{name}.hosts[{number}]"), problem });
            }
        }
        Ok(())
    }

    /// Starts a driver for a job, whether or not there is room to run it.
    pub(crate) async fn start_now(&self, id: JobId) -> Result<(), OrchestratorError> {
        start_driver(&self.core, id).await
    }

    /// Counts a job that was added to the queue.
    pub(crate) fn count_queued(&self) {
        self.queued.fetch_add(1, Ordering::Relaxed);
    }

    /// The in-memory count only grows, so the store is asked when it says that the queue may be full.
    pub(crate) async fn check_queue(&self) -> Result<(), OrchestratorError> {
        let limit = self.core.settings().max_queued;
        if self.queued.load(Ordering::Relaxed) < limit {
            return Ok(());
        }
        let queued = self.core.store.count_waiting().await?;
        self.queued.store(queued, Ordering::Relaxed);
        if queued >= limit {
            return Err(OrchestratorError::QueueFull { queued, retry_after_s: RETRY_AFTER_S });
        }
        Ok(())
    }

    /// The view of a job.
    ///
    /// # Errors
    /// There is no such job.
    pub async fn job(&self, id: JobId) -> Result<JobView, OrchestratorError> {
        self.core.store.job(id).await.map(|view| self.with_waiting_reason(view))
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
                problem: "it is over and cannot be cancelled".into(),
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
        self.core.store.job(id).await
    }

    /// Deletes a finished job with its events and files.
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
        let by = self.actor().cloned().unwrap_or_else(|| Actor::named("server"));
        retention::delete(&self.core, id, by).await
    }

    /// The events after a sequence number, oldest first.
    pub async fn events(
        &self,
        id: JobId,
        after: Sequence,
        limit: usize,
    ) -> Result<Vec<Event>, OrchestratorError> {
        self.core.store.events(id, after, limit).await
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
            None => Err(OrchestratorError::NoArtifact { job: id, why: "the job is not over".into() }),
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

    /// Whether the server can take jobs, with the problems that prevent it.
    pub async fn ready(&self) -> ReadyState {
        let mut problems = Vec::new();
        match tokio::time::timeout(READY_TIMEOUT, self.core.store.check()).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => problems.push(error.to_string()),
            Err(_) => {
                let seconds = READY_TIMEOUT.as_secs();
                problems.push(format!("the database has not taken a write for {seconds} s"));
            }
        }
        match tokio::time::timeout(READY_TIMEOUT, self.core.backend.ping()).await {
            Ok(Ok(())) => problems.extend(self.core.backend_watch.outage().map(|why| why.to_string())),
            Ok(Err(error)) => {
                let error = OrchestratorError::from(error);
                self.core.backend_watch.note(&error);
                problems.push(error.to_string());
            }
            Err(_) => {
                let seconds = READY_TIMEOUT.as_secs();
                problems.push(format!("what runs the sandboxes has not answered for {seconds} s"));
            }
        }
        problems.extend(self.core.host_disk.shortage().map(|shortage| shortage.to_string()));
        let mut waiting: BTreeMap<String, usize> = BTreeMap::new();
        for cause in self.core.live.waiting().into_iter().chain(self.core.retry_backoff.waiting()) {
            *waiting.entry(cause).or_default() += 1;
        }
        problems.extend(waiting.into_iter().map(|(cause, count)| match count {
            1 => format!("a job cannot go on: {cause}"),
            _ => format!("{count} jobs cannot go on: {cause}"),
        }));
        if self.core.draining.is_cancelled() || self.core.shutdown.is_cancelled() {
            problems.push("the server is shutting down".into());
        }
        let queued = self.core.store.count_queued().await.unwrap_or_default();
        ReadyState { ready: problems.is_empty(), problems, running: self.core.live.count_jobs(), queued }
    }
}
