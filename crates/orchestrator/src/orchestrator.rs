//! Starts and stops the orchestrator, and says whether it is ready.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, RwLock};
use std::time::Duration;

use sandbox::Backend;
use serde::Serialize;
use store::{Store, StoreObserver};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use utoipa::ToSchema;

use crate::core::Core;
use crate::core::Orchestrator;
use crate::core::backend_watch::BackendWatch;
use crate::core::host_disk::HostDiskWatch;
use crate::core::keyring::KeyRing;
use crate::core::live_jobs::LiveJobs;
use crate::core::model_choice_file::ModelChoiceFile;
use crate::core::models::Models;
use crate::core::pool::Pool;
use crate::core::rate_limit::RateLimiter;
use crate::core::retry_backoff::RetryBackoff;
use crate::core::seal::Seal;
use crate::core::sessions::EndedSessions;
use crate::core::settings::{OnShutdown, Settings};
use crate::core::shares::Shares;
use crate::core::upload_locks::UploadLocks;
use crate::data_folder::DataFolder;
use crate::egress::complete_lists;
use crate::error::OrchestratorError;
use crate::intake::form_upload;
use crate::metrics::Metrics;
use crate::scheduler;
use crate::upkeep::backend_watch::ping;
use crate::upkeep::{reconcile, retention};

/// Timeout of the readiness check for a database write and for the backend; typical health checkers wait no longer
/// themselves.
const READY_TIMEOUT: Duration = Duration::from_secs(2);

/// Whether the server can take jobs.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct ReadyState {
    /// It can.
    pub ready: bool,
    /// Why not.
    pub problems: Vec<String>,
    /// Jobs that work.
    pub running: usize,
    /// Jobs that wait.
    pub queued: usize,
}

impl Orchestrator {
    /// Resumes every job that an earlier server process left unfinished. The store must have been opened after the data
    /// folder was locked.
    ///
    /// # Errors
    /// The store or the data folder cannot be read.
    pub async fn start(
        folder: DataFolder,
        store: Arc<dyn Store>,
        backend: Arc<dyn Backend>,
        settings: Settings,
    ) -> Result<Self, OrchestratorError> {
        let metrics = Arc::new(Metrics::default());
        let observer: Arc<dyn StoreObserver> = Arc::<Metrics>::clone(&metrics);
        store.observe(observer);
        let queued = Arc::new(AtomicUsize::new(store.count_waiting().await?));
        let keys = KeyRing::new(store.keys().await?);
        keys.restore_oidc_users(store.people().await?);
        let seal = Seal::open(folder.root())?;
        let ended_sessions = EndedSessions::new(store.ended_sessions().await?);
        let shares = Shares::new(store.shares().await?);
        let pool = Pool::new(&settings);
        let models = Models::open(settings.model.clone(), ModelChoiceFile::of_folder(folder.root()))?;
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
            rate_limit: RateLimiter::default(),
            seal,
            ended_sessions,
            shares,
            models,
            model_found: Notify::new(),
            holding: tokio::sync::Mutex::default(),
            extending: tokio::sync::Mutex::default(),
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
        core.tasks.spawn(crate::pool::run(Arc::clone(&core)));
        core.tasks.spawn(crate::upkeep::backend_watch::run(Arc::clone(&core)));
        core.tasks.spawn(crate::upkeep::host_disk::run(Arc::clone(&core)));
        core.tasks.spawn(crate::upkeep::usage::run(Arc::clone(&core)));
        Ok(Self { core, queued, actor: None })
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
        match tokio::time::timeout(READY_TIMEOUT, ping(&*self.core.backend)).await {
            Ok(Ok(())) => problems.extend(self.core.backend_watch.outage().map(|why| why.to_string())),
            Ok(Err(error)) => {
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
            1 => format!("a job cannot continue: {cause}"),
            _ => format!("{count} jobs cannot continue: {cause}"),
        }));
        if self.core.draining.is_cancelled() || self.core.shutdown.is_cancelled() {
            problems.push("the server is shutting down".into());
        }
        let queued = self.core.store.count_queued().await.unwrap_or_default();
        ReadyState { ready: problems.is_empty(), problems, running: self.core.live.count_jobs(), queued }
    }
}
