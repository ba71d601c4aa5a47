//! Whether the backend answers. While it does not, nothing is picked from the queue, and jobs that need it wait; one task asks it again
//! for all of them.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use crate::core::Core;
use crate::error::OrchestratorError;
use crate::reconcile::reconcile;

/// How often a backend that does not answer is asked again.
const PAUSE: Duration = Duration::from_millis(500);

/// What is known of it now.
#[derive(Default)]
pub(crate) struct BackendWatch {
    /// Why it cannot be asked for anything, while it cannot.
    outage: watch::Sender<Option<Arc<str>>>,
}

impl BackendWatch {
    /// Takes in what a request to the backend has come to. Other failures than its absence mean nothing here.
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

    /// Why it cannot be asked for anything; `None` while it can, as far as anybody has noticed.
    pub(crate) fn outage(&self) -> Option<Arc<str>> {
        self.outage.borrow().clone()
    }

    /// Returns once it answers, at once where it does.
    pub(crate) async fn answers(&self) {
        self.wait_for(false).await;
    }

    async fn wait_for(&self, outage: bool) {
        // The sender is here: this does not fail.
        let _ = self.outage.subscribe().wait_for(|now| now.is_some() == outage).await;
    }

    fn is_over(&self) {
        if self.outage.send_replace(None).is_some() {
            tracing::info!("sandboxes can be reached again");
        }
    }
}

/// Asks a backend that does not answer until it does, and then lets everything go on. Runs until the server goes down.
pub(crate) async fn run(core: Arc<Core>) {
    loop {
        tokio::select! {
            () = core.shutdown.cancelled() => return,
            () = until_it_answers(&core) => {}
        }
        // Before the scheduler looks.
        core.setbacks.hurry();
        core.backend_watch.is_over();
        // They may have ended with the engine that ran them.
        core.pool.give_up_ready();
        core.queue_changed.notify_one();
        // What could not be removed meanwhile is.
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
            // What else is wrong with it the next job tells.
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
