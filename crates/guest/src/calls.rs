//! The journal: every call by its key, with its request and its result.
//!
//! A key never runs twice. The guest answers from the table in memory. In the state directory, `journal.jsonl` has a
//! line for each request and each result, and `calls/<key>` holds long output and results that are too large for a
//! line. A guest that restarts begins with an empty journal; the host notices by the boot ID.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use protocol::{
    CallKey, CallStatus, Exec, ExecEnd, ExecOutcome, FileError, FileErrorCode, FileOperation, FileResult,
    GuiAction, GuiResult, KernelRun,
};
use tokio::sync::watch;

use crate::desktop::GuiCall;
use crate::error::GuestError;
use crate::input::Input;
use crate::output::{Allowance, FULL_SHAPE, OutputStore};
use crate::pace::Pace;
use crate::spawn::Watched;

/// Results of file operations up to this size stay in memory.
const SMALL_RESULT_BYTES: usize = 1024;
/// Larger requests are not written to the journal. The host has their content.
const MAX_REQUEST_BYTES: usize = 64 * 1024;
/// The journal file stops growing at this size. The table in memory continues.
const MAX_JOURNAL_BYTES: u64 = 64 * 1024 * 1024;

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
    pub(crate) pace: Pace,
    /// Set to `true` to end the call.
    pub(crate) kill_wish: watch::Sender<bool>,
    pub(crate) input: Input,
    /// The master side of the terminal.
    pub(crate) terminal: RefCell<Option<Watched>>,
    /// A remark about how the call ran, reported in the result.
    pub(crate) note: RefCell<Option<String>>,
    /// The kernel that ran the call, if it is a cell.
    pub(crate) kernel: RefCell<Option<KernelRun>>,
}

impl ProcessCall {
    /// Time between SIGTERM and SIGKILL, at most five minutes.
    pub(crate) fn grace(&self) -> Duration {
        Duration::from_millis(self.exec.kill_grace_ms.min(300_000))
    }

    fn status(&self) -> CallStatus {
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

/// Free space on the workspace's disk.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct DiskFree {
    pub(crate) bytes: u64,
    pub(crate) inodes: u64,
    /// Size of the disk.
    pub(crate) total_bytes: u64,
}

/// A journaled file operation.
pub(crate) struct FileCall {
    key: CallKey,
    folder: PathBuf,
    log: Rc<JournalLog>,
    is_done: watch::Sender<bool>,
    small: RefCell<Option<FileResult>>,
}

impl FileCall {
    /// Stores the result and wakes the waiters. A large result goes to disk immediately.
    pub(crate) fn finish(&self, result: &FileResult) {
        let json = serde_json::to_vec(result).unwrap_or_default();
        let kept = if json.len() <= SMALL_RESULT_BYTES {
            self.log.write(&self.key, "result", result);
            Some(result.clone())
        } else {
            write_file(&self.folder, "result.json", &json).is_err().then(lost_result)
        };
        *self.small.borrow_mut() = kept;
        self.is_done.send_replace(true);
    }

    /// Waits for the result.
    pub(crate) async fn result(&self) -> FileResult {
        let _ = self.is_done.subscribe().wait_for(|done| *done).await;
        self.result_now()
    }

    fn result_now(&self) -> FileResult {
        if let Some(result) = &*self.small.borrow() {
            return result.clone();
        }
        let read = std::fs::read(self.folder.join("result.json"));
        read.ok().and_then(|json| serde_json::from_slice(&json).ok()).unwrap_or_else(lost_result)
    }

