//! The journal: every call by its key, with its request and its result.
//!
//! A key never runs twice. The guest answers from the table in memory. In the state directory, `journal.jsonl` has a
//! line for each request and each result, and `calls/<key>` holds long output and results that are too large for a
//! line. A guest that restarts begins with an empty journal; the host notices by the boot ID and gives up the sandbox.

mod backpressure;
mod file;
mod gui;
mod log;
mod process;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use protocol::{CallKey, CallStatus, Exec, FileOperation, GuiAction, GuiResult};

pub(crate) use backpressure::{PacedFollower, wait_for_followers};
pub(crate) use file::FileCall;
pub(crate) use gui::GuiCall;
pub(crate) use process::{Phase, ProcessCall};

use crate::error::GuestError;
use crate::input::Input;
use crate::output::{DEFAULT_LIMITS, MemoryBudget, OutputStore};
use crate::spawn::PolledFd;
use log::JournalLog;

/// Larger requests are not written to the journal. The host has their content.
const MAX_REQUEST_BYTES: usize = 64 * 1024;

/// Free space on the workspace's disk.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct DiskFree {
    pub(crate) bytes: u64,
    pub(crate) inodes: u64,
    /// Size of the disk.
    pub(crate) total_bytes: u64,
}

/// What a key refers to.
#[derive(Clone)]
pub(crate) enum Call {
    Process(Rc<ProcessCall>),
    File(Rc<FileCall>),
    Gui(Rc<GuiCall>),
}

/// All calls since the guest started.
pub(crate) struct Journal {
    folder: PathBuf,
    log: Rc<JournalLog>,
    calls: RefCell<HashMap<CallKey, Call>>,
    running: Cell<u32>,
    /// The memory budget for output.
    memory_budget: MemoryBudget,
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
        let log = JournalLog::create(&path)
            .map_err(GuestError::io(format!("opening the journal {}", path.display())))?;
        let log = Rc::new(log);
        let memory_budget = MemoryBudget::full();
        Ok(Self { folder, log, calls: RefCell::default(), running: Cell::new(0), memory_budget })
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
    pub(crate) fn add_process(
        &self,
        exec: Exec,
        input: Input,
        terminal: Option<PolledFd>,
    ) -> Rc<ProcessCall> {
        let folder = self.folder.join(exec.key.to_string());
        // Standard input and environment stay with the host and are not journaled.
        let exec = Exec { stdin: None, environment: BTreeMap::new(), ..exec };
        self.log.write(&exec.key, "request", &exec);
        let store = OutputStore::new(folder, DEFAULT_LIMITS, self.memory_budget.clone());
        let call = Rc::new(ProcessCall::new(exec, Rc::clone(&self.log), store, input, terminal));
        self.calls.borrow_mut().insert(call.exec.key.clone(), Call::Process(Rc::clone(&call)));
        call
    }

    /// Adds a file call. The key must be new.
    pub(crate) fn add_file_call(&self, key: &CallKey, operation: &FileOperation) -> Rc<FileCall> {
        let is_small = match operation {
            FileOperation::Write { content, .. } => content.len() <= MAX_REQUEST_BYTES,
            FileOperation::Edit { old, new, .. } => old.len() + new.len() <= MAX_REQUEST_BYTES,
            _ => true,
        };
        if is_small {
            self.log.write(key, "request", operation);
        }
        let folder = self.folder.join(key.to_string());
        let call = Rc::new(FileCall::new(key.clone(), folder, Rc::clone(&self.log)));
        self.calls.borrow_mut().insert(key.clone(), Call::File(Rc::clone(&call)));
        call
    }

    /// Adds a desktop action. The key must be new.
    pub(crate) fn add_gui_call(&self, key: &CallKey, action: &GuiAction) -> Rc<GuiCall> {
        self.log.write(key, "request", action);
        let call = Rc::new(GuiCall::new(key.clone(), self.folder.join(key.to_string())));
        self.calls.borrow_mut().insert(key.clone(), Call::Gui(Rc::clone(&call)));
        call
    }

    /// Journals the result of a desktop action.
    pub(crate) fn record_gui_result(&self, key: &CallKey, result: &GuiResult) {
        self.log.write(key, "result", result);
    }

    /// The number of calls with a running process.
    pub(crate) fn running(&self) -> &Cell<u32> {
        &self.running
    }
}

/// Writes a file of a call. Creates the call's folder if needed.
fn write_file(folder: &Path, name: &str, content: &[u8]) -> std::io::Result<()> {
    std::fs::create_dir_all(folder)?;
    std::fs::write(folder.join(name), content)
}
