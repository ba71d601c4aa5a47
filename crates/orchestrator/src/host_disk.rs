//! Monitors the free space on the host disk and freezes all sandboxes before it runs out.
//!
//! The sandbox disks are sparse: they take up space on the host only as they are filled. The kernel stores written
//! data later, and drops it if the host disk is full by then, although the program's write has long succeeded.
//! Sandboxes are therefore frozen while the free space is less than the data that they have written and the kernel
//! has not stored, plus a reserve. They continue when there is enough space again.
//!
//! This is independent of a pause that a user requested, which is a state of the job: neither ends the other.

use std::collections::{BTreeSet, HashMap};
use std::future::pending;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::future::join_all;
use sandbox::{HostDisk, SandboxId};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use crate::core::Core;
use crate::error::OrchestratorError;
use crate::event::EventBody;
use crate::ids::JobId;
use crate::live::LiveJob;

/// The code of the event.
pub(crate) const HOST_DISK_FULL: &str = "host_disk_full";
/// Default for the space that must stay free in addition to unwritten data.
pub(crate) const DEFAULT_RESERVE: u64 = 128 << 20;
/// Upper bound on what all sandboxes together write per second; faster than memory can be copied. With it, no sandbox
/// can use up the reserve between two checks.
const FASTEST_BYTES_PER_S: u64 = 5 << 30;
const SHORTEST_PAUSE: Duration = Duration::from_millis(25);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// Interval between checks while sandboxes are frozen.
const LOW_INTERVAL: Duration = Duration::from_millis(200);
/// The host file system's block metadata takes less than 1/64 of the data.
const METADATA_FRACTION: u64 = 64;

/// Free space at which sandboxes freeze and continue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Thresholds {
    /// Sandboxes freeze if less is free.
    stop_below: u64,
    /// Sandboxes continue once this much is free.
    resume_at: u64,
}

impl Thresholds {
    /// The thresholds for these disks. Never more than what the disks can still grow, however much is written.
    fn of(host: &HostDisk, reserve: u64) -> Self {
        let unwritten: u64 = host.disks.iter().map(|disk| disk.unwritten_bytes).sum();
        let unallocated: u64 = host.disks.iter().map(|disk| disk.unallocated_bytes).sum();
        let most = unallocated + unallocated / METADATA_FRACTION;
        Self {
            stop_below: (unwritten + reserve).min(most),
            resume_at: (unwritten + reserve + reserve / 2).min(most),
        }
    }

    fn is_low(self, was_low: bool, free: u64) -> bool {
        free < if was_low { self.resume_at } else { self.stop_below }
    }
}

/// Time until the next check: short enough that no sandbox can use up the space above the reserve.
fn next_check(free: u64, stop_below: u64) -> Duration {
    let above = free.saturating_sub(stop_below);
    let micros = above.saturating_mul(1_000_000) / FASTEST_BYTES_PER_S;
    Duration::from_micros(micros).clamp(SHORTEST_PAUSE, LONGEST_PAUSE)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shortage {
    free_mib: u64,
    needed_mib: u64,
}

impl Shortage {
    fn of(free: u64, needed: u64) -> Self {
        Self { free_mib: free >> 20, needed_mib: needed.div_ceil(1 << 20) }
    }
}

impl From<Shortage> for OrchestratorError {
    fn from(shortage: Shortage) -> Self {
        Self::HostDiskFull { free_mib: shortage.free_mib, needed_mib: shortage.needed_mib }
    }
}

/// Whether sandboxes are frozen, and why.
#[derive(Default)]
pub(crate) struct HostDiskWatch {
    now: watch::Sender<Option<Shortage>>,
    /// Free space at the last check, if the sandboxes share a host disk.
    free_bytes: Mutex<Option<u64>>,
}

impl HostDiskWatch {
    /// Why sandboxes are frozen; `None` while they are not.
    pub(crate) fn shortage(&self) -> Option<OrchestratorError> {
        self.now.borrow().map(OrchestratorError::from)
    }

    /// Waits until sandboxes are frozen and returns the reason.
    pub(crate) async fn low(&self) -> OrchestratorError {
        let shortage = self.now.subscribe().wait_for(Option::is_some).await.ok().and_then(|now| *now);
        match shortage {
            Some(shortage) => shortage.into(),
            None => pending().await,
        }
    }

    /// Waits until sandboxes are not frozen.
    pub(crate) async fn is_over(&self) {
        if self.now.subscribe().wait_for(Option::is_none).await.is_err() {
            pending::<()>().await;
        }
    }

    /// Sleeps for `left`, not counting the time during which sandboxes are frozen and cannot do anything.
    pub(crate) async fn sleep_unfrozen(&self, mut left: Duration) {
        loop {
            self.is_over().await;
            let since = Instant::now();
            tokio::select! {
                () = sleep(left) => return,
                _ = self.low() => left = left.saturating_sub(since.elapsed()),
            }
        }
    }

    /// Waits for work in a sandbox for at most `patience`, not counting the time during which sandboxes are frozen.
    pub(crate) async fn within<T>(&self, patience: Duration, work: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            biased;
            done = work => Some(done),
            () = self.sleep_unfrozen(patience) => None,
        }
    }

    /// Refuses a new sandbox if there is no room for its first writes.
    pub(crate) fn check_room(&self, reserve: u64) -> Result<(), OrchestratorError> {
        if let Some(shortage) = self.shortage() {
            return Err(shortage);
        }
        match self.free_bytes.lock().unwrap_or_else(PoisonError::into_inner).filter(|free| *free < reserve) {
            Some(free) => Err(Shortage::of(free, reserve).into()),
            None => Ok(()),
        }
    }
}

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
        let Some(host) = self.core.backend.host_disk().await? else { return Ok(LONGEST_PAUSE) };
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
                    "the host's disk is nearly full, sandboxes stand still"
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
                "there is room on the host's disk again, sandboxes go on"
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
                tracing::debug!(%sandbox, %error, "it does not stand still yet");
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
                tracing::debug!(%sandbox, %error, "it does not go on, it may be gone");
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
    let stopped_one = |view: &crate::view::JobView| {
        view.sandbox.filter(|one| frozen.contains(one) && !view.state.is_over())
    };
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
        if recorder.with_view(stopped_one).await == Some(sandbox) {
            let _ = recorder.record(EventBody::SandboxResumed { sandbox }).await;
        }
    };
    tokio::select! {
        () = core.shutdown.cancelled() => {}
        () = telling => {}
    }
}

