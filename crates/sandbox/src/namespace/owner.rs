//! Finding the launcher that owns a sandbox. Its lock on the launch file says whether it lives and which process it is,
//! so a process id that was used again is never taken for it.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

use launcher::spec::LAUNCH_FILE;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{
    Flock, FlockOffsetType, FlockType, Pid, PidfdFlags, Signal, fcntl_getlk, pidfd_open, pidfd_send_signal,
};

/// The launcher of a sandbox.
pub(super) struct Owner {
    handle: OwnedFd,
}

/// Finds the launcher; `None` when there is none or it has ended.
pub(super) fn find(directory: &Path) -> io::Result<Option<Owner>> {
    let file = match File::open(directory.join(LAUNCH_FILE)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        other => other?,
    };
    let Some(pid) = lock_holder(&file)? else { return Ok(None) };
    let handle = match pidfd_open(pid, PidfdFlags::empty()) {
        Err(rustix::io::Errno::SRCH) => return Ok(None),
        other => other?,
    };
    // Still the same holder: then the handle is of that process and of no later one.
    Ok((lock_holder(&file)? == Some(pid)).then_some(Owner { handle }))
}

fn lock_holder(file: &File) -> io::Result<Option<Pid>> {
    let question = Flock {
        start: 0,
        length: 0,
        pid: None,
        typ: FlockType::WriteLock,
        offset_type: FlockOffsetType::Set,
    };
    Ok(fcntl_getlk(file, &question)?.and_then(|lock| lock.pid))
}

impl Owner {
    /// Sends a signal; succeeds when the process is already gone.
    pub(super) fn signal(&self, signal: Signal) -> io::Result<()> {
        match pidfd_send_signal(&self.handle, signal) {
            Err(rustix::io::Errno::SRCH) => Ok(()),
            other => Ok(other?),
        }
    }

    /// Waits for its end; false when `patience` is over.
    pub(super) fn wait(&self, patience: Duration) -> io::Result<bool> {
        wait_for_exit(&self.handle, patience)
    }
}

/// Waits for the end of a process; false when `patience` is over.
pub(super) fn wait_for_exit(handle: &OwnedFd, patience: Duration) -> io::Result<bool> {
    let timeout = Timespec::try_from(patience).map_err(io::Error::other)?;
    loop {
        match poll(&mut [PollFd::new(handle, PollFlags::IN)], Some(&timeout)) {
            Err(rustix::io::Errno::INTR) => {}
            other => return Ok(other? > 0),
        }
    }
}
