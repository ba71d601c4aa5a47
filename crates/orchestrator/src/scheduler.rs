//! The scheduler: picks jobs from the queue while there is room, and starts a driver for each.

use std::sync::Arc;
use std::time::Duration;

use job::{JobId, KeyId};

use crate::core::Core;
use crate::driver::drive;
use crate::error::OrchestratorError;

/// How long this server owns a job without renewing its lease.
pub(crate) const LEASE_MS: i64 = 60_000;
/// Delay before a failed read of the queue is retried.
const STORE_PAUSE: Duration = Duration::from_secs(1);

/// Runs until the server shuts down.
pub(crate) async fn run(core: Arc<Core>) {
    loop {
        tokio::select! {
            () = core.shutdown.cancelled() => return,
            () = core.queue_changed.notified() => {}
        }
        if let Err(error) = pick(&core).await {
            tracing::warn!(%error, "the queue cannot be read, trying again");
            tokio::time::sleep(STORE_PAUSE).await;
            core.queue_changed.notify_one();
        }
    }
}

async fn pick(core: &Arc<Core>) -> Result<(), OrchestratorError> {
    // Without a backend, every job that is started would go back to the queue.
    if core.draining.is_cancelled() || core.backend_watch.outage().is_some() {
        return Ok(());
    }
    let room = core.settings().max_running.saturating_sub(core.live.count_jobs());
    if room == 0 {
        return Ok(());
    }
    // Jobs that wait for a retry are in the queue; read more, so that they do not hide the others.
    let waiting = core.retry_backoff.count();
    let ready = |job: &JobId| core.retry_backoff.may_try(*job);
    let bounded = core.keys.with_running_limit(&core.settings().ceilings);
    if !bounded.is_empty() {
        return pick_one_by_one(core, room, &bounded).await;
    }
    let queued = core.store.next_queued(room + waiting, Vec::new()).await?;
    for job in queued.into_iter().filter(ready).take(room) {
        start_driver(core, job).await?;
    }
    Ok(())
}

/// Like [`pick`] for servers where some keys have a limit on running jobs: skips the jobs of keys that have reached
/// it.
async fn pick_one_by_one(
    core: &Arc<Core>,
    room: usize,
    bounded: &[(KeyId, u32)],
) -> Result<(), OrchestratorError> {
    for _ in 0..room {
        let mut full = Vec::new();
        for (key, limit) in bounded {
            // The amount spent does not matter here.
            if core.store.key_use(key.clone(), i64::MAX).await?.running >= *limit {
                full.push(key.clone());
            }
        }
        let queued = core.store.next_queued(1 + core.retry_backoff.count(), full).await?;
        let ready = |job: &JobId| core.retry_backoff.may_try(*job);
        let Some(job) = queued.into_iter().find(ready) else { return Ok(()) };
        start_driver(core, job).await?;
    }
    Ok(())
}

/// Claims a job and starts its driver, unless it already has an owner.
pub(crate) async fn start_driver(core: &Arc<Core>, job: JobId) -> Result<(), OrchestratorError> {
    if !core.live.reserve(job) {
        return Ok(());
    }
    let place = Place { core: Arc::clone(core), job };
    let Some(generation) = core.store.claim(job, LEASE_MS).await? else { return Ok(()) };
    let core = Arc::clone(core);
    let tasks = core.tasks.clone();
    tasks.spawn(async move {
        let _place = place;
        Box::pin(drive(core, job, generation)).await;
    });
    Ok(())
}

/// The job's entry in [`Core::live`]; removed when its driver ends for whatever reason.
struct Place {
    core: Arc<Core>,
    job: JobId,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.core.live.leave(self.job);
        self.core.queue_changed.notify_one();
    }
}
