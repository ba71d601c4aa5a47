//! What all parts of the orchestrator share.

use std::sync::Arc;
use std::time::Duration;

use sandbox::Backend;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::folder::DataFolder;
use crate::live::LiveJobs;
use crate::metrics::Metrics;
use crate::pool::Pool;
use crate::request::JobDefaults;
use crate::store::Store;

/// What becomes of running jobs when the server is told to stop.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum OnShutdown {
    /// They go on in their sandboxes, and the next server takes them up.
    #[default]
    Leave,
    /// They are waited for so long; those that are not over then are left.
    Wait(Duration),
}

/// What the operator has set.
#[derive(Debug, Clone)]
pub struct Settings {
    /// For jobs that say nothing.
    pub defaults: JobDefaults,
    /// How many jobs work at once.
    pub max_running: usize,
    /// How many jobs may wait.
    pub max_queued: usize,
    /// How many bare sandboxes may live at once.
    pub max_sandboxes: usize,
    /// How many sandboxes are kept ready for jobs that ask for nothing special.
    pub pool_size: usize,
    /// How often a job may lose its sandbox before it fails.
    pub max_losses: u32,
    /// What becomes of running jobs when the server is told to stop.
    pub on_shutdown: OnShutdown,
    /// Addresses that no job may reach, and exceptions.
    pub egress_ranges: egress::Ranges,
    /// Certificates (PEM) that sandboxes trust beside the image's own.
    pub extra_ca: Vec<String>,
    /// Jobs that are over are removed after this time.
    pub retention_age: Duration,
    /// Jobs that are over are removed, oldest first, while all take more than this.
    pub retention_bytes: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            defaults: JobDefaults::default(),
            max_running: std::thread::available_parallelism().map_or(4, |count| count.get() * 2),
            max_queued: 10_000,
            max_sandboxes: 100,
            pool_size: 0,
            max_losses: 3,
            on_shutdown: OnShutdown::default(),
            egress_ranges: egress::Ranges::default(),
            extra_ca: Vec::new(),
            retention_age: Duration::from_secs(30 * 86_400),
            retention_bytes: 50 * 1024 * 1024 * 1024,
        }
    }
}

/// What all parts share.
pub(crate) struct Core {
    pub(crate) settings: Settings,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) folder: DataFolder,
    pub(crate) live: LiveJobs,
    /// Sandboxes that are ready.
    pub(crate) pool: Pool,
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
