//! Tracks whether the backend answers. While it does not, the scheduler picks no jobs and jobs that need the backend
//! wait; one task polls the backend for all of them.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use crate::error::OrchestratorError;

#[derive(Default)]
pub(crate) struct BackendWatch {
    /// Why the backend is unreachable; `None` while it is reachable.
    outage: watch::Sender<Option<Arc<str>>>,
}

impl BackendWatch {
    /// Records a backend that is unreachable. Ignores all other errors.
    pub(crate) fn note(&self, error: &OrchestratorError) {
        if !error.is_backend_unavailable() {
            return;
        }
        let why: Arc<str> = error.to_string().into();
        let begins = self.outage.send_replace(Some(Arc::clone(&why))).is_none();
        if begins {
            tracing::warn!(%why, "cannot reach the sandboxes; jobs wait until they are reachable");
        }
    }

    /// Why the backend is unreachable; `None` while no request has failed for that reason.
    pub(crate) fn outage(&self) -> Option<Arc<str>> {
        self.outage.borrow().clone()
    }

    /// Waits until the backend answers; returns at once if it does.
    pub(crate) async fn answers(&self) {
        self.wait_for(false).await;
    }

    pub(crate) async fn wait_for(&self, outage: bool) {
        // Cannot fail: `self` holds the sender.
        let _ = self.outage.subscribe().wait_for(|now| now.is_some() == outage).await;
    }

    pub(crate) fn is_over(&self) {
        if self.outage.send_replace(None).is_some() {
            tracing::info!("sandboxes can be reached again");
        }
    }
}

/// Interval between two pings of a backend that does not answer.
pub(crate) const PAUSE: Duration = Duration::from_millis(500);

/// The longest pause before the first question, for a backend whose outages follow each other.
pub(crate) const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// An outage that begins within this time after the last one follows it.
const STEADY_AFTER: Duration = Duration::from_secs(60);

/// How long to wait before a backend is asked for the first time in an outage. A backend that answers this question and
/// fails every other operation would otherwise make all jobs change their state twice a second.
pub(crate) struct Backoff {
    pause: Duration,
    recovered: Option<Instant>,
}

impl Backoff {
    pub(crate) fn new() -> Self {
        Self { pause: PAUSE, recovered: None }
    }

    /// An outage begins; how long to wait before the first question.
    pub(crate) fn begin(&mut self) -> Duration {
        let follows = self.recovered.is_some_and(|at| at.elapsed() < STEADY_AFTER);
        self.pause = if follows { (self.pause * 2).min(LONGEST_PAUSE) } else { PAUSE };
        self.pause
    }

    /// The outage is over.
    pub(crate) fn end(&mut self) {
        self.recovered = Some(Instant::now());
    }
}

#[cfg(test)]
mod tests {
    use sandbox::SandboxError;
    use store::StoreError;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn outages_that_follow_each_other_are_given_more_time_and_a_steady_backend_starts_over() {
        let mut backoff = Backoff::new();
        let mut pauses = Vec::new();
        for steady in [1, 1, 1, 120, 1] {
            pauses.push(backoff.begin());
            backoff.end();
            tokio::time::advance(Duration::from_secs(steady)).await;
        }
        assert_eq!(pauses, [1, 2, 4, 8, 1].map(|factor| PAUSE * factor));
        let longest = std::iter::repeat_with(|| {
            backoff.end();
            backoff.begin()
        });
        assert_eq!(longest.take(20).last(), Some(LONGEST_PAUSE));
    }

    #[tokio::test]
    async fn only_an_unavailable_backend_starts_an_outage() {
        let watch = BackendWatch::default();
        watch.note(&StoreError::DiskFull.into());
        watch.note(&SandboxError::NoImage("missing".into()).into());
        assert_eq!(watch.outage(), None);
        watch.answers().await;
        let stopped = SandboxError::Unavailable { what: "it is stopped".into(), remedy: "start it".into() };
        watch.note(&stopped.into());
        assert_eq!(watch.outage().as_deref(), Some("it is stopped; start it"));
        let (answers, ()) = tokio::join!(watch.answers(), async { watch.is_over() });
        assert_eq!((answers, watch.outage()), ((), None));
    }
}
