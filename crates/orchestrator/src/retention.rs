//! Removes jobs that are over and old, or that take too much room, drafts that were never started, and before that what
//! events said, if wanted. Never anything of a job that may still go on.

use std::sync::Arc;

use crate::clock::now_ms;
use crate::core::Core;
use crate::error::OrchestratorError;
use crate::forms;
use crate::ids::JobId;
use crate::state::JobState;

/// How many jobs are looked at in one go.
const BATCH: usize = 100_000;

pub(crate) async fn prune(core: &Arc<Core>) -> Result<(), OrchestratorError> {
    let max_age_ms = i64::try_from(core.settings().retention_age.as_millis()).unwrap_or(i64::MAX);
    let oldest_kept = now_ms().saturating_sub(max_age_ms);
    let (drafts, over): (Vec<_>, Vec<_>) =
        core.store.removable(BATCH).await?.into_iter().partition(|view| view.state == JobState::Draft);
    for draft in drafts.iter().filter(|view| view.created_ms < oldest_kept && !forms::is_receiving(view)) {
        // It may have been started meanwhile.
        if core.store.job(draft.job_id).await?.state == JobState::Draft && !core.live.contains(draft.job_id) {
            remove(core, draft.job_id).await?;
        }
    }
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
        let too_much = total > core.settings().retention_bytes;
        if !too_old && !too_much {
            continue;
        }
        if core.live.contains(view.job_id) {
            continue;
        }
        remove(core, view.job_id).await?;
        total = total.saturating_sub(bytes);
    }
    drop_payloads(core).await
}

async fn remove(core: &Core, job: JobId) -> Result<(), OrchestratorError> {
    core.store.delete(job).await?;
    core.folder.remove_job(job)?;
    tracing::info!(%job, "removed an old job");
    Ok(())
}

async fn drop_payloads(core: &Arc<Core>) -> Result<(), OrchestratorError> {
    let Some(age) = core.settings().retention_payload_age else { return Ok(()) };
    let oldest_kept = now_ms().saturating_sub(i64::try_from(age.as_millis()).unwrap_or(i64::MAX));
    for job in core.store.with_old_payloads(oldest_kept, BATCH).await? {
        if !core.live.contains(job) {
            core.store.drop_payloads(job).await?;
            tracing::info!(job = %job, "dropped what the events of an old job said");
        }
    }
    Ok(())
}