#[cfg(test)]
mod tests {
    use sandbox::SparseDisk;

    use super::*;

    const MIB: u64 = 1 << 20;

    fn host(free: u64, disks: &[(u64, u64)]) -> HostDisk {
        let disks = disks.iter().map(|(unallocated, unwritten)| SparseDisk {
            sandbox: SandboxId::generate(),
            unallocated_bytes: unallocated * MIB,
            unwritten_bytes: unwritten * MIB,
        });
        HostDisk { free_bytes: free * MIB, disks: disks.collect() }
    }

    #[test]
    fn unwritten_data_and_the_reserve_must_be_free() {
        let thresholds = Thresholds::of(&host(0, &[(8192, 300), (8192, 100)]), 128 * MIB);
        assert_eq!(thresholds, Thresholds { stop_below: 528 * MIB, resume_at: 592 * MIB });
    }

    #[test]
    fn sandbox_disks_that_fit_the_host_freeze_nothing() {
        let thresholds = Thresholds::of(&host(0, &[(64, 64)]), 128 * MIB);
        assert_eq!(thresholds, Thresholds { stop_below: 65 * MIB, resume_at: 65 * MIB });
        assert!(!thresholds.is_low(true, 65 * MIB));
        let nobody = Thresholds::of(&host(0, &[]), 128 * MIB);
        assert!(!nobody.is_low(false, 0) && !nobody.is_low(true, 0));
    }

    #[test]
    fn flushing_written_data_does_not_thaw_sandboxes() {
        // 400 MiB are stored while the sandboxes are frozen: free space and unwritten data both shrink by that
        // amount.
        let before = Thresholds::of(&host(0, &[(8192, 400)]), 128 * MIB);
        assert!(before.is_low(false, 527 * MIB));
        let after = Thresholds::of(&host(0, &[(7792, 0)]), 128 * MIB);
        assert!(after.is_low(true, 127 * MIB));
        assert!(after.is_low(true, 191 * MIB) && !after.is_low(false, 191 * MIB));
        assert!(!after.is_low(true, 192 * MIB));
    }

    #[test]
    fn next_check_happens_before_the_reserve_can_be_used_up() {
        assert_eq!(next_check(u64::MAX, 0), LONGEST_PAUSE);
        assert_eq!(next_check(0, MIB), SHORTEST_PAUSE);
        let pause = next_check(2048 * MIB, 1024 * MIB);
        assert!(pause.as_micros() * u128::from(FASTEST_BYTES_PER_S) <= 1_000_000 * u128::from(1024 * MIB));
        // At the threshold, what is written until the next check is less than the reserve.
        assert!(
            SHORTEST_PAUSE.as_millis() * u128::from(FASTEST_BYTES_PER_S) / 1000
                <= u128::from(DEFAULT_RESERVE)
        );
    }

    #[test]
    fn new_sandbox_requires_the_reserve() {
        let watch = HostDiskWatch::default();
        assert!(watch.check_room(MIB).is_ok());
        *watch.free_bytes.lock().unwrap() = Some(MIB - 1);
        assert!(matches!(watch.check_room(MIB), Err(OrchestratorError::HostDiskFull { .. })));
        *watch.free_bytes.lock().unwrap() = Some(MIB);
        assert!(watch.check_room(MIB).is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn frozen_time_does_not_count() {
        let watch = Arc::new(HostDiskWatch::default());
        let started = Instant::now();
        let sleeping = tokio::spawn({
            let watch = Arc::clone(&watch);
            async move { watch.sleep_unfrozen(Duration::from_secs(10)).await }
        });
        sleep(Duration::from_secs(4)).await;
        watch.now.send_replace(Some(Shortage::of(0, 1)));
        sleep(Duration::from_secs(600)).await;
        assert!(matches!(watch.low().await, OrchestratorError::HostDiskFull { .. }));
        assert!(!sleeping.is_finished());
        watch.now.send_replace(None);
        sleeping.await.unwrap();
        assert_eq!(started.elapsed().as_secs(), 610);
    }
}
