//! Standard input of a call. Several writers take turns, and none of them blocks the guest.

use std::io;
use std::os::fd::OwnedFd;

use tokio::io::unix::AsyncFd;
use tokio::sync::Mutex;

use crate::spawn::PolledFd;
use crate::sys::Terminal;

/// The end-of-file character of a terminal. Has an effect at the start of a line.
const END_OF_TRANSMISSION: &[u8] = b"\x04";

/// Why input was not accepted.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum InputRefusal {
    /// Standard input was closed, or the call never had one.
    Closed,
    /// The process no longer reads.
    Gone,
}

/// Standard input of one call.
#[derive(Default)]
pub(crate) struct Input {
    writer: Mutex<Option<(PolledFd, Terminal)>>,
}

impl Input {
    /// Input that goes to a pipe or to the master side of a terminal.
    pub(crate) fn new(writer: PolledFd, terminal: Terminal) -> Self {
        Self { writer: Mutex::new(Some((writer, terminal))) }
    }

    /// Writes all bytes. Waits while the process does not read.
    pub(crate) async fn write(&self, bytes: &[u8]) -> Result<(), InputRefusal> {
        let mut writer = self.writer.lock().await;
        let Some((fd, _)) = &*writer else { return Err(InputRefusal::Closed) };
        if write_all(fd, bytes).await.is_err() {
            *writer = None;
            return Err(InputRefusal::Gone);
        }
        Ok(())
    }

    /// Closes standard input, so that the process reads end of file. A terminal stays open for signals sent as
    /// characters.
    pub(crate) async fn close(&self) {
        let mut writer = self.writer.lock().await;
        match &*writer {
            Some((fd, Terminal::Controlling)) => {
                let _ = write_all(fd, END_OF_TRANSMISSION).await;
            }
            Some((_, Terminal::None)) => *writer = None,
            None => {}
        }
    }

    /// Drops the writing end unless a write is in progress.
    pub(crate) fn abandon(&self) {
        if let Ok(mut writer) = self.writer.try_lock() {
            *writer = None;
        }
    }
}

async fn write_all(fd: &AsyncFd<OwnedFd>, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        let mut guard = fd.writable().await?;
        match guard.try_io(|fd| Ok(rustix::io::write(fd, bytes)?)) {
            Ok(Ok(written)) => bytes = bytes.get(written..).unwrap_or_default(),
            Ok(Err(error)) if error.kind() == io::ErrorKind::Interrupted => {}
            Ok(Err(error)) => return Err(error),
            Err(_would_block) => {}
        }
    }
    Ok(())
}
