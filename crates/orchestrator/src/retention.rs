//! Removes jobs that are over and old, or that take too much room, drafts that were never started, folders of jobs that nobody
//! knows, and before that what events said, if wanted. Never anything of a job that may still go on.
//!
//! What cannot be removed is told and left for the next time; it keeps nothing else from being removed.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use crate::access::Actor;
use crate::clock::now_ms;
use crate::clock_watch::{ClockWatch, Verdict};
use crate::core::Core;
use crate::error::OrchestratorError;
use crate::forms;
use crate::ids::JobId;
use crate::state::JobState;
use crate::view::JobView;

/// How many jobs are looked at in one go.
const BATCH: usize = 100_000;
const DAY_MS: i64 = 86_400_000;

pub(crate) async fn prune(core: &Arc<Core>, clock: &mut ClockWatch) -> Result<(), OrchestratorError> {
    let removable = core.store.removable(BATCH).await?;
    let may_go_by_age = is_believed(clock, &removable);
    let (drafts, over): (Vec<_>, Vec<_>) =
        removable.into_iter().partition(|view| view.state == JobState::Draft);
    let mut oldest_kept = i64::MIN;
    if may_go_by_age {
        oldest_kept = before(core.settings().retention_age);
        remove_drafts(core, &drafts, oldest_kept).await;
    }
    remove_over(core, &over, oldest_kept).await?;
    if may_go_by_age {
        remove_unknown(core, oldest_kept).await?;
        drop_payloads(core).await?;
    }
    while core.store.shrink().await? {
        if core.shutdown.is_cancelled() {
            break;
        }
    }
    Ok(())
}

/// Whether the clock may decide what is old.
fn is_believed(clock: &mut ClockWatch, known: &[JobView]) -> bool {
    let newest_ms = known.iter().map(|view| view.ended_ms.unwrap_or(view.created_ms)).max();
    match clock.look(newest_ms) {
        Verdict::Believed => true,
        Verdict::Jumped { ahead_ms } => {
            tracing::warn!(
                days = ahead_ms / DAY_MS,
                "the clock is that far ahead of where it was expected: nothing is removed for its age until it has been so for a day"
            );
            false
        }
        Verdict::StillDoubted => false,
    }
}

fn before(age: Duration) -> i64 {
    now_ms().saturating_sub(i64::try_from(age.as_millis()).unwrap_or(i64::MAX))
}

async fn remove_drafts(core: &Core, drafts: &[JobView], oldest_kept: i64) {
    for draft in drafts.iter().filter(|view| view.created_ms < oldest_kept && !forms::is_receiving(view)) {
        // It may have been started meanwhile.
        let is_draft = core.store.job(draft.job_id).await.is_ok_and(|view| view.state == JobState::Draft);
        if is_draft && !core.live.contains(draft.job_id) {
            remove(core, draft.job_id).await;
        }
    }
}

async fn remove_over(core: &Arc<Core>, over: &[JobView], oldest_kept: i64) -> Result<(), OrchestratorError> {
    let sizes = {
        let core = Arc::clone(core);
        let jobs: Vec<_> = over.iter().map(|view| view.job_id).collect();
        let walked = tokio::task::spawn_blocking(move || {
            jobs.into_iter().map(|job| core.folder.job_bytes(job)).collect::<Vec<u64>>()
        });
        walked.await.unwrap_or_default()
    };
    let most = core.settings().retention_bytes;
    let mut folders: u64 = sizes.iter().sum();
    let mut database = core.store.used_bytes().await?;
    for (view, bytes) in over.iter().zip(sizes) {
        let too_old = view.ended_ms.unwrap_or(view.created_ms) < oldest_kept;
        let too_much = folders.saturating_add(database) > most;
        if (!too_old && !too_much) || core.live.contains(view.job_id) {
            continue;
        }
        if remove(core, view.job_id).await {
            folders = folders.saturating_sub(bytes);
            database = core.store.used_bytes().await?;
        }
    }
    Ok(())
}

/// Removes a job; whether that could be done.
async fn remove(core: &Core, job: JobId) -> bool {
    let deleted = core.store.delete(job, Actor::named("retention")).await;
    let removed = deleted.and_then(|()| core.folder.remove_job(job));
    match removed {
        Ok(()) => tracing::info!(%job, "removed an old job"),
        Err(ref error) => {
            let error = error as &dyn std::error::Error;
            tracing::warn!(%job, error, "an old job could not be removed, trying again later");
        }
    }
    removed.is_ok()
}

/// Removes old folders of jobs that are in no database: a job is stored before its folder is made, so nobody will ask for them.
/// They are kept as long as jobs are, for who has lost the database and wants the results.
async fn remove_unknown(core: &Arc<Core>, oldest_kept: i64) -> Result<(), OrchestratorError> {
    let folders = {
        let core = Arc::clone(core);
        let listed = tokio::task::spawn_blocking(move || core.folder.jobs_older_than(oldest_kept));
        listed.await.unwrap_or_default()
    };
    if folders.is_empty() {
        return Ok(());
    }
    // Read after the folders were: whatever was made meanwhile is known.
    let known: HashSet<JobId> = core.store.ids().await?.into_iter().collect();
    for job in folders.into_iter().filter(|job| !known.contains(job) && !core.live.contains(*job)) {
        match core.folder.remove_job(job) {
            Ok(()) => tracing::info!(%job, "removed the folder of a job that is in no database"),
            Err(error) => {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(%job, error, "the folder of a job that is in no database could not be removed");
            }
        }
    }
    Ok(())
}

async fn drop_payloads(core: &Core) -> Result<(), OrchestratorError> {
    let Some(age) = core.settings().retention_payload_age else { return Ok(()) };
    for job in core.store.with_old_payloads(before(age), BATCH).await? {
        if core.live.contains(job) {
            continue;
        }
        match core.store.drop_payloads(job).await {
            Ok(()) => tracing::info!(%job, "dropped what the events of an old job said"),
            Err(error) => {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(%job, error, "what the events of an old job said could not be dropped");
            }
        }
    }
    Ok(())
}
