//! `audit/network.jsonl`: one line for the opening and one for the end of every connection. The file is derived from
//! the log and can be rebuilt; each line is in the log before it is in the file. A job without connections has no
//! file.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use job::{Event, EventKind, Kinds};

use super::network::connections_in;
use crate::core::Core;
use crate::error::OrchestratorError;

/// The list of connections of one job.
pub(super) struct Audit {
    path: PathBuf,
    /// Created with the first line.
    file: Option<File>,
    /// Current length of the file.
    bytes: u64,
    /// Lines that could not be written yet.
    waiting: Vec<u8>,
}

impl Audit {
    /// Rewrites the list from the past events and `further`.
    pub(super) fn start(path: &Path, past: &[Event], further: &[Event]) -> Result<Self, OrchestratorError> {
        let failed = || OrchestratorError::io(format!("writing {}", path.display()));
        match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed()(error)),
            _ => {}
        }
        let mut audit = Self { path: path.to_owned(), file: None, bytes: 0, waiting: Vec::new() };
        audit.waiting = [lines(past), lines(further)].concat();
        audit.write().map_err(failed())?;
        Ok(audit)
    }

    /// Adds events. A failure is not an error: the lines are written together with the next ones.
    pub(super) fn append(&mut self, written: &[Event]) {
        self.waiting.extend(lines(written));
        let _ = self.write();
    }

    fn write(&mut self) -> io::Result<()> {
        if self.waiting.is_empty() {
            return Ok(());
        }
        let file = match &mut self.file {
            Some(file) => file,
            None => self.file.insert(open(&self.path)?),
        };
        if let Err(error) = file.write_all(&self.waiting) {
            // Part of it may have been written.
            file.set_len(self.bytes)?;
            return Err(error);
        }
        self.bytes += self.waiting.len() as u64;
        self.waiting.clear();
        Ok(())
    }
}

fn open(path: &Path) -> io::Result<File> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    OpenOptions::new().create(true).append(true).open(path)
}

fn lines(events: &[Event]) -> Vec<u8> {
    let mut text = Vec::new();
    for event in connections_in(events) {
        if serde_json::to_writer(&mut text, event).is_ok() {
            text.push(b'\n');
        }
    }
    text
}

/// Appends missing lines to the lists of jobs that had just ended when a server was killed. For jobs that continue,
/// the driver rewrites the list.
pub(crate) async fn complete_lists(core: &Core) -> Result<(), OrchestratorError> {
    for job in core.store.recently_ended().await? {
        let log = core.store.all_events(job, Kinds::Only(&[EventKind::Egress]), 0).await?;
        if let Err(error) = complete(&core.folder.network_log(job), &lines(&log)) {
            tracing::warn!(%job, %error, "the list of connections could not be completed");
        }
    }
    Ok(())
}

/// Appends what a list lacks at its end. A list that is not a prefix of the expected content was tampered with and is
/// left alone.
fn complete(path: &Path, lines: &[u8]) -> io::Result<()> {
    let found = match fs::read(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
        other => other?,
    };
    match lines.strip_prefix(found.as_slice()) {
        Some(missing) if !missing.is_empty() => open(path)?.write_all(missing),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn truncated_connection_list_is_completed_and_a_changed_one_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit/network.jsonl");
        let completed = |lines: &str| {
            complete(&path, lines.as_bytes()).unwrap();
            fs::read_to_string(&path).unwrap_or_default()
        };
        assert_eq!((completed(""), path.exists()), (String::new(), false));
        assert_eq!(completed("one\n"), "one\n");
        fs::write(&path, "one\ntw").unwrap();
        assert_eq!(completed("one\ntwo\n"), "one\ntwo\n");
        fs::write(&path, "ONE\n").unwrap();
        assert_eq!(completed("one\ntwo\n"), "ONE\n");
    }
}
