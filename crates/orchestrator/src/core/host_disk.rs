//! Monitors the free space on the host disk and freezes all sandboxes before it runs out.
//!
//! The sandbox disks are sparse: they take up space on the host only as they are filled. The kernel stores written
//! data later, and drops it if the host disk is full by then, although the program's write has long succeeded.
//! Sandboxes are therefore frozen while the free space is less than the data that they have written and the kernel
//! has not stored, plus a reserve. They continue when there is enough space again.
//!
//! This is independent of a pause that a user requested, which is a state of the job: neither ends the other.

use std::future::pending;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use sandbox::HostDisk;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use crate::error::OrchestratorError;

/// Default for the space that must stay free in addition to unwritten data.
pub(crate) const DEFAULT_RESERVE: u64 = 128 << 20;
/// Upper bound on what all sandboxes together write per second; faster than memory can be copied. With it, no sandbox
/// can use up the reserve between two checks.
const FASTEST_BYTES_PER_S: u64 = 5 << 30;
const SHORTEST_PAUSE: Duration = Duration::from_millis(25);
pub(crate) const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// Interval between checks while sandboxes are frozen.
pub(crate) const LOW_INTERVAL: Duration = Duration::from_millis(200);
/// The host file system's block metadata takes less than 1/64 of the data.
const METADATA_FRACTION: u64 = 64;

/// Free space at which sandboxes freeze and continue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Thresholds {
    /// Sandboxes freeze if less is free.
    pub(crate) stop_below: u64,
    /// Sandboxes continue once this much is free.
    pub(crate) resume_at: u64,
}

impl Thresholds {
    /// The thresholds for these disks. Never more than what the disks can still grow, however much is written.
    pub(crate) fn of(host: &HostDisk, reserve: u64) -> Self {
        let unwritten: u64 = host.disks.iter().map(|disk| disk.unwritten_bytes).sum();
        let unallocated: u64 = host.disks.iter().map(|disk| disk.unallocated_bytes).sum();
        let most = unallocated + unallocated / METADATA_FRACTION;
        Self {
            stop_below: (unwritten + reserve).min(most),
            resume_at: (unwritten + reserve + reserve / 2).min(most),
        }
    }

    pub(crate) fn is_low(self, was_low: bool, free: u64) -> bool {
        free < if was_low { self.resume_at } else { self.stop_below }
    }
}

/// Time until the next check: short enough that no sandbox can use up the space above the reserve.
pub(crate) fn next_check(free: u64, stop_below: u64) -> Duration {
    let above = free.saturating_sub(stop_below);
    let micros = above.saturating_mul(1_000_000) / FASTEST_BYTES_PER_S;
    Duration::from_micros(micros).clamp(SHORTEST_PAUSE, LONGEST_PAUSE)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shortage {
    pub(crate) free_mib: u64,
    pub(crate) needed_mib: u64,
}

impl Shortage {
    pub(crate) fn of(free: u64, needed: u64) -> Self {
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
    pub(crate) now: watch::Sender<Option<Shortage>>,
    /// Free space at the last check, if the sandboxes share a host disk.
    pub(crate) free_bytes: Mutex<Option<u64>>,
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use sandbox::{HostDisk, SandboxId, SparseDisk};
    use tokio::time::sleep;

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
