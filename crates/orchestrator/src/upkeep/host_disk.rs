//! Freezes sandboxes before the host disk is full, and lets them go on when there is room.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use futures::future::join_all;
use job::{EventBody, JobId};
use sandbox::{HostDisk, SandboxId};
use tokio::task::JoinHandle;
use tokio::time::sleep;

use crate::core::Core;
use crate::core::host_disk::LONGEST_PAUSE;
use crate::core::host_disk::LOW_INTERVAL;
use crate::core::host_disk::Shortage;
use crate::core::host_disk::Thresholds;
use crate::core::host_disk::next_check;
use crate::core::live_jobs::LiveJob;
use crate::error::HOST_DISK_FULL;
use crate::error::OrchestratorError;

/// Runs until the server shuts down. Sandboxes that are frozen then stay frozen; the next server process thaws them.
pub(crate) async fn run(core: Arc<Core>) {
    let mut watcher = Watcher {
        core: Arc::clone(&core),
        frozen: BTreeSet::new(),
        log_tasks: HashMap::new(),
        is_first: true,
    };
    loop {
        let pause = match watcher.look().await {
            Ok(pause) => pause,
            Err(error) => {
                tracing::warn!(%error, "the room on the host's disk cannot be looked at, trying again");
                LONGEST_PAUSE
            }
        };
        tokio::select! {
            () = core.shutdown.cancelled() => return,
            () = sleep(pause) => {}
        }
    }
}

struct Watcher {
    core: Arc<Core>,
    /// Sandboxes that this watcher has frozen.
    frozen: BTreeSet<SandboxId>,
    /// The tasks that write the events into the job logs.
    log_tasks: HashMap<JobId, JoinHandle<()>>,
    is_first: bool,
}

impl Watcher {
    async fn look(&mut self) -> Result<Duration, OrchestratorError> {
        let Some(monitor) = self.core.backend.disk_monitor() else { return Ok(LONGEST_PAUSE) };
        let host = monitor.host_disk().await?;
        let reserve = self.core.settings().disk_reserve_bytes;
        *self.core.host_disk.free_bytes.lock().unwrap_or_else(PoisonError::into_inner) =
            Some(host.free_bytes);
        let thresholds = Thresholds::of(&host, reserve);
        let was_low = self.core.host_disk.now.borrow().is_some();
        if thresholds.is_low(was_low, host.free_bytes) {
            let shortage = Shortage::of(host.free_bytes, thresholds.resume_at);
            // Publish first, so that a sandbox that does not answer is not taken for a dead one.
            self.core.host_disk.now.send_replace(Some(shortage));
            if !was_low {
                tracing::warn!(
                    free_mib = shortage.free_mib,
                    needed_mib = shortage.needed_mib,
                    "the host's disk is nearly full, sandboxes are paused"
                );
            }
            self.stop(&host).await;
            self.log_freezes();
            return Ok(LOW_INTERVAL);
        }
        if was_low || !self.frozen.is_empty() || std::mem::take(&mut self.is_first) {
            // Includes the sandboxes that an earlier server process froze.
            let there: BTreeSet<SandboxId> = host.disks.iter().map(|disk| disk.sandbox).collect();
            let all = &there | &std::mem::take(&mut self.frozen);
            let left = self.thaw_all(all).await;
            // The other sandboxes no longer exist.
            self.frozen = &left & &there;
        }
        if was_low {
            self.core.host_disk.now.send_replace(None);
            tracing::info!(
                free_mib = host.free_bytes >> 20,
                "the host's disk has room again, sandboxes are resumed"
            );
        }
        // A new sandbox may appear before the next check.
        Ok(next_check(host.free_bytes, thresholds.stop_below.max(reserve)))
    }

    /// Freezes all sandboxes that can still take up space. Does so on every check: the code that created a sandbox
    /// may have thawed it since.
    async fn stop(&mut self, host: &HostDisk) {
        let Some(freezer) = self.core.backend.freezer() else { return };
        let pool: BTreeSet<SandboxId> = self.core.pool.members().into_iter().collect();
        let growing = host.disks.iter().filter(|disk| disk.unallocated_bytes > 0).map(|disk| disk.sandbox);
        let growing: Vec<SandboxId> = growing.filter(|sandbox| !pool.contains(sandbox)).collect();
        // Remember them before they are known to be frozen: a sandbox may be frozen in part, and must be thawed
        // later.
        self.frozen.extend(&growing);
        // All at the same time: freezing a sandbox takes time while its processes are in the middle of a write.
        let stopping = growing.into_iter().map(|sandbox| async move {
            // The sandbox is being created or removed.
            if let Err(error) = freezer.freeze(sandbox).await {
                tracing::debug!(%sandbox, %error, "cannot pause the sandbox yet");
            }
        });
        join_all(stopping).await;
    }

    /// Thaws all sandboxes except those in the pool, which stay frozen until a job takes them. Returns those that
    /// could not be thawed.
    async fn thaw_all(&self, sandboxes: BTreeSet<SandboxId>) -> BTreeSet<SandboxId> {
        let mut left = BTreeSet::new();
        let Some(freezer) = self.core.backend.freezer() else { return left };
        let pool: BTreeSet<SandboxId> = self.core.pool.members().into_iter().collect();
        for sandbox in sandboxes.difference(&pool) {
            if let Err(error) = freezer.thaw(*sandbox).await {
                tracing::debug!(%sandbox, %error, "cannot resume the sandbox, it may have ended");
                left.insert(*sandbox);
            }
        }
        left
    }

    /// Starts a task for each job whose sandbox is frozen, which writes that into the job's log.
    fn log_freezes(&mut self) {
        self.log_tasks.retain(|_, telling| !telling.is_finished());
        for (job, live) in self.core.live.all() {
            // Nobody can use a frozen sandbox, so it must not count as idle.
            live.used.now();
            if !self.log_tasks.contains_key(&job) {
                let telling = log_freezes(Arc::clone(&self.core), live, self.frozen.clone());
                self.log_tasks.insert(job, self.core.tasks.spawn(telling));
            }
        }
    }
}

/// Logs that the sandbox of a job is frozen, and later that it continues. The job waits in the meantime.
async fn log_freezes(core: Arc<Core>, live: LiveJob, frozen: BTreeSet<SandboxId>) {
    let recorder = &live.recorder;
    let stopped_one =
        |view: &job::JobView| view.sandbox.filter(|one| frozen.contains(one) && !view.state.is_over());
    let telling = async {
        let Some(sandbox) = recorder.with_view(stopped_one).await else { return };
        let Some(shortage) = core.host_disk.shortage() else { return };
        let _waits = recorder.waiting().wait_for(&shortage);
        let code = HOST_DISK_FULL.to_owned();
        let frozen = EventBody::SandboxPaused { sandbox, code, reason: shortage.to_string() };
        // Waits if the database is on the same full disk.
        if recorder.record(frozen).await.is_err() {
            return;
        }
        core.host_disk.is_over().await;
        let is_still_frozen =
            |view: &job::JobView| view.frozen_since_ms.is_some() && stopped_one(view) == Some(sandbox);
        if recorder.with_view(is_still_frozen).await {
            let _ = recorder.record(EventBody::SandboxResumed { sandbox }).await;
        }
    };
    tokio::select! {
        () = core.shutdown.cancelled() => {}
        () = telling => {}
    }
}
