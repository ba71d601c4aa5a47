//! Makes the running drivers and sandboxes match the store. Takes no arguments, may run at any time, and is
//! idempotent.
//!
//! Jobs without a driver get a new one. Sandboxes whose job is over or uses another sandbox are destroyed.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use sandbox::SandboxId;

use crate::core::Core;
use crate::error::OrchestratorError;
use crate::scheduler::{LEASE_MS, start_driver};
use crate::upkeep::model_watch;

/// Interval between two runs; the first one is at start.
const INTERVAL: Duration = Duration::from_secs(15);
/// How often the heads of the event logs are signed.
const HEAD_INTERVAL: Duration = Duration::from_secs(60);

/// Time limit for the last signatures at shutdown.
const LAST_HEADS_TIMEOUT: Duration = Duration::from_secs(3);

/// Runs until the server shuts down.
pub(crate) async fn run(core: Arc<Core>) {
    let mut next_heads = tokio::time::Instant::now();
    let mut model_settings = core.models.changes();
    loop {
        if let Err(error) = reconcile(&core).await {
            tracing::warn!(error = &error as &dyn std::error::Error, "reconciling failed, trying again");
        }
        if tokio::time::Instant::now() >= next_heads && !core.shutdown.is_cancelled() {
            sign_heads(&core).await;
            next_heads += HEAD_INTERVAL;
        }
        tokio::select! {
            () = core.shutdown.cancelled() => {
                // A database that cannot be written must not block shutdown; the next server process signs the heads.
                if tokio::time::timeout(LAST_HEADS_TIMEOUT, sign_heads(&core)).await.is_err() {
                    tracing::warn!("the ends of logs are not signed, the database does not answer");
                }
                return;
            }
            () = tokio::time::sleep(INTERVAL) => {}
            // Jobs that wait for a model may have one now.
            Ok(()) = model_settings.changed() => {}
        }
    }
}

async fn sign_heads(core: &Core) {
    if let Err(error) = core.store.sign_heads().await {
        tracing::warn!(
            error = &error as &dyn std::error::Error,
            "signing the ends of logs failed, trying again"
        );
    }
}

pub(crate) async fn reconcile(core: &Arc<Core>) -> Result<(), OrchestratorError> {
    core.store.renew_leases(LEASE_MS).await?;
    // A sandbox is logged before it is created. So a sandbox that is listed here, and that no job read afterwards
    // refers to, is not needed.
    let existing = core.backend.list().await.map_err(OrchestratorError::from);
    let existing = match existing {
        // Jobs still need drivers: they wait for the backend, and can be cancelled.
        Err(error) if error.is_backend_unavailable() => {
            core.backend_watch.note(&error);
            Vec::new()
        }
        existing => existing?,
    };
    let mut wanted: HashSet<SandboxId> = core.pool.members().into_iter().collect();
    for job in core.store.unfinished().await? {
        if let Ok(view) = core.store.job(job).await {
            wanted.extend(view.sandbox);
        }
        if core.retry_backoff.may_try(job) {
            start_driver(core, job).await?;
        }
    }
    for sandbox in existing.into_iter().filter(|sandbox| !wanted.contains(sandbox)) {
        if let Err(error) = core.backend.destroy(sandbox).await {
            tracing::warn!(%sandbox, error = &error as &dyn std::error::Error, "the sandbox is not gone yet");
        }
    }
    model_watch::look(core);
    core.queue_changed.notify_one();
    Ok(())
}
