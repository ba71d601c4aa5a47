//! Removes finished jobs that are too old or take too much space, drafts that were never started, and folders of
//! unknown jobs. Drops event payloads earlier, if configured. Never touches a job that may still continue.
//!
//! A failed removal is logged, left for the next run, and does not prevent other removals. Jobs are read page by
//! page, because a server may have hundreds of thousands.

use std::sync::Arc;
use std::time::Duration;

use job::{Actor, JobId, JobState};
use store::{Removable, StoreError};

use crate::clock::now_ms;
use crate::core::Core;
use crate::core::Orchestrator;
use crate::error::OrchestratorError;
use crate::intake::form_upload;
use crate::upkeep::clock_watch::{ClockWatch, Verdict};

/// How often old jobs are removed.
const INTERVAL: Duration = Duration::from_secs(600);
/// Number of jobs read per page.
const PAGE: usize = 1000;
const DAY_MS: i64 = 86_400_000;

/// Runs until the server shuts down. Has its own task, because removing thousands of jobs takes minutes.
pub(crate) async fn run(core: Arc<Core>) {
    let mut clock = ClockWatch::new(core.folder.root());
    loop {
        if let Err(error) = prune(&core, &mut clock).await {
            tracing::warn!(
                error = &error as &dyn std::error::Error,
                "removing old jobs failed, trying again"
            );
        }
        // Also after a failure: a full disk needs it most.
        if let Err(error) = shrink_database(&core).await {
            tracing::warn!(
                error = &error as &dyn std::error::Error,
                "the database could not be made smaller, trying again"
            );
        }
        tokio::select! {
            () = core.shutdown.cancelled() => return,
            () = tokio::time::sleep(INTERVAL) => {}
        }
    }
}

async fn prune(core: &Arc<Core>, clock: &mut ClockWatch) -> Result<(), OrchestratorError> {
    finish_deletions(core).await;
    let may_go_by_age = is_clock_trusted(core, clock).await?;
    let oldest_kept = if may_go_by_age { before(core.settings().retention_age) } else { i64::MIN };
    let kept_bytes = remove_old(core, oldest_kept).await?;
    remove_excess(core, kept_bytes).await?;
    if may_go_by_age && !core.shutdown.is_cancelled() {
        remove_unknown(core, oldest_kept).await?;
        drop_payloads(core).await?;
    }
    Ok(())
}

/// Returns the space of removed jobs to the file system.
async fn shrink_database(core: &Core) -> Result<(), OrchestratorError> {
    while !core.shutdown.is_cancelled() && core.store.shrink().await? {}
    Ok(())
}

/// Pages of removable jobs, oldest first. Ends early when the server shuts down.
struct Pages<'a> {
    core: &'a Core,
    last: Option<JobId>,
}

impl<'a> Pages<'a> {
    fn of(core: &'a Core) -> Self {
        Self { core, last: None }
    }

    async fn next(&mut self) -> Result<Option<Vec<Removable>>, OrchestratorError> {
        if self.core.shutdown.is_cancelled() {
            return Ok(None);
        }
        let page = self.core.store.removable(self.last, PAGE).await?;
        self.last = page.last().map(|found| found.job);
        Ok((!page.is_empty()).then_some(page))
    }
}

/// Whether the clock can be trusted to decide what is old.
async fn is_clock_trusted(core: &Core, clock: &mut ClockWatch) -> Result<bool, OrchestratorError> {
    let mut newest_ms = None;
    if clock.is_new() {
        let mut pages = Pages::of(core);
        while let Some(page) = pages.next().await? {
            newest_ms = newest_ms.max(page.iter().map(|found| found.since_ms).max());
        }
    }
    if core.shutdown.is_cancelled() {
        // Possibly not all jobs were read; the next server process does it.
        return Ok(false);
    }
    Ok(match clock.look(newest_ms) {
        Verdict::Trusted => true,
        Verdict::Jumped { ahead_ms } => {
            tracing::warn!(
                days = ahead_ms / DAY_MS,
                "the clock is that far ahead of where it was expected: nothing is removed for its age until it has been so for a day"
            );
            false
        }
        Verdict::StillAhead => false,
    })
}

fn before(age: Duration) -> i64 {
    now_ms().saturating_sub(i64::try_from(age.as_millis()).unwrap_or(i64::MAX))
}

/// Removes jobs that finished, and drafts that were created, before `oldest_kept`. Returns the total folder size of
/// the other finished jobs.
async fn remove_old(core: &Arc<Core>, oldest_kept: i64) -> Result<u64, OrchestratorError> {
    let mut kept_bytes: u64 = 0;
    let mut pages = Pages::of(core);
    while let Some(page) = pages.next().await? {
        let mut kept = Vec::new();
        for found in page {
            if core.shutdown.is_cancelled() {
                return Ok(kept_bytes);
            }
            let is_old = found.since_ms < oldest_kept;
            let is_gone = is_old && may_go(core, found).await && remove(core, found.job).await;
            if !is_gone && !found.is_draft {
                kept.push(found.job);
            }
        }
        kept_bytes = kept_bytes.saturating_add(folder_bytes(core, kept).await.iter().sum());
    }
    Ok(kept_bytes)
}

