//! `audit/network.jsonl`: every connection at its opening and its end, a line each. Computed from the events, so it can
//! be made again. A job without connections has none.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use egress::EgressEvent;

use crate::error::OrchestratorError;
use crate::event::Event;

use super::network::connections_in;

/// The list of connections of one job.
pub(super) struct Audit {
    path: PathBuf,
    /// Made with the first line.
    file: Option<File>,
}

impl Audit {
    /// Writes the list anew from the events so far, and these.
    pub(super) fn start(
        path: &Path,
        past: &[Event],
        further: &[EgressEvent],
    ) -> Result<Self, OrchestratorError> {
        let failed = || OrchestratorError::io(format!("writing {}", path.display()));
        match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed()(error)),
            _ => {}
        }
        let mut audit = Self { path: path.to_owned(), file: None };
        audit.write(connections_in(past).chain(further)).map_err(failed())?;
        Ok(audit)
    }

    /// Adds events. A failure is not an error: the file can be made again from the events.
    pub(super) fn append(&mut self, written: &[Event]) {
        let _ = self.write(connections_in(written));
    }

    fn write<'a>(&mut self, events: impl Iterator<Item = &'a EgressEvent>) -> io::Result<()> {
        let mut text = Vec::new();
        for event in events {
            if serde_json::to_writer(&mut text, event).is_ok() {
                text.push(b'\n');
            }
        }
        if text.is_empty() {
            return Ok(());
        }
        self.opened()?.write_all(&text)
    }

    fn opened(&mut self) -> io::Result<&mut File> {
        if self.file.is_none() {
            if let Some(folder) = self.path.parent() {
                fs::create_dir_all(folder)?;
            }
            self.file = Some(File::create(&self.path)?);
        }
        self.file.as_mut().ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}
