//! The journal: every call by its key, what it was asked, what became of it.
//!
//! A key never runs twice. The table in memory answers; in the state directory `journal.jsonl` has a line for each
//! request and each result, `calls/<key>` output that is not short and what is too large for a line. A guest that starts anew begins
//! an empty journal: its boot id tells the host.

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
/// Requests beyond this size are not written down: their content is elsewhere.
const MAX_REQUEST_BYTES: usize = 64 * 1024;
/// The journal's file is not written beyond this; the table in memory goes on.
const MAX_JOURNAL_BYTES: u64 = 64 * 1024 * 1024;

/// Where a process stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Forked; its program does not run yet.
    Starting,
    /// Its program runs.
    Running {
        /// Process id, group and session.
        pid: i32,
    },
    /// The main process has ended.
    Ended {
        /// Its process id, where it had one.
        pid: Option<i32>,
        /// The result.
        outcome: ExecOutcome,
    },
}

impl Phase {
    /// The process id of a program that runs or ran.
    pub(crate) fn pid(&self) -> Option<i32> {
        match self {
            Self::Starting => None,
            Self::Running { pid } => Some(*pid),
            Self::Ended { pid, .. } => *pid,
        }
    }

    /// The result of a call that has ended.
    pub(crate) fn outcome(&self) -> Option<&ExecOutcome> {
        match self {
            Self::Ended { outcome, .. } => Some(outcome),
            Self::Starting | Self::Running { .. } => None,
        }
    }
}

/// One process call.
pub(crate) struct ProcessCall {
    /// What was asked, without the text for standard input.
    pub(crate) exec: Exec,
    /// Where its result is written.
    log: Rc<JournalLog>,
    /// Its output.
    pub(crate) store: RefCell<OutputStore>,
    /// Changes at start and end.
    pub(crate) phase: watch::Sender<Phase>,
    /// The number after the newest chunk, for those that wait for more.
    pub(crate) printed: watch::Sender<u64>,
    /// Those that it waits for.
    pub(crate) pace: Pace,
    /// Set to end the call.
    pub(crate) kill_wish: watch::Sender<bool>,
    /// Its standard input.
    pub(crate) input: Input,
    /// The master of its terminal.
    pub(crate) terminal: RefCell<Option<Watched>>,
    /// What should be known of how it ran.
    pub(crate) note: RefCell<Option<String>>,
    /// The kernel that was given it, where it is a cell.
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

    /// Marks the end and writes the result.
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

/// What is free on the workspace's disk.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct DiskFree {
    /// Bytes.
    pub(crate) bytes: u64,
    /// Inodes.
    pub(crate) inodes: u64,
    /// Size of the disk.
    pub(crate) total_bytes: u64,
}

/// One journalled file operation.
pub(crate) struct FileCall {
    key: CallKey,
    folder: PathBuf,
    log: Rc<JournalLog>,
    is_done: watch::Sender<bool>,
    small: RefCell<Option<FileResult>>,
}

impl FileCall {
    /// Keeps the result and tells those that wait. A large one goes to disk at once.
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

    /// The result, once there is one.
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

/// What a key stands for.
#[derive(Clone)]
pub(crate) enum Call {
    /// A process.
    Process(Rc<ProcessCall>),
    /// A file operation.
    File(Rc<FileCall>),
    /// An action on the desktop.
    Gui(Rc<GuiCall>),
}

/// The journal's file. A failing disk must not fail a call, so nobody is told.
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

/// All calls of this guest's life.
pub(crate) struct Journal {
    folder: PathBuf,
    log: Rc<JournalLog>,
    calls: RefCell<HashMap<CallKey, Call>>,
    running: Cell<u32>,
    /// What outputs may have in memory.
    allowance: Allowance,
}

impl Journal {
    /// Opens an empty journal in the state directory, making it where it is missing.
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
        // Folders come with the first call that needs one: most need none, and making one takes long on some file systems.
        let path = state.join("journal.jsonl");
        let file = OpenOptions::new().create(true).write(true).truncate(true).open(&path);
        let file = file.map_err(GuestError::io(format!("opening the journal {}", path.display())))?;
        let log = Rc::new(JournalLog { file: RefCell::new(file), written: Cell::new(0) });
        let allowance = Allowance::full();
        Ok(Self { folder, log, calls: RefCell::default(), running: Cell::new(0), allowance })
    }

    /// The call of a key.
    pub(crate) fn find(&self, key: &CallKey) -> Option<Call> {
        self.calls.borrow().get(key).cloned()
    }

    /// What became of a call.
    pub(crate) fn status(&self, key: &CallKey) -> CallStatus {
        match self.find(key) {
            None => CallStatus::Unknown,
            Some(Call::Process(call)) => call.status(),
            Some(Call::File(call)) => call.status(),
            Some(Call::Gui(call)) if call.is_done() => CallStatus::Answered,
            Some(Call::Gui(_)) => CallStatus::Running { next_sequence: 0 },
        }
    }

    /// Enters a process call; the key must be new.
    pub(crate) fn enter_process(
        &self,
        exec: Exec,
        input: Input,
        terminal: Option<Watched>,
    ) -> Rc<ProcessCall> {
        let folder = self.folder.join(exec.key.to_string());
        // What was typed into it and its variables are the host's; the journal does without.
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

    /// Enters a file call; the key must be new.
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

    /// Enters an action on the desktop; the key must be new.
    pub(crate) fn enter_gui(&self, key: &CallKey, action: &GuiAction) -> Rc<GuiCall> {
        self.log.write(key, "request", action);
        let call = Rc::new(GuiCall::new(key.clone(), self.folder.join(key.to_string())));
        self.calls.borrow_mut().insert(key.clone(), Call::Gui(Rc::clone(&call)));
        call
    }

    /// Writes down what came of an action.
    pub(crate) fn note_gui(&self, key: &CallKey, result: &GuiResult) {
        self.log.write(key, "result", result);
    }

    /// Calls whose process runs.
    pub(crate) fn running(&self) -> &Cell<u32> {
        &self.running
    }
}

/// Writes a file of a call, making its folder where needed.
pub(crate) fn write_file(folder: &Path, name: &str, content: &[u8]) -> std::io::Result<()> {
    std::fs::create_dir_all(folder)?;
    std::fs::write(folder.join(name), content)
}
