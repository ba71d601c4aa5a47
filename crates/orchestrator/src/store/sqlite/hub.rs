//! Tells watchers that a job has new events.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use tokio::sync::watch;

use crate::ids::{JobId, Sequence};

/// Who watches which job.
#[derive(Default)]
pub(super) struct Hub {
    jobs: Mutex<HashMap<JobId, watch::Sender<Sequence>>>,
}

impl Hub {
    /// The newest durable sequence number of a job, as far as it was told since somebody watches; 0 before that.
    pub(super) fn watch(&self, job: JobId) -> watch::Receiver<Sequence> {
        let mut jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        jobs.entry(job).or_insert_with(|| watch::channel(0).0).subscribe()
    }

    /// Tells the watchers of a job, and forgets a job that nobody watches any more.
    pub(super) fn tell(&self, job: JobId, sequence: Sequence) {
        let mut jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(sender) = jobs.get(&job)
            && sender.send(sequence).is_err()
        {
            jobs.remove(&job);
        }
    }
}
