//! Removes jobs that are over and old, or that take too much room. Never one that is not over.

use std::sync::Arc;

use crate::clock::now_ms;
use crate::core::Core;
use crate::error::OrchestratorError;

/// How many jobs are looked at in one go.
const BATCH: usize = 100_000;

pub(crate) async fn prune(core: &Arc<Core>) -> Result<(), OrchestratorError> {
    let max_age_ms = i64::try_from(core.settings.retention_age.as_millis()).unwrap_or(i64::MAX);
    let oldest_kept = now_ms().saturating_sub(max_age_ms);
    let over = core.store.over(BATCH).await?;
    let sizes = {
        let core = Arc::clone(core);
        let jobs: Vec<_> = over.iter().map(|view| view.job_id).collect();
        let walked = tokio::task::spawn_blocking(move || {
            jobs.into_iter().map(|job| core.folder.job_bytes(job)).collect::<Vec<u64>>()
        });
        walked.await.unwrap_or_default()
    };
    let mut total: u64 = sizes.iter().sum();
    for (view, bytes) in over.iter().zip(sizes) {
        let too_old = view.ended_ms.unwrap_or(view.created_ms) < oldest_kept;
        let too_much = total > core.settings.retention_bytes;
        if !too_old && !too_much {
            continue;
        }
        if core.live.contains(view.job_id) {
            continue;
        }
        core.store.delete(view.job_id).await?;
        core.folder.remove_job(view.job_id)?;
        total = total.saturating_sub(bytes);
        tracing::info!(job = %view.job_id, "removed an old job");
    }
    Ok(())
}
