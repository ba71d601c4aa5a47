//! The host's disk space under the disks of sandboxes: how much is free, how much the disks may still take, and
//! whether all data written to a disk has reached storage.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use launcher::disk_sync::{describe_faults, faults};
use launcher::launch_file::LaunchFileContents;
use rustix::fs::statvfs;
use rustix::process::Signal;

use super::{Inner, NamespaceBackend, create, launcher_process};
use crate::DiskMonitor;
use crate::error::{SandboxError, failed};
use crate::host::disk::DISK_FILE;
use crate::spec::{DiskState, HostDisk, SandboxId, SparseDisk};

/// Timeout for a sync: a slow disk may have minutes' worth of data to write.
const SYNC_PATIENCE: Duration = Duration::from_secs(300);
/// When to ask a launcher again that has not started a sync. It may have failed to record the start on a full host
/// disk.
const ASK_AGAIN: Duration = Duration::from_secs(1);
const TICK: Duration = Duration::from_millis(1);
const LONGEST_TICK: Duration = Duration::from_millis(50);
const MEBIBYTE: u64 = 1 << 20;

#[async_trait]
impl DiskMonitor for NamespaceBackend {
    async fn host_disk(&self) -> Result<HostDisk, SandboxError> {
        self.blocking(measure).await
    }

    async fn sync(&self, id: SandboxId) -> Result<DiskState, SandboxError> {
        self.blocking(move |inner| sync(inner, id)).await
    }

    async fn state(&self, id: SandboxId) -> Result<DiskState, SandboxError> {
        self.blocking(move |inner| state(inner, id)).await
    }
}

/// Free space of the host, and the disks of this server's sandboxes.
fn measure(inner: &Inner) -> Result<HostDisk, SandboxError> {
    let directory = inner.layout.sandboxes();
    let looking = |source| failed("looking at", &directory, source);
    let mut disks = Vec::new();
    for entry in fs::read_dir(&directory).map_err(looking)?.flatten() {
        let Some(sandbox) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        // A sandbox that is being removed has no disk any more.
        let Some(unallocated_bytes) = unallocated(&entry.path().join(DISK_FILE)) else { continue };
        // By its name only: reading the records of all sandboxes would take too long.
        let group = create::group_of(inner, sandbox, None);
        let unwritten_bytes = group.and_then(|group| group.unwritten_bytes()).unwrap_or_default();
        disks.push(SparseDisk { sandbox, unallocated_bytes, unwritten_bytes });
    }
    Ok(HostDisk { free_bytes: free(&directory)?, disks })
}

/// The space available to an ordinary user; the host reserves the rest.
fn free(directory: &Path) -> Result<u64, SandboxError> {
    let facts = statvfs(directory).map_err(|error| failed("looking at", directory, error.into()))?;
    Ok(facts.f_bavail.saturating_mul(facts.f_frsize))
}

/// How much more space a sparse file can allocate.
fn unallocated(file: &Path) -> Option<u64> {
    let facts = fs::metadata(file).ok()?;
    Some(facts.len().saturating_sub(facts.blocks() * 512))
}

/// Refuses a disk that, together with the existing disks, could fill the host, unless the operator allows
/// overcommitting.
pub(super) fn check_room(inner: &Inner, disk_mib: u64) -> Result<(), SandboxError> {
    let Some(reserve) = inner.config.disk_reserve_unless_overcommitted else { return Ok(()) };
    let host = measure(inner)?;
    let taken: u64 = host.disks.iter().map(|disk| disk.unallocated_bytes).sum();
    check_fits(host.free_bytes.saturating_sub(reserve) / MEBIBYTE, taken / MEBIBYTE + disk_mib)
}

fn check_fits(free_mib: u64, committed_mib: u64) -> Result<(), SandboxError> {
    if committed_mib <= free_mib {
        return Ok(());
    }
    Err(SandboxError::Overcommitted { committed_mib, free_mib })
}

/// Asks the launcher to sync the disk, and waits for it.
fn sync(inner: &Inner, id: SandboxId) -> Result<DiskState, SandboxError> {
    let directory = inner.layout.sandbox(id);
    let syncing = |source| failed("syncing the disk of", &directory, source);
    let Some(text) = LaunchFileContents::read(&directory).map_err(syncing)? else {
        return Err(not_running(id));
    };
    if !text.running().is_some_and(|running| running.syncs_disk) {
        // A directory of the host, where write errors are reported to the writer immediately. Or a launcher of an
        // earlier version.
        return state(inner, id);
    }
    let before = text.last_sync_started();
    let end = Instant::now() + SYNC_PATIENCE;
    let mut ask_at = Instant::now();
    let mut tick = TICK;
    loop {
        if Instant::now() >= ask_at {
            let Some(owner) = launcher_process::find(&directory).map_err(syncing)? else {
                return Err(not_running(id));
            };
            owner.signal(Signal::WINCH).map_err(syncing)?;
            ask_at = Instant::now() + ASK_AGAIN;
        }
        std::thread::sleep(tick);
        tick = (tick * 2).min(LONGEST_TICK);
        let Some(text) = LaunchFileContents::read(&directory).map_err(syncing)? else {
            return Err(not_running(id));
        };
        if let Some(synced) = text.synced_after(before) {
            return Ok(synced.damage.map_or(DiskState::Whole, DiskState::Damaged));
        }
        if text.last_sync_started() > before {
            // The sync is running, so don't ask again; only check that the launcher is still alive.
            ask_at = ask_at.max(Instant::now() + ASK_AGAIN);
            if launcher_process::find(&directory).map_err(syncing)?.is_none() {
                return Err(not_running(id));
            }
        }
        if Instant::now() >= end {
            let source = std::io::Error::from(std::io::ErrorKind::TimedOut);
            return Err(syncing(source));
        }
    }
}

/// The known state of a disk: faults found by its launcher, and errors counted by the kernel.
fn state(inner: &Inner, id: SandboxId) -> Result<DiskState, SandboxError> {
    let directory = inner.layout.sandbox(id);
    let text =
        LaunchFileContents::read(&directory).map_err(|source| failed("looking at", &directory, source))?;
    let Some(text) = text else { return Err(not_running(id)) };
    let counted = text.running().and_then(|running| running.loop_device).map_or(0, faults);
    let damage = text.damage().or_else(|| (counted > 0).then(|| describe_faults(counted)));
    Ok(damage.map_or(DiskState::Whole, DiskState::Damaged))
}

fn not_running(id: SandboxId) -> SandboxError {
    SandboxError::NotRunning { id, why: "its disk is not mounted".into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn disk_larger_than_free_host_space_is_refused() {
        assert!(check_fits(100, 100).is_ok());
        let error = check_fits(100, 101).unwrap_err();
        assert!(error.is_disk_full());
        assert!(error.to_string().contains("`namespace.disk_overcommit` is off"), "{error}");
    }

    #[test]
    fn sparse_file_can_grow_by_its_holes() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(MEBIBYTE).unwrap();
        assert_eq!(unallocated(file.path()), Some(MEBIBYTE));
        fs::write(file.path(), vec![1; 1 << 20]).unwrap();
        file.as_file().sync_all().unwrap();
        assert_eq!(unallocated(file.path()), Some(0));
        assert_eq!(unallocated(Path::new("/nowhere")), None);
    }
}
