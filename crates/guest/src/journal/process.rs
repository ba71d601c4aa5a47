//! A journaled call that runs a process or a kernel cell: its state, output, input and result.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use protocol::{CallStatus, Exec, ExecEnd, ExecOutcome, KernelRun};
use tokio::sync::watch;

use super::DiskFree;
use super::backpressure::Backpressure;
use super::log::JournalLog;
use crate::input::Input;
use crate::output::OutputStore;
use crate::spawn::PolledFd;

/// The state of a process call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Forked, but the program does not run yet.
    Starting,
    /// The program runs.
    Running {
        /// Process ID, process group and session at once.
        pid: i32,
    },
    /// The main process has ended.
    Ended {
        /// The process ID, if the process was started.
        pid: Option<i32>,
        outcome: ExecOutcome,
    },
}

impl Phase {
    /// The process ID, if the program was started.
    pub(crate) fn pid(&self) -> Option<i32> {
        match self {
            Self::Starting => None,
            Self::Running { pid } => Some(*pid),
            Self::Ended { pid, .. } => *pid,
        }
    }

    /// The result, if the call has ended.
    pub(crate) fn outcome(&self) -> Option<&ExecOutcome> {
        match self {
            Self::Ended { outcome, .. } => Some(outcome),
            Self::Starting | Self::Running { .. } => None,
        }
    }
}

/// A call that runs a process or a kernel cell.
pub(crate) struct ProcessCall {
    /// The request, without standard input and environment.
    pub(crate) exec: Exec,
    log: Rc<JournalLog>,
    pub(crate) store: RefCell<OutputStore>,
    /// Changes when the call starts and ends.
    pub(crate) phase: watch::Sender<Phase>,
    /// The number after the newest chunk, for followers that wait for more.
    pub(crate) printed: watch::Sender<u64>,
    /// The followers that the process must wait for.
    pub(super) backpressure: Backpressure,
    /// Set to `true` to end the call.
    pub(crate) kill_requested: watch::Sender<bool>,
    pub(crate) input: Input,
    /// The master side of the terminal.
    pub(crate) terminal: RefCell<Option<PolledFd>>,
    /// A remark about how the call ran, reported in the result.
    pub(crate) note: RefCell<Option<String>>,
    /// The kernel that ran the call, if it is a cell.
    pub(crate) kernel: RefCell<Option<KernelRun>>,
}

impl ProcessCall {
    pub(super) fn new(
        exec: Exec,
        log: Rc<JournalLog>,
        store: OutputStore,
        input: Input,
        terminal: Option<PolledFd>,
    ) -> Self {
        Self {
            exec,
            log,
            store: RefCell::new(store),
            phase: watch::Sender::new(Phase::Starting),
            printed: watch::Sender::new(0),
            backpressure: Backpressure::new(),
            kill_requested: watch::Sender::new(false),
            input,
            terminal: RefCell::new(terminal),
            note: RefCell::new(None),
            kernel: RefCell::new(None),
        }
    }

    /// Time between SIGTERM and SIGKILL, at most five minutes.
    pub(crate) fn grace(&self) -> Duration {
        Duration::from_millis(self.exec.kill_grace_ms.min(300_000))
    }

    pub(super) fn status(&self) -> CallStatus {
        match self.phase.borrow().outcome() {
            Some(outcome) => CallStatus::Ended(outcome.clone()),
            None => CallStatus::Running { next_sequence: self.store.borrow().next_sequence() },
        }
    }

    /// Marks the call as ended and writes its result to the journal.
    pub(crate) fn finish(&self, pid: Option<i32>, end: ExecEnd, duration: Duration, disk: DiskFree) {
        let outcome = {
            let mut store = self.store.borrow_mut();
            store.seal();
            ExecOutcome {
                end,
                duration_ms: u64::try_from(duration.as_millis()).unwrap_or(u64::MAX),
                output_bytes: store.total_bytes(),
                output_lines: store.total_lines(),
                dropped_bytes: store.dropped_bytes(),
                next_sequence: store.next_sequence(),
                disk_free_bytes: disk.bytes,
                disk_free_inodes: disk.inodes,
                note: self.note.take(),
                kernel: self.kernel.take(),
            }
        };
        self.log.write(&self.exec.key, "result", &outcome);
        self.phase.send_replace(Phase::Ended { pid, outcome });
    }
}
