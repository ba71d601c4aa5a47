//! Finding the launcher that owns a sandbox. Its lock on the launch file tells whether it is alive and which process
//! it is, so a reused process id is never mistaken for it.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use launcher::LaunchError;
use launcher::launch_file::LAUNCH_FILE;
use launcher::spec::Report;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{
    Flock, FlockOffsetType, FlockType, Pid, PidfdFlags, Signal, fcntl_getlk, pidfd_open, pidfd_send_signal,
};
use serde::Serialize;

/// Name of the launch file in earlier versions. Such sandboxes cannot be used any more, but they can be ended.
pub(super) const LEGACY_LAUNCH_FILE: &str = "launch.json";

/// The launcher of a sandbox.
pub(super) struct Owner {
    handle: OwnedFd,
}

/// Finds the launcher; `None` if there is none or it has ended.
pub(super) fn find(directory: &Path) -> io::Result<Option<Owner>> {
    let missing = |error: &io::Error| error.kind() == io::ErrorKind::NotFound;
    let opened = File::open(directory.join(LAUNCH_FILE)).or_else(|error| match error {
        error if missing(&error) => File::open(directory.join(LEGACY_LAUNCH_FILE)),
        error => Err(error),
    });
    let file = match opened {
        Err(error) if missing(&error) => return Ok(None),
        other => other?,
    };
    let Some(pid) = lock_holder(&file)? else { return Ok(None) };
    let handle = match pidfd_open(pid, PidfdFlags::empty()) {
        Err(rustix::io::Errno::SRCH) => return Ok(None),
        other => other?,
    };
    // The lock holder is unchanged, so the pidfd refers to it and not to a later process with the same id.
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
    /// Sends a signal; succeeds if the process is already gone.
    pub(super) fn signal(&self, signal: Signal) -> io::Result<()> {
        match pidfd_send_signal(&self.handle, signal) {
            Err(rustix::io::Errno::SRCH) => Ok(()),
            other => Ok(other?),
        }
    }

    /// Waits for the process to exit; false after `patience`.
    pub(super) fn wait(&self, patience: Duration) -> io::Result<bool> {
        wait_for_exit(&self.handle, patience)
    }
}

/// Runs a launcher for a single task and waits for it; returns the error that it reports.
pub(super) fn run_once(
    launcher: &Path,
    what: &str,
    order: &impl Serialize,
) -> io::Result<Option<LaunchError>> {
    let mut child = Command::new(launcher)
        .arg(what)
        .env_clear()
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()?;
    if let Some(mut input) = child.stdin.take() {
        input.write_all(&serde_json::to_vec(order)?)?;
    }
    let output = child.wait_with_output()?;
    if output.status.success() {
        return Ok(None);
    }
    Ok(Some(match serde_json::from_slice(&output.stdout) {
        Ok(Report::Failed { step, cause, errno }) => {
            let source = errno.map_or_else(|| io::Error::other(cause), io::Error::from_raw_os_error);
            LaunchError::new(step, source)
        }
        _ => LaunchError::new("asking the launcher", io::Error::other("it exited without a message")),
    }))
}

/// Waits for a process to exit; false after `patience`.
pub(super) fn wait_for_exit(handle: &OwnedFd, patience: Duration) -> io::Result<bool> {
    let timeout = Timespec::try_from(patience).map_err(io::Error::other)?;
    loop {
        match poll(&mut [PollFd::new(handle, PollFlags::IN)], Some(&timeout)) {
            Err(rustix::io::Errno::INTR) => {}
            other => return Ok(other? > 0),
        }
    }
}