    fn status(&self) -> CallStatus {
        if *self.is_done.borrow() {
            CallStatus::File(self.result_now())
        } else {
            CallStatus::Running { next_sequence: 0 }
        }
    }
}

fn lost_result() -> FileResult {
    let message = "the operation was carried out, but its result could not be kept".to_owned();
    FileResult::Error(FileError { code: FileErrorCode::Other, message })
}

/// What a key refers to.
#[derive(Clone)]
pub(crate) enum Call {
    Process(Rc<ProcessCall>),
    File(Rc<FileCall>),
    Gui(Rc<GuiCall>),
}

/// The journal file. Write errors are ignored, because a failing disk must not fail a call.
struct JournalLog {
    file: RefCell<File>,
    written: Cell<u64>,
}

impl JournalLog {
    fn write(&self, key: &CallKey, what: &str, value: &impl serde::Serialize) {
        let Ok(mut line) = serde_json::to_vec(&serde_json::json!({ "key": key.to_string(), what: value }))
        else {
            return;
        };
        line.push(b'\n');
        let written = self.written.get() + line.len() as u64;
        if written <= MAX_JOURNAL_BYTES && self.file.borrow_mut().write_all(&line).is_ok() {
            self.written.set(written);
        }
    }
}

/// All calls since the guest started.
pub(crate) struct Journal {
    folder: PathBuf,
    log: Rc<JournalLog>,
    calls: RefCell<HashMap<CallKey, Call>>,
    running: Cell<u32>,
    /// The memory budget for output.
    allowance: Allowance,
}

impl Journal {
    /// Opens an empty journal in the state directory. Creates the directory if it is missing.
    pub(crate) fn open(state: &Path) -> Result<Self, GuestError> {
        use std::os::unix::fs::DirBuilderExt;
        let folder = state.join("calls");
        match std::fs::remove_dir_all(&folder) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(GuestError::io(format!(
                    "removing the journal of an earlier life at {}",
                    folder.display()
                ))(error));
            }
            _ => {}
        }
        let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(state);
        made.map_err(GuestError::io(format!("making {}", state.display())))?;
        // The folder of a call is created only when needed: most calls need none, and creating one is slow on some
        // file systems.
        let path = state.join("journal.jsonl");
        let file = OpenOptions::new().create(true).write(true).truncate(true).open(&path);
        let file = file.map_err(GuestError::io(format!("opening the journal {}", path.display())))?;
        let log = Rc::new(JournalLog { file: RefCell::new(file), written: Cell::new(0) });
        let allowance = Allowance::full();
        Ok(Self { folder, log, calls: RefCell::default(), running: Cell::new(0), allowance })
    }

    pub(crate) fn find(&self, key: &CallKey) -> Option<Call> {
        self.calls.borrow().get(key).cloned()
    }

    pub(crate) fn status(&self, key: &CallKey) -> CallStatus {
        match self.find(key) {
            None => CallStatus::Unknown,
            Some(Call::Process(call)) => call.status(),
            Some(Call::File(call)) => call.status(),
            Some(Call::Gui(call)) if call.is_done() => CallStatus::Answered,
            Some(Call::Gui(_)) => CallStatus::Running { next_sequence: 0 },
        }
    }

    /// Adds a process call. The key must be new.
    pub(crate) fn enter_process(
        &self,
        exec: Exec,
        input: Input,
        terminal: Option<Watched>,
    ) -> Rc<ProcessCall> {
        let folder = self.folder.join(exec.key.to_string());
        // Standard input and environment stay with the host and are not journaled.
        let exec = Exec { stdin: None, environment: BTreeMap::new(), ..exec };
        self.log.write(&exec.key, "request", &exec);
        let call = Rc::new(ProcessCall {
            store: RefCell::new(OutputStore::new(folder, FULL_SHAPE, self.allowance.clone())),
            log: Rc::clone(&self.log),
            phase: watch::Sender::new(Phase::Starting),
            printed: watch::Sender::new(0),
            pace: Pace::new(),
            kill_wish: watch::Sender::new(false),
            input,
            terminal: RefCell::new(terminal),
            note: RefCell::new(None),
            kernel: RefCell::new(None),
            exec,
        });
        self.calls.borrow_mut().insert(call.exec.key.clone(), Call::Process(Rc::clone(&call)));
        call
    }

    /// Adds a file call. The key must be new.
    pub(crate) fn enter_file(&self, key: &CallKey, operation: &FileOperation) -> Rc<FileCall> {
        let is_small = match operation {
            FileOperation::Write { content, .. } => content.len() <= MAX_REQUEST_BYTES,
            FileOperation::Edit { old, new, .. } => old.len() + new.len() <= MAX_REQUEST_BYTES,
            _ => true,
        };
        if is_small {
            self.log.write(key, "request", operation);
        }
        let call = Rc::new(FileCall {
            key: key.clone(),
            folder: self.folder.join(key.to_string()),
            log: Rc::clone(&self.log),
            is_done: watch::Sender::new(false),
            small: RefCell::new(None),
        });
        self.calls.borrow_mut().insert(key.clone(), Call::File(Rc::clone(&call)));
        call
    }

    /// Adds a desktop action. The key must be new.
    pub(crate) fn enter_gui(&self, key: &CallKey, action: &GuiAction) -> Rc<GuiCall> {
        self.log.write(key, "request", action);
        let call = Rc::new(GuiCall::new(key.clone(), self.folder.join(key.to_string())));
        self.calls.borrow_mut().insert(key.clone(), Call::Gui(Rc::clone(&call)));
        call
    }

    /// Journals the result of a desktop action.
    pub(crate) fn note_gui(&self, key: &CallKey, result: &GuiResult) {
        self.log.write(key, "result", result);
    }

    /// The number of calls with a running process.
    pub(crate) fn running(&self) -> &Cell<u32> {
        &self.running
    }
}

/// Writes a file of a call. Creates the call's folder if needed.
pub(crate) fn write_file(folder: &Path, name: &str, content: &[u8]) -> std::io::Result<()> {
    std::fs::create_dir_all(folder)?;
    std::fs::write(folder.join(name), content)
}
