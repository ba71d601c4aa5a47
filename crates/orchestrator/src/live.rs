//! The jobs that this server drives right now, and how to reach them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use protocol::GuestClient;
use tokio::sync::{Notify, watch};

use crate::answers::JobKind;
use crate::event::Wish;
use crate::ids::JobId;
use crate::last_use::LastUse;
use crate::recorder::Recorder;

/// A job that is driven.
#[derive(Clone)]
pub(crate) struct LiveJob {
    /// A job, or a bare sandbox.
    pub(crate) kind: JobKind,
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
}

/// All of them.
#[derive(Default)]
pub(crate) struct LiveJobs {
    jobs: Mutex<HashMap<JobId, Option<LiveJob>>>,
    /// One of them has left.
    left: Notify,
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

    /// Whether a driver has the job, also one that has just begun.
    pub(crate) fn contains(&self, job: JobId) -> bool {
        self.lock().contains_key(&job)
    }

    /// How many jobs there are, those that have just begun included.
    pub(crate) fn count_jobs(&self) -> usize {
        self.lock().values().filter(|live| live.as_ref().is_none_or(|live| live.kind == JobKind::Job)).count()
    }

    /// How many bare sandboxes there are.
    pub(crate) fn count_sandboxes(&self) -> usize {
        self.lock().values().flatten().filter(|live| live.kind == JobKind::Sandbox).count()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<JobId, Option<LiveJob>>> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
