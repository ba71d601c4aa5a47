//! Settings of the server.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use job::{CeilingRules, JobDefaults};

use crate::core::host_disk::DEFAULT_RESERVE;
use crate::core::server_secret::ServerSecret;

/// What happens to running jobs when the server is asked to stop.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum OnShutdown {
    /// The jobs keep running in their sandboxes, and the next server process resumes them.
    #[default]
    Leave,
    /// The server waits this long for jobs to finish; the rest keep running as with `Leave`.
    Wait(Duration),
}

/// Settings of the context engine.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ContextSettings {
    /// Who writes the summaries of older events.
    pub summaries: agent::SummaryMode,
    /// The embedding model for events, named like any model; without it the history is searched by words alone.
    pub embeddings: Option<model::Settings>,
}

/// Server settings.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// For jobs that do not say otherwise.
    pub defaults: JobDefaults,
    /// Upper limits on what requests may ask for.
    pub ceilings: CeilingRules,
    pub model: model::Settings,
    /// How the agent's history is kept within the model's context window, and searched.
    pub context: ContextSettings,
    /// Image of jobs that name none; if unset, `default` if it exists, else `host`.
    pub default_image: Option<String>,
    /// Maximum number of jobs that run at once.
    pub max_running: usize,
    /// Maximum number of queued jobs.
    pub max_queued: usize,
    /// Maximum number of bare sandboxes at once.
    pub max_sandboxes: usize,
    /// Number of sandboxes that are kept ready for jobs without special requirements.
    pub pool_size: usize,
    /// The images of the ready sandboxes, `pool_size` of each; if empty, the image of jobs that name none.
    pub pool_images: Vec<String>,
    /// Space that must stay free on the host disk that stores the sandbox disks, in addition to what sandboxes have
    /// written and the kernel has not flushed yet.
    pub disk_reserve_bytes: u64,
    /// How often a job may lose its sandbox before it fails.
    pub max_losses: u32,
    /// Used as the time limit for one attempt to connect to a guest, for retries while the guest answers incorrectly
    /// (after that the sandbox counts as lost), and for a killed call to end.
    pub guest_answer_timeout: Duration,
    /// How often the resource usage of running sandboxes is recorded. Fixed when the server starts.
    pub usage_interval: Duration,
    /// What happens to running jobs when the server is asked to stop.
    pub on_shutdown: OnShutdown,
    /// Address ranges that no job may reach, and exceptions.
    pub egress_ranges: egress::Ranges,
    /// The most permissive egress mode of any job, whatever the job or a user asks for.
    pub egress_ceiling: Option<egress::Mode>,
    /// Where secret values are stored and which hosts they may be sent to, by name.
    pub secrets: BTreeMap<String, ServerSecret>,
    /// Certificates (PEM) that sandboxes trust in addition to those of the image.
    pub extra_ca: Arc<[String]>,
    /// Finished jobs are removed after this time.
    pub retention_age: Duration,
    /// The event payloads of finished jobs are dropped after this time, if set.
    pub retention_payload_age: Option<Duration>,
    /// The oldest finished jobs are removed while all of them together take more than this.
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
            usage_interval: Duration::from_secs(5),
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
