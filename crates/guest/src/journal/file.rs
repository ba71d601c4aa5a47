//! A journaled file operation: performed once, with its result kept for repeated requests with the same key.

use std::cell::RefCell;
use std::path::PathBuf;
use std::rc::Rc;

use protocol::{CallKey, CallStatus, FileError, FileErrorCode, FileResult};
use tokio::sync::watch;

use super::log::JournalLog;
use super::write_file;

/// Results of file operations up to this size stay in memory.
const SMALL_RESULT_BYTES: usize = 1024;

pub(crate) struct FileCall {
    key: CallKey,
    folder: PathBuf,
    log: Rc<JournalLog>,
    is_done: watch::Sender<bool>,
    small: RefCell<Option<FileResult>>,
}

impl FileCall {
    pub(super) fn new(key: CallKey, folder: PathBuf, log: Rc<JournalLog>) -> Self {
        Self { key, folder, log, is_done: watch::Sender::new(false), small: RefCell::new(None) }
    }

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

    pub(super) fn status(&self) -> CallStatus {
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
