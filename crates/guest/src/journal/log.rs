//! The journal file.

use std::cell::{Cell, RefCell};
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;

use protocol::CallKey;

/// The journal file stops growing at this size. The table in memory continues.
const MAX_JOURNAL_BYTES: u64 = 64 * 1024 * 1024;

/// The journal file. Write errors are ignored, because a failing disk must not fail a call.
pub(super) struct JournalLog {
    file: RefCell<File>,
    written: Cell<u64>,
}

impl JournalLog {
    /// Creates an empty journal file.
    pub(super) fn create(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new().create(true).write(true).truncate(true).open(path)?;
        Ok(Self { file: RefCell::new(file), written: Cell::new(0) })
    }

    /// Appends a line with the request or the result of a call.
    pub(super) fn write(&self, key: &CallKey, what: &str, value: &impl serde::Serialize) {
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
