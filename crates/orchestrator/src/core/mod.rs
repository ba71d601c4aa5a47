//! State and settings that all parts of the orchestrator share.

pub(crate) mod backend_watch;
pub(crate) mod host_disk;
pub(crate) mod images;
pub(crate) mod kernel_guard;
pub(crate) mod keyring;
pub(crate) mod last_use;
pub(crate) mod live_jobs;
pub(crate) mod live_tokens;
pub(crate) mod model_choice_file;
pub(crate) mod models;
pub(crate) mod oidc_users;
pub(crate) mod pool;
pub(crate) mod rate_limit;
pub(crate) mod retry_backoff;
pub(crate) mod seal;
pub(crate) mod server_secret;
pub(crate) mod sessions;
pub(crate) mod settings;
pub(crate) mod shares;
pub(crate) mod token;
pub(crate) mod upload_limits;
pub(crate) mod upload_locks;
pub(crate) mod usage_history;

use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, PoisonError, RwLock};

use job::{Actor, AppliedCeilings, KeyId};
use sandbox::Backend;
use store::Store;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::core::backend_watch::BackendWatch;
use crate::core::host_disk::HostDiskWatch;
use crate::core::keyring::KeyRing;
use crate::core::live_jobs::LiveJobs;
use crate::core::models::Models;
use crate::core::pool::Pool;
use crate::core::rate_limit::RateLimiter;
use crate::core::retry_backoff::RetryBackoff;
use crate::core::seal::Seal;
use crate::core::sessions::EndedSessions;
use crate::core::settings::Settings;
use crate::core::shares::Shares;
use crate::core::upload_locks::UploadLocks;
use crate::data_folder::DataFolder;
use crate::metrics::Metrics;

pub(crate) struct Core {
    /// May change while the server runs.
    pub(crate) live_settings: RwLock<Arc<Settings>>,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) backend_watch: BackendWatch,
    pub(crate) folder: DataFolder,
    pub(crate) live: LiveJobs,
    /// Jobs whose driver failed.
    pub(crate) retry_backoff: RetryBackoff,
    /// Whether sandboxes are frozen because the host disk is full.
    pub(crate) host_disk: HostDiskWatch,
    /// Sandboxes that are ready for a job.
    pub(crate) pool: Pool,
    /// Locked while files are added to a draft, so that together they fit its disk.
    pub(crate) uploads: UploadLocks,
    /// API keys and what they may do.
    pub(crate) keys: KeyRing,
    /// Requests per second and key, over all listeners.
    pub(crate) rate_limit: RateLimiter,
    /// Signs data that only this server can have produced.
    pub(crate) seal: Seal,
    /// Login sessions that were revoked before they expired.
    pub(crate) ended_sessions: EndedSessions,
    /// Links that share a read-only view of a job.
    pub(crate) shares: Shares,
    pub(crate) models: Models,
    /// Notified when a model becomes available that jobs wait for.
    pub(crate) model_found: Notify,
    /// Locked during a takeover or handback, so that of two concurrent ones one is first.
    pub(crate) holding: tokio::sync::Mutex<()>,
    /// Locked while the time limit of a job is extended, so that concurrent extensions add up.
    pub(crate) extending: tokio::sync::Mutex<()>,
    /// Notified when a job in the queue may be startable.
    pub(crate) queue_changed: Notify,
    pub(crate) metrics: Arc<Metrics>,
    /// The server will shut down: the scheduler picks no more jobs.
    pub(crate) draining: CancellationToken,
    /// The server is shutting down; sandboxes keep running.
    pub(crate) shutdown: CancellationToken,
    /// All background tasks; awaited at shutdown.
    pub(crate) tasks: TaskTracker,
}

impl Core {
    /// The settings at this moment.
    pub(crate) fn settings(&self) -> Arc<Settings> {
        Arc::clone(&self.live_settings.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// The most that a caller with this key may ask for.
    pub(crate) fn ceilings_of(&self, key: Option<&KeyId>) -> AppliedCeilings {
        let settings = self.settings();
        let rules = &settings.ceilings;
        key.map_or_else(|| rules.of(None, None), |key| self.keys.ceilings(key, rules))
    }

    /// Replaces the settings. Running jobs keep those that they started with.
    pub(crate) fn replace_settings(&self, settings: Settings) {
        self.pool.change(&settings);
        self.models.change(&settings.model);
        *self.live_settings.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(settings);
        self.queue_changed.notify_one();
    }
}

/// Retry delay reported when the queue is full.
pub(crate) const RETRY_AFTER_S: u64 = 5;

/// Runs jobs. Cheap to clone.
#[derive(Clone)]
pub struct Orchestrator {
    pub(crate) core: Arc<Core>,
    pub(crate) queued: Arc<AtomicUsize>,
    /// The API user who causes the actions.
    pub(crate) actor: Option<Arc<Actor>>,
}

impl Orchestrator {
    /// Returns a handle that acts on behalf of `actor`: the events it appends name this actor.
    #[must_use]
    pub fn acting_for(&self, actor: Actor) -> Self {
        Self { actor: Some(Arc::new(actor)), ..self.clone() }
    }

    pub(crate) fn actor(&self) -> Option<&Actor> {
        self.actor.as_deref()
    }
}
