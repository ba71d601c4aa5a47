//! `audit/network.jsonl`: every connection at its opening and its end, a line each. Computed from the events, so it can
//! be made again.

use std::fs::File;
use std::io::Write as _;
use std::path::Path;

use egress::EgressEvent;

use crate::error::OrchestratorError;
use crate::event::Event;

use super::network::connections_in;

/// The list of connections of one job.
pub(super) struct Audit {
    file: File,
}

impl Audit {
    /// Writes the list anew from the events so far, and these.
    pub(super) fn start(
        path: &Path,
        past: &[Event],
        further: &[EgressEvent],
    ) -> Result<Self, OrchestratorError> {
        let failed = || OrchestratorError::io(format!("writing {}", path.display()));
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder).map_err(failed())?;
        }
        let mut audit = Self { file: File::create(path).map_err(failed())? };
        audit.write(connections_in(past).chain(further));
        Ok(audit)
    }

    /// Adds events. A failure is not an error: the file can be made again from the events.
    pub(super) fn append(&mut self, written: &[Event]) {
        self.write(connections_in(written));
    }

    fn write<'a>(&mut self, events: impl Iterator<Item = &'a EgressEvent>) {
        let mut text = Vec::new();
        for event in events {
            if serde_json::to_writer(&mut text, event).is_ok() {
                text.push(b'\n');
            }
        }
        let _ = self.file.write_all(&text);
    }
}
