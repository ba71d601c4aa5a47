//! The jobs that have a driver in this server process, and how to reach them.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use job::{ControlRequest, Holder, JobId, JobKind, JobSpec};
use protocol::GuestClient;
use tokio::sync::{Notify, watch};

use crate::core::kernel_guard::LostKernelGuard;
use crate::core::last_use::LastUse;
use crate::core::live_tokens::LiveTokens;
use crate::core::usage_history::UsageHistory;
use crate::recorder::Recorder;

/// A job with a driver.
#[derive(Clone)]
pub(crate) struct LiveJob {
    pub(crate) kind: JobKind,
    /// Immutable.
    pub(crate) spec: Arc<JobSpec>,
    pub(crate) recorder: Arc<Recorder>,
    /// The client of the guest, while there is a link.
    pub(crate) guest: watch::Sender<Option<GuestClient>>,
    /// The control request that is pending.
    pub(crate) control_request: watch::Sender<Option<ControlRequest>>,
    pub(crate) used: LastUse,
    /// How long a bare sandbox may be idle.
    pub(crate) idle_ms: watch::Sender<Option<i64>>,
    /// The user who has taken over the sandbox.
    pub(crate) holder: watch::Sender<Option<Holder>>,
    /// Streams model output to live viewers.
    pub(crate) speech: LiveTokens,
    /// Whether the job is paused and needs no slot.
    pub(crate) is_paused: Arc<AtomicBool>,
    /// Delays or refuses cells of a job that has lost a sandbox.
    pub(crate) kernels: Arc<LostKernelGuard>,
    /// The egress ceiling, fixed when the job's egress proxy was created; unset while there is none.
    pub(crate) ceiling: Arc<OnceLock<Option<egress::Mode>>>,
    /// What the sandbox has used over time.
    pub(crate) usage: Arc<UsageHistory>,
}

#[derive(Default)]
pub(crate) struct LiveJobs {
    jobs: Mutex<HashMap<JobId, Option<LiveJob>>>,
    /// Bare sandboxes that are being created: they count towards the limit before they can be reached.
    sandbox_slots: Mutex<HashSet<JobId>>,
    /// Notified when a job becomes reachable.
    entered: Notify,
    /// Notified when a driver ends.
    left: Notify,
}

/// The slot of a bare sandbox that is being created.
pub(crate) struct SandboxSlot<'a> {
    jobs: &'a LiveJobs,
    id: JobId,
}

impl Drop for SandboxSlot<'_> {
    fn drop(&mut self) {
        self.jobs.sandbox_slots.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.id);
    }
}

impl LiveJobs {
    /// Reserves a job for a driver. Returns `false` if it already has one.
    pub(crate) fn reserve(&self, job: JobId) -> bool {
        let mut jobs = self.lock();
        if jobs.contains_key(&job) {
            return false;
        }
        jobs.insert(job, None);
        true
    }

    /// Makes a job with a driver reachable.
    pub(crate) fn enter(&self, job: JobId, live: LiveJob) {
        self.lock().insert(job, Some(live));
        self.entered.notify_waiters();
    }

    /// What jobs wait for that needs the operator, one entry per waiting job.
    pub(crate) fn waiting(&self) -> Vec<String> {
        let causes = self.lock();
        let causes = causes.values().flatten().filter_map(|live| live.recorder.waiting().cause());
        causes.map(|cause| cause.to_string()).collect()
    }

    /// Waits until the job has a driver and returns the job.
    pub(crate) async fn wait_for(&self, job: JobId) -> LiveJob {
        loop {
            let entered = self.entered.notified();
            if let Some(live) = self.get(job) {
                return live;
            }
            entered.await;
        }
    }

    /// Removes a job whose driver has ended.
    pub(crate) fn leave(&self, job: JobId) {
        self.lock().remove(&job);
        self.left.notify_waiters();
    }

    /// Returns once no job has a driver.
    pub(crate) async fn all_drivers_ended(&self) {
        loop {
            let left = self.left.notified();
            if self.count_jobs() == 0 {
                return;
            }
            left.await;
        }
    }

    /// Returns once the job has no driver.
    pub(crate) async fn has_left(&self, job: JobId) {
        loop {
            let left = self.left.notified();
            if !self.contains(job) {
                return;
            }
            left.await;
        }
    }

    pub(crate) fn get(&self, job: JobId) -> Option<LiveJob> {
        self.lock().get(&job).cloned().flatten()
    }

    /// All reachable jobs.
    pub(crate) fn all(&self) -> Vec<(JobId, LiveJob)> {
        self.lock().iter().filter_map(|(job, live)| Some((*job, live.clone()?))).collect()
    }

    /// Whether the job has a driver, including one that is still starting.
    pub(crate) fn contains(&self, job: JobId) -> bool {
        self.lock().contains_key(&job)
    }

    /// Number of working jobs, including those whose driver is starting. A paused job occupies no slot.
    pub(crate) fn count_jobs(&self) -> usize {
        let works = |live: &LiveJob| live.kind == JobKind::Job && !live.is_paused.load(Ordering::Relaxed);
        self.lock().values().filter(|live| live.as_ref().is_none_or(works)).count()
    }

    /// Number of reachable bare sandboxes.
    pub(crate) fn count_sandboxes(&self) -> usize {
        self.lock().values().flatten().filter(|live| live.kind == JobKind::Sandbox).count()
    }

    /// Takes a slot for a bare sandbox if fewer than `most` are taken; otherwise returns the number of taken slots.
    /// The slot is held until the sandbox is reachable, or its creation has failed.
    pub(crate) fn arrive(&self, id: JobId, most: usize) -> Result<SandboxSlot<'_>, usize> {
        let mut sandbox_slots = self.sandbox_slots.lock().unwrap_or_else(PoisonError::into_inner);
        let count = self.count_slots(&sandbox_slots);
        if count >= most {
            return Err(count);
        }
        sandbox_slots.insert(id);
        Ok(SandboxSlot { jobs: self, id })
    }

    /// Number of slots taken by bare sandboxes, including those being created.
    pub(crate) fn count_sandbox_slots(&self) -> usize {
        self.count_slots(&self.sandbox_slots.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn count_slots(&self, sandbox_slots: &HashSet<JobId>) -> usize {
        let jobs = self.lock();
        let is_sandbox = |live: &&LiveJob| live.kind == JobKind::Sandbox;
        let reached = jobs.values().flatten().filter(is_sandbox).count();
        let is_unreachable = |id: &&JobId| !jobs.get(id).is_some_and(Option::is_some);
        reached + sandbox_slots.iter().filter(is_unreachable).count()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<JobId, Option<LiveJob>>> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
