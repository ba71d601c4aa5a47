//! `logs/agent.log`: a human-readable log with one line per event. Derived from the events, so it can be rebuilt.

use std::fs::File;
use std::io::Write as _;
use std::path::Path;

use job::Event;

use crate::error::OrchestratorError;

pub(crate) struct AgentLog {
    file: File,
}

impl AgentLog {
    /// Truncates the log; the caller then appends all events so far.
    pub(crate) fn start(path: &Path) -> Result<Self, OrchestratorError> {
        let file =
            File::create(path).map_err(OrchestratorError::io(format!("writing {}", path.display())))?;
        Ok(Self { file })
    }

    /// Appends events. Ignores write errors, because the file can be rebuilt from the events.
    pub(crate) fn append(&mut self, events: &[Event]) {
        let mut text = String::new();
        for event in events {
            job::describe_event(event, &mut text);
        }
        let _ = self.file.write_all(text.as_bytes());
    }
}