/// Removes finished jobs, oldest first, while folders and database together exceed the limit.
async fn remove_excess(core: &Arc<Core>, mut folders: u64) -> Result<(), OrchestratorError> {
    let most = core.settings().retention_bytes;
    let mut pages = Pages::of(core);
    while folders.saturating_add(core.store.used_bytes().await?) > most {
        let Some(page) = pages.next().await? else { break };
        let over: Vec<JobId> = page.iter().filter(|found| !found.is_draft).map(|found| found.job).collect();
        let sizes = folder_bytes(core, over.clone()).await;
        for (job, bytes) in over.into_iter().zip(sizes) {
            let is_enough = folders.saturating_add(core.store.used_bytes().await?) <= most;
            if is_enough || core.shutdown.is_cancelled() {
                return Ok(());
            }
            if !core.live.contains(job) && remove(core, job).await {
                folders = folders.saturating_sub(bytes);
            }
        }
    }
    Ok(())
}

async fn folder_bytes(core: &Arc<Core>, jobs: Vec<JobId>) -> Vec<u64> {
    let core = Arc::clone(core);
    let walked = tokio::task::spawn_blocking(move || {
        jobs.into_iter().map(|job| core.folder.job_bytes(job)).collect::<Vec<u64>>()
    });
    walked.await.unwrap_or_default()
}

/// Whether a job is not in use; a draft may have been started since it was listed.
async fn may_go(core: &Core, found: Removable) -> bool {
    let is_still_draft = async {
        let view = core.store.job(found.job).await;
        view.is_ok_and(|view| view.state == JobState::Draft && !form_upload::is_receiving(&view))
    };
    (!found.is_draft || is_still_draft.await) && !core.live.contains(found.job)
}

/// Deletes a job and all its files in the data folder.
pub(crate) async fn delete(core: &Arc<Core>, job: JobId, by: Actor) -> Result<(), OrchestratorError> {
    core.folder.note_deletion(job);
    core.store.delete(job, by).await?;
    core.shares.forget(job);
    remove_folder(core, job).await?;
    core.folder.forget_deletion(job);
    Ok(())
}

/// Removes the folders of deleted jobs that are left over because the server was killed or the removal failed.
async fn finish_deletions(core: &Arc<Core>) {
    for job in core.folder.noted_deletions() {
        if !matches!(core.store.job(job).await, Err(StoreError::NoJob(_))) {
            continue;
        }
        match remove_folder(core, job).await {
            Ok(()) => core.folder.forget_deletion(job),
            Err(error) => {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(%job, error, "the folder of a deleted job could not be removed, trying again later");
            }
        }
    }
}

/// Removes a job. Returns whether that succeeded.
async fn remove(core: &Arc<Core>, job: JobId) -> bool {
    let removed = delete(core, job, Actor::named("retention")).await;
    match &removed {
        Ok(()) => tracing::info!(%job, "removed an old job"),
        Err(error) => {
            let error = error as &dyn std::error::Error;
            tracing::warn!(%job, error, "an old job could not be removed, trying again later");
        }
    }
    removed.is_ok()
}

async fn remove_folder(core: &Arc<Core>, job: JobId) -> Result<(), OrchestratorError> {
    let core = Arc::clone(core);
    let removed = tokio::task::spawn_blocking(move || core.folder.remove_job(job));
    let failed = OrchestratorError::io(format!("removing the folder of job {job}"));
    removed.await.unwrap_or_else(|error| Err(failed(std::io::Error::other(error))))
}

/// Removes old folders of jobs that are not in the database. A job is stored before its folder is created, so such a
/// folder is never needed again. Folders are kept for as long as jobs are, so that results survive the loss of the
/// database.
async fn remove_unknown(core: &Arc<Core>, oldest_kept: i64) -> Result<(), OrchestratorError> {
    let folders = {
        let core = Arc::clone(core);
        let listed = tokio::task::spawn_blocking(move || core.folder.jobs_older_than(oldest_kept));
        listed.await.unwrap_or_default()
    };
    for job in folders {
        if core.shutdown.is_cancelled() {
            break;
        }
        match core.store.job(job).await {
            Err(StoreError::NoJob(_)) if !core.live.contains(job) => {}
            // Other errors do not say whether the job is known.
            _ => continue,
        }
        match remove_folder(core, job).await {
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
    let ended_before_ms = before(age);
    let mut last = None;
    while !core.shutdown.is_cancelled() {
        let page = core.store.with_old_payloads(ended_before_ms, last, PAGE).await?;
        last = page.last().copied();
        if last.is_none() {
            break;
        }
        for job in page.into_iter().filter(|job| !core.live.contains(*job)) {
            if core.shutdown.is_cancelled() {
                return Ok(());
            }
            match core.store.drop_payloads(job).await {
                Ok(()) => tracing::info!(%job, "dropped what the events of an old job said"),
                Err(error) => {
                    let error = &error as &dyn std::error::Error;
                    tracing::warn!(%job, error, "what the events of an old job said could not be dropped");
                }
            }
        }
    }
    Ok(())
}
impl Orchestrator {
    /// Deletes a finished job with its events and files.
    ///
    /// # Errors
    /// The job is not over, or there is none.
    pub async fn delete(&self, id: JobId) -> Result<(), OrchestratorError> {
        let view = self.core.store.job(id).await?;
        if !view.state.is_over() {
            return Err(OrchestratorError::WrongState {
                job: id,
                state: view.state,
                problem: "it has not ended; cancel it first".into(),
            });
        }
        let by = self.actor().cloned().unwrap_or_else(|| Actor::named("server"));
        delete(&self.core, id, by).await
    }
}
