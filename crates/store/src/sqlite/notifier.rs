//! Notifies watchers about new events of a job.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use job::{JobId, Sequence};
use tokio::sync::watch;

/// Up to this many unused entries are tolerated.
const MANY: usize = 64;

/// The watchers of each job.
#[derive(Default)]
pub(super) struct EventNotifier {
    jobs: Mutex<HashMap<JobId, watch::Sender<Sequence>>>,
}

impl EventNotifier {
    /// The newest durable sequence number of a job, as reported since the first watcher subscribed; 0 before that.
    pub(super) fn watch(&self, job: JobId) -> watch::Receiver<Sequence> {
        let mut jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        // A finished job gets no further events that would clean up its entry, so that is done here.
        if jobs.len() >= MANY && jobs.len() == jobs.capacity() {
            jobs.retain(|_, sender| sender.receiver_count() > 0);
        }
        jobs.entry(job).or_insert_with(|| watch::channel(0).0).subscribe()
    }

    /// Notifies the watchers of a job, and forgets the job if there are none left.
    pub(super) fn tell(&self, job: JobId, sequence: Sequence) {
        let mut jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(sender) = jobs.get(&job)
            && sender.send(sequence).is_err()
        {
            jobs.remove(&job);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_without_watchers_are_forgotten() {
        let notifier = EventNotifier::default();
        let kept = JobId::generate();
        let mut watcher = notifier.watch(kept);
        for _ in 0..10_000 {
            drop(notifier.watch(JobId::generate()));
        }
        assert!(notifier.jobs.lock().unwrap().len() < 1000);
        notifier.tell(kept, 7);
        assert!(watcher.has_changed().unwrap());
        assert_eq!(*watcher.borrow_and_update(), 7);
    }
}
