//! Asks a backend that did not answer again and again, until it does.

use std::sync::Arc;

use sandbox::Backend;

use crate::core::Core;
use crate::core::backend_watch::Backoff;
use crate::core::backend_watch::PAUSE;
use crate::error::OrchestratorError;
use crate::upkeep::reconcile::reconcile;

/// Waits for outages, pings the backend until it answers, and then lets all jobs continue. Runs until the server
/// shuts down.
pub(crate) async fn run(core: Arc<Core>) {
    let mut backoff = Backoff::new();
    loop {
        tokio::select! {
            () = core.shutdown.cancelled() => return,
            () = until_it_answers(&core, &mut backoff) => {}
        }
        // Must happen before the scheduler runs.
        core.retry_backoff.hurry();
        core.backend_watch.is_over();
        // The ready sandboxes may have died with the engine that ran them.
        core.pool.discard_ready();
        core.queue_changed.notify_one();
        // Remove what could not be removed during the outage.
        if let Err(error) = reconcile(&core).await {
            tracing::warn!(error = &error as &dyn std::error::Error, "reconciling failed, trying again");
        }
    }
}

/// Returns when an outage has begun and is over.
async fn until_it_answers(core: &Core, backoff: &mut Backoff) {
    core.backend_watch.wait_for(true).await;
    let mut pause = backoff.begin();
    loop {
        tokio::time::sleep(pause).await;
        pause = PAUSE;
        match ping(&*core.backend).await {
            Err(error) if error.is_backend_unavailable() => core.backend_watch.note(&error),
            // Any other error shows up with the next job that uses the backend.
            _ => {
                backoff.end();
                return;
            }
        }
    }
}

/// Asks whether the service behind the backend answers; a backend without one always does.
pub(crate) async fn ping(backend: &dyn Backend) -> Result<(), OrchestratorError> {
    match backend.engine() {
        Some(engine) => Ok(engine.ping().await?),
        None => Ok(()),
    }
}
