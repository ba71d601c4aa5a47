//! Tracks whether the backend answers. While it does not, the scheduler picks no jobs and jobs that need the backend
//! wait; one task polls the backend for all of them.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use crate::core::Core;
use crate::error::OrchestratorError;
use crate::reconcile::reconcile;

/// Interval between two pings of a backend that does not answer.
const PAUSE: Duration = Duration::from_millis(500);

#[derive(Default)]
pub(crate) struct BackendWatch {
    /// Why the backend is unreachable; `None` while it is reachable.
    outage: watch::Sender<Option<Arc<str>>>,
}

impl BackendWatch {
    /// Records a backend that is unreachable. Ignores all other errors.
    pub(crate) fn note(&self, error: &OrchestratorError) {
        if !error.is_backend_away() {
            return;
        }
        let why: Arc<str> = error.to_string().into();
        let begins = self.outage.send_replace(Some(Arc::clone(&why))).is_none();
        if begins {
            tracing::warn!(%why, "sandboxes cannot be reached; jobs wait until they can");
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

    async fn wait_for(&self, outage: bool) {
        // Cannot fail: `self` holds the sender.
        let _ = self.outage.subscribe().wait_for(|now| now.is_some() == outage).await;
    }

    fn is_over(&self) {
        if self.outage.send_replace(None).is_some() {
            tracing::info!("sandboxes can be reached again");
        }
    }
}

/// Waits for outages, pings the backend until it answers, and then lets all jobs continue. Runs until the server
/// shuts down.
pub(crate) async fn run(core: Arc<Core>) {
    loop {
        tokio::select! {
            () = core.shutdown.cancelled() => return,
            () = until_it_answers(&core) => {}
        }
        // Must happen before the scheduler runs.
        core.setbacks.hurry();
        core.backend_watch.is_over();
        // The ready sandboxes may have died with the engine that ran them.
        core.pool.give_up_ready();
        core.queue_changed.notify_one();
        // Remove what could not be removed during the outage.
        if let Err(error) = reconcile(&core).await {
            tracing::warn!(error = &error as &dyn std::error::Error, "reconciling failed, trying again");
        }
    }
}

/// Returns when an outage has begun and is over.
async fn until_it_answers(core: &Core) {
    core.backend_watch.wait_for(true).await;
    loop {
        tokio::time::sleep(PAUSE).await;
        match core.backend.ping().await.map_err(OrchestratorError::from) {
            Err(error) if error.is_backend_away() => core.backend_watch.note(&error),
            // Any other error shows up with the next job that uses the backend.
            _ => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use sandbox::SandboxError;

    use super::*;

    #[tokio::test]
    async fn only_a_backend_that_does_not_answer_is_waited_for() {
        let watch = BackendWatch::default();
        watch.note(&OrchestratorError::DiskFull);
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
