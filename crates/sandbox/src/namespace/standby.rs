//! The standby launcher of this server, which forks the owner process of each sandbox.

use std::io::{self, PipeReader, PipeWriter};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};

use launcher::standby::{LaunchRequests, STAND_BY, TITLE_BYTES};

/// A standby launcher. It is started for the first sandbox, and again if it has died.
pub(super) struct Standby {
    launcher: PathBuf,
    process: Mutex<Option<Process>>,
}

struct Process {
    /// `None` only while it shuts down.
    orders: Option<LaunchRequests>,
    child: Child,
}

impl Standby {
    /// Does not start a process yet.
    pub(super) fn new(launcher: PathBuf) -> Self {
        Self { launcher, process: Mutex::default() }
    }

    /// Creates the sandbox of a launch file; returns the pipe for its owner's one-line report.
    pub(super) fn start_launcher(&self, file: &Path, lent: &[BorrowedFd<'_>]) -> io::Result<PipeReader> {
        let (reader, writer) = io::pipe()?;
        let mut process = self.process.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(process) = process.as_ref() {
            match process.give(file, &writer, lent) {
                Err(error) if is_gone(&error) => {}
                other => return other.map(|()| reader),
            }
        }
        let new = Process::start(&self.launcher)?;
        let given = new.give(file, &writer, lent);
        *process = Some(new);
        given.map(|()| reader)
    }
}

fn is_gone(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset)
}

impl Process {
    fn start(launcher: &Path) -> io::Result<Self> {
        let (orders, theirs) = LaunchRequests::new()?;
        let child = Command::new(launcher)
            .args([STAND_BY, &" ".repeat(TITLE_BYTES)])
            .env_clear()
            .stdin(theirs)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        Ok(Self { orders: Some(orders), child })
    }

    fn give(&self, file: &Path, answer: &PipeWriter, lent: &[BorrowedFd<'_>]) -> io::Result<()> {
        let gone = || io::Error::from(io::ErrorKind::BrokenPipe);
        self.orders.as_ref().ok_or_else(gone)?.give(file, answer.as_fd(), lent)
    }
}

impl Drop for Process {
    /// The launcher exits when its request socket closes. The owners that it has forked live on.
    fn drop(&mut self) {
        self.orders = None;
        let _ = self.child.wait();
    }
}
