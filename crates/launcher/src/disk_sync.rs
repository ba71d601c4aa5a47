//! Checks whether everything that was written to a sandbox's disk has reached it.
//!
//! The kernel writes data back later, and reports a failure only through descriptors that were open before it
//! happened. So the owner opens one before the sandbox writes anything, holds it for the sandbox's whole life, and
//! keeps the first failure: lost data stays lost, whatever succeeds afterwards.

use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;

use rustix::fs::{Mode, OFlags, openat, syncfs};
use rustix::pipe::{PipeFlags, pipe_with};

use crate::launch_file::{LaunchRecord, LockedLaunchFile, Synced};

/// Counts the errors that the kernel has found in an ext4 file system since it was mounted. `warning_count` does not
/// work: a full disk gets warnings although nothing is lost (`ext4_convert_unwritten_extents_endio`), and lost data
/// fails the sync anyway.
const COUNTER: &str = "errors_count";

/// Number of errors that the kernel has found in the file system on a loop device.
#[must_use]
pub fn faults(loop_device: u32) -> u64 {
    let path = PathBuf::from(format!("/sys/fs/ext4/loop{loop_device}")).join(COUNTER);
    fs::read_to_string(path).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0)
}

/// The disk of a sandbox, held open since before its first write.
pub(crate) struct DiskSyncer {
    directory: Arc<OwnedFd>,
    loop_device: u32,
    /// The first damage found; never cleared.
    damage: Option<String>,
    /// Number of syncs started.
    begun: u64,
    /// The running sync: a pipe through which its thread reports the result.
    running: Option<OwnedFd>,
    /// Whether another sync was requested while one was running.
    again: bool,
}

impl DiskSyncer {
    /// Opens the root of a mount that nothing has written to yet.
    pub(crate) fn open(mount: BorrowedFd<'_>, loop_device: u32) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = Arc::new(openat(mount, ".", flags, Mode::empty())?);
        Ok(Self { directory, loop_device, damage: None, begun: 0, running: None, again: false })
    }

    /// A descriptor that becomes readable when the running sync is done.
    pub(crate) fn sync_result(&self) -> Option<BorrowedFd<'_>> {
        self.running.as_ref().map(AsFd::as_fd)
    }

    /// Starts writing everything back on a separate thread, because it may take long and the owner must stay
    /// responsive.
    pub(crate) fn begin(&mut self, held: &mut LockedLaunchFile) {
        if self.running.is_some() {
            self.again = true;
            return;
        }
        // Recorded before the sync starts: a reader that finds no such record knows that the next sync covers all
        // earlier writes. A full host disk may reject the line; the server then asks again.
        if held.add(&LaunchRecord::SyncStarted { number: self.begun + 1 }).is_err() {
            return;
        }
        self.begun += 1;
        match self.start() {
            Ok(sync_result) => self.running = Some(sync_result),
            Err(_) => {
                let result = syncfs(&self.directory).map_err(io::Error::from);
                self.finish(&result, held);
            }
        }
    }

    fn start(&self) -> io::Result<OwnedFd> {
        let (sync_result, result_writer) = pipe_with(PipeFlags::CLOEXEC)?;
        let directory = Arc::clone(&self.directory);
        std::thread::Builder::new().name("sync".into()).spawn(move || {
            let code = syncfs(&directory).map_or_else(rustix::io::Errno::raw_os_error, |()| 0);
            // The owner reads the result, unless it is about to exit.
            let _ = rustix::io::write(&result_writer, &code.to_ne_bytes());
        })?;
        Ok(sync_result)
    }

    /// Records the result of the finished sync and starts another one if it was requested meanwhile.
    pub(crate) fn take_sync_result(&mut self, held: &mut LockedLaunchFile) {
        let Some(sync_result) = self.running.take() else { return };
        let mut code = [0; 4];
        let result = match rustix::io::read(&sync_result, &mut code) {
            Ok(4) => match i32::from_ne_bytes(code) {
                0 => Ok(()),
                code => Err(io::Error::from_raw_os_error(code)),
            },
            Ok(_) => Err(io::Error::other("the thread that syncs the disk has ended")),
            Err(error) => Err(error.into()),
        };
        self.finish(&result, held);
        if std::mem::take(&mut self.again) {
            self.begin(held);
        }
    }

    fn finish(&mut self, result: &io::Result<()>, held: &mut LockedLaunchFile) {
        self.damage = self.damage.take().or_else(|| damage_of(result, faults(self.loop_device)));
        let synced = Synced { number: self.begun, damage: self.damage.clone() };
        // If the record cannot be written, the server gets no answer and asks again.
        let _ = held.add(&LaunchRecord::Synced(synced));
    }
}

/// Describes the damage to a disk after a sync; `None` if there is none.
fn damage_of(result: &io::Result<()>, faults: u64) -> Option<String> {
    match (result, faults) {
        (Err(error), _) => Some(format!("data could not be written back: {error}")),
        (Ok(()), 0) => None,
        (Ok(()), faults) => Some(describe_faults(faults)),
    }
}

/// The message for a nonzero error count.
#[must_use]
pub fn describe_faults(faults: u64) -> String {
    format!("the kernel has found {faults} errors in the file system")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_syncs_and_ext4_errors_count_as_damage() {
        assert_eq!(damage_of(&Ok(()), 0), None);
        assert!(damage_of(&Ok(()), 2).unwrap().contains("2 errors"));
        let failed = Err(io::Error::from_raw_os_error(libc::EIO));
        assert!(damage_of(&failed, 0).unwrap().contains("written back"));
    }

    #[test]
    fn every_later_sync_reports_the_first_damage() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(crate::launch_file::LAUNCH_FILE);
        fs::write(&path, "7\n{}\n").unwrap();
        let mut held =
            LockedLaunchFile::of(fs::OpenOptions::new().read(true).append(true).open(&path).unwrap());
        let directory = fs::File::open(folder.path()).unwrap();
        // No file system is mounted from a loop device with this number.
        let mut disk = DiskSyncer::open(directory.as_fd(), u32::MAX).unwrap();
        let mut sync = |disk: &mut DiskSyncer| {
            disk.begin(&mut held);
            disk.take_sync_result(&mut held);
            let text = crate::launch_file::LaunchFileContents::read(folder.path()).unwrap().unwrap();
            (text.last_sync_started(), text.synced_after(disk.begun - 1).unwrap().damage)
        };
        assert_eq!(sync(&mut disk), (1, None));
        disk.damage = Some("lost".into());
        assert_eq!(sync(&mut disk), (2, Some("lost".into())));
        assert_eq!(sync(&mut disk), (3, Some("lost".into())));
    }
}
