//! The jobs that this server drives right now, and how to reach them.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use protocol::GuestClient;
use tokio::sync::{Notify, watch};

use crate::answers::JobKind;
use crate::event::Wish;
use crate::hold::Holder;
use crate::ids::JobId;
use crate::kernels::KernelGate;
use crate::last_use::LastUse;
use crate::recorder::Recorder;
use crate::request::JobSpec;
use crate::speech::Speech;

/// A job that is driven.
#[derive(Clone)]
pub(crate) struct LiveJob {
    /// A job, or a bare sandbox.
    pub(crate) kind: JobKind,
    /// What was asked for; it does not change.
    pub(crate) spec: Arc<JobSpec>,
    /// Writes to its log.
    pub(crate) recorder: Arc<Recorder>,
    /// Its guest, while there is a link.
    pub(crate) guest: watch::Sender<Option<GuestClient>>,
    /// What somebody wants of it.
    pub(crate) wish: watch::Sender<Option<Wish>>,
    /// When somebody last used it.
    pub(crate) used: LastUse,
    /// How long a bare sandbox may be idle.
    pub(crate) idle_ms: watch::Sender<Option<i64>>,
    /// Who has taken it over.
    pub(crate) holder: watch::Sender<Option<Holder>>,
    /// What its model says.
    pub(crate) speech: Speech,
    /// Whether it waits for somebody.
    pub(crate) is_paused: Arc<AtomicBool>,
    /// What cells of a job that has lost a sandbox pass.
    pub(crate) kernels: Arc<KernelGate>,
    /// The ceiling of its way out, which stays as it was when that was made; not set while there is none.
    pub(crate) ceiling: Arc<OnceLock<Option<egress::Mode>>>,
}

/// All of them.
#[derive(Default)]
pub(crate) struct LiveJobs {
    jobs: Mutex<HashMap<JobId, Option<LiveJob>>>,
    /// Bare sandboxes that are being made: they count before they can be reached.
    arriving: Mutex<HashSet<JobId>>,
    /// One of them can be reached.
    entered: Notify,
    /// One of them has left.
    left: Notify,
}

/// The place of a bare sandbox that is being made.
pub(crate) struct Arriving<'a> {
    jobs: &'a LiveJobs,
    id: JobId,
}

impl Drop for Arriving<'_> {
    fn drop(&mut self) {
        self.jobs.arriving.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.id);
    }
}

impl LiveJobs {
    /// Reserves a job for a driver; `false` when one drives it already.
    pub(crate) fn reserve(&self, job: JobId) -> bool {
        let mut jobs = self.lock();
        if jobs.contains_key(&job) {
            return false;
        }
        jobs.insert(job, None);
        true
    }

    /// Makes a driven job reachable.
    pub(crate) fn enter(&self, job: JobId, live: LiveJob) {
        self.lock().insert(job, Some(live));
        self.entered.notify_waiters();
    }

    /// What jobs wait for that the operator must give; those that wait for nothing are left out.
    pub(crate) fn waiting(&self) -> Vec<String> {
        let causes = self.lock();
        let causes = causes.values().flatten().filter_map(|live| live.recorder.waiting().cause());
        causes.map(|cause| cause.to_string()).collect()
    }

    /// Returns a job when it is driven.
    pub(crate) async fn wait_for(&self, job: JobId) -> LiveJob {
        loop {
            let entered = self.entered.notified();
            if let Some(live) = self.get(job) {
                return live;
            }
            entered.await;
        }
    }

    /// The driver has ended.
    pub(crate) fn leave(&self, job: JobId) {
        self.lock().remove(&job);
        self.left.notify_waiters();
    }

    /// Returns when none is driven any more.
    pub(crate) async fn all_left(&self) {
        loop {
            let left = self.left.notified();
            if self.count_jobs() == 0 {
                return;
            }
            left.await;
        }
    }

    /// Returns when the job is not driven any more.
    pub(crate) async fn has_left(&self, job: JobId) {
        loop {
            let left = self.left.notified();
            if !self.contains(job) {
                return;
            }
            left.await;
        }
    }

    /// A job that is driven.
    pub(crate) fn get(&self, job: JobId) -> Option<LiveJob> {
        self.lock().get(&job).cloned().flatten()
    }

    /// All that can be reached.
    pub(crate) fn all(&self) -> Vec<(JobId, LiveJob)> {
        self.lock().iter().filter_map(|(job, live)| Some((*job, live.clone()?))).collect()
    }

    /// Whether a driver has the job, also one that has just begun.
    pub(crate) fn contains(&self, job: JobId) -> bool {
        self.lock().contains_key(&job)
    }

    /// How many jobs work, those that have just begun included. One that waits for somebody takes no place.
    pub(crate) fn count_jobs(&self) -> usize {
        let works = |live: &LiveJob| live.kind == JobKind::Job && !live.is_paused.load(Ordering::Relaxed);
        self.lock().values().filter(|live| live.as_ref().is_none_or(works)).count()
    }

    /// How many bare sandboxes can be reached.
    pub(crate) fn count_sandboxes(&self) -> usize {
        self.lock().values().flatten().filter(|live| live.kind == JobKind::Sandbox).count()
    }

    /// A place for a bare sandbox where there are fewer than `most`; else how many there are. The place is held until the
    /// sandbox can be reached, or has come to nothing.
    pub(crate) fn arrive(&self, id: JobId, most: usize) -> Result<Arriving<'_>, usize> {
        let mut arriving = self.arriving.lock().unwrap_or_else(PoisonError::into_inner);
        let count = self.count_places(&arriving);
        if count >= most {
            return Err(count);
        }
        arriving.insert(id);
        Ok(Arriving { jobs: self, id })
    }

    /// How many places bare sandboxes take, those included that are being made.
    pub(crate) fn count_sandbox_places(&self) -> usize {
        self.count_places(&self.arriving.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn count_places(&self, arriving: &HashSet<JobId>) -> usize {
        let jobs = self.lock();
        let is_sandbox = |live: &&LiveJob| live.kind == JobKind::Sandbox;
        let reached = jobs.values().flatten().filter(is_sandbox).count();
        let is_coming = |id: &&JobId| !jobs.get(id).is_some_and(Option::is_some);
        reached + arriving.iter().filter(is_coming).count()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<JobId, Option<LiveJob>>> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
