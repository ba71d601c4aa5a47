//! What all parts of the orchestrator share.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use sandbox::Backend;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::access::{CeilingRules, EndedSessions, KeyRing, Seal, Shares};
use crate::backend_watch::BackendWatch;
use crate::folder::DataFolder;
use crate::host_disk::{DEFAULT_RESERVE, HostDiskWatch};
use crate::live::LiveJobs;
use crate::metrics::Metrics;
use crate::models::Models;
use crate::outward::ServerSecret;
use crate::pool::Pool;
use crate::request::JobDefaults;
use crate::setbacks::Setbacks;
use crate::store::Store;
use crate::uploads::UploadLocks;

/// What becomes of running jobs when the server is told to stop.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum OnShutdown {
    /// They go on in their sandboxes, and the next server takes them up.
    #[default]
    Leave,
    /// They are waited for so long; those that are not over then are left.
    Wait(Duration),
}

/// What the operator has set for the context engine.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ContextSettings {
    /// Who writes the summaries of older events.
    pub summaries: agent::SummaryMode,
    /// The model that makes vectors of events, named as a model is; without it the history is found by words alone.
    pub embeddings: Option<model::Settings>,
}

/// What the operator has set.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// For jobs that say nothing.
    pub defaults: JobDefaults,
    /// The most that requests may ask for.
    pub ceilings: CeilingRules,
    /// Which model answers, and how it is reached.
    pub model: model::Settings,
    /// How the agent's history is kept within its model's window, and searched.
    pub context: ContextSettings,
    /// Image of jobs that say nothing; without it `default` where it is there, else `host`.
    pub default_image: Option<String>,
    /// How many jobs work at once.
    pub max_running: usize,
    /// How many jobs may wait.
    pub max_queued: usize,
    /// How many bare sandboxes may live at once.
    pub max_sandboxes: usize,
    /// How many sandboxes are kept ready for jobs that ask for nothing special.
    pub pool_size: usize,
    /// The images that they are kept ready of, so many of each; none: the image of jobs that name none.
    pub pool_images: Vec<String>,
    /// What must stay free on the disk of the host that holds the disks of sandboxes, beside what they have written and the
    /// kernel has not stored yet.
    pub disk_reserve_bytes: u64,
    /// How often a job may lose its sandbox before it fails.
    pub max_losses: u32,
    /// How long a guest may take to answer one attempt to connect, how long it is tried while it answers wrongly (then the
    /// sandbox counts as lost), and how long a killed call may take to end.
    pub guest_answer_timeout: Duration,
    /// What becomes of running jobs when the server is told to stop.
    pub on_shutdown: OnShutdown,
    /// Addresses that no job may reach, and exceptions.
    pub egress_ranges: egress::Ranges,
    /// What no job may exceed, whatever it or a person says.
    pub egress_ceiling: Option<egress::Mode>,
    /// Where the values of secrets are and where they may go, by name.
    pub secrets: BTreeMap<String, ServerSecret>,
    /// Certificates (PEM) that sandboxes trust beside the image's own.
    pub extra_ca: Arc<[String]>,
    /// Jobs that are over are removed after this time.
    pub retention_age: Duration,
    /// Jobs that are over lose what their events said after this time, where there is one.
    pub retention_payload_age: Option<Duration>,
    /// Jobs that are over are removed, oldest first, while all take more than this.
    pub retention_bytes: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            defaults: JobDefaults::default(),
            ceilings: CeilingRules::default(),
            model: model::Settings::default(),
            context: ContextSettings::default(),
            default_image: None,
            max_running: std::thread::available_parallelism().map_or(4, |count| count.get() * 2),
            max_queued: 10_000,
            max_sandboxes: 100,
            pool_size: 0,
            pool_images: Vec::new(),
            disk_reserve_bytes: DEFAULT_RESERVE,
            max_losses: 3,
            guest_answer_timeout: Duration::from_secs(15),
            on_shutdown: OnShutdown::default(),
            egress_ranges: egress::Ranges::default(),
            egress_ceiling: None,
            secrets: BTreeMap::new(),
            extra_ca: Arc::default(),
            retention_age: Duration::from_secs(30 * 86_400),
            retention_payload_age: None,
            retention_bytes: 50 * 1024 * 1024 * 1024,
        }
    }
}

/// What all parts share.
pub(crate) struct Core {
    /// What the operator has set; may change while the server runs.
    pub(crate) live_settings: RwLock<Arc<Settings>>,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) backend: Arc<dyn Backend>,
    /// Whether it answers.
    pub(crate) backend_watch: BackendWatch,
    pub(crate) folder: DataFolder,
    pub(crate) live: LiveJobs,
    /// Jobs whose driver has failed.
    pub(crate) setbacks: Setbacks,
    /// Whether sandboxes stand still for want of room on the host's disk.
    pub(crate) host_disk: HostDiskWatch,
    /// Sandboxes that are ready.
    pub(crate) pool: Pool,
    /// Held while files are added to a draft, so that all of them together fit its disk.
    pub(crate) uploads: UploadLocks,
    /// Who may do what.
    pub(crate) keys: KeyRing,
    /// Writes what only this server can have written.
    pub(crate) seal: Seal,
    /// Logins that were ended before their time.
    pub(crate) ended_sessions: EndedSessions,
    /// Links that show a view of a job to others.
    pub(crate) shares: Shares,
    /// Language models.
    pub(crate) models: Models,
    /// A model was found that jobs wait for.
    pub(crate) model_found: Notify,
    /// Held while somebody takes a sandbox over or hands it back, so that one of two is the first.
    pub(crate) holding: tokio::sync::Mutex<()>,
    /// Something may be picked from the queue.
    pub(crate) queue_changed: Notify,
    pub(crate) metrics: Arc<Metrics>,
    /// The server will go down: no further job is picked from the queue.
    pub(crate) draining: CancellationToken,
    /// The server goes down; sandboxes live on.
    pub(crate) shutdown: CancellationToken,
    /// All tasks, to be waited for at the end.
    pub(crate) tasks: TaskTracker,
}

impl Core {
    /// What the operator has set, at this moment.
    pub(crate) fn settings(&self) -> Arc<Settings> {
        Arc::clone(&self.live_settings.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// From now on these hold. Jobs that run keep what they were started with.
    pub(crate) fn replace_settings(&self, settings: Settings) {
        self.pool.change(&settings);
        self.models.change(&settings.model);
        *self.live_settings.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(settings);
        self.queue_changed.notify_one();
    }
}
