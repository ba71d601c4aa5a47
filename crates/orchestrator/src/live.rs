//! The jobs that this server drives right now, and how to reach them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use protocol::GuestClient;
use tokio::sync::watch;

use crate::event::Wish;
use crate::ids::JobId;
use crate::recorder::Recorder;

/// A job that is driven.
#[derive(Clone)]
pub(crate) struct LiveJob {
    /// Writes to its log.
    pub(crate) recorder: Arc<Recorder>,
    /// Its guest, while there is a link.
    pub(crate) guest: watch::Sender<Option<GuestClient>>,
    /// What somebody wants of it.
    pub(crate) wish: watch::Sender<Option<Wish>>,
}

/// All of them.
#[derive(Default)]
pub(crate) struct LiveJobs {
    jobs: Mutex<HashMap<JobId, Option<LiveJob>>>,
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
    }

    /// A job that is driven.
    pub(crate) fn get(&self, job: JobId) -> Option<LiveJob> {
        self.lock().get(&job).cloned().flatten()
    }

    /// Whether a driver has the job, also one that has just begun.
    pub(crate) fn contains(&self, job: JobId) -> bool {
        self.lock().contains_key(&job)
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.lock().len()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<JobId, Option<LiveJob>>> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
