//! Shells on terminals that outlive whoever looks at them: a session is a journalled call of the guest, so it is still
//! there when a browser comes back, and when the server was restarted meanwhile.

use std::collections::BTreeMap;

use protocol::{CallKey, CallStatus, TerminalSize};
use serde_json::json;

use crate::answers::ExecRequest;
use crate::deeds::{DeedKind, PersonDeed};
use crate::error::OrchestratorError;
use crate::ids::JobId;
use crate::orchestrator::Orchestrator;
use crate::request::InvalidField;
use crate::streams::{LiveExec, Talk};

/// Bash where the image has it.
const SHELL: &str = "if command -v bash > /dev/null; then exec bash -l; else exec sh; fi";
/// How many pieces of what was printed last are shown to who comes back.
const SHOWN_AGAIN: u64 = 200;

impl Orchestrator {
    /// Opens a shell in the sandbox of a job. Its session is the name of its call.
    ///
    /// # Errors
    /// The job has no sandbox now.
    pub async fn open_terminal(&self, id: JobId, size: TerminalSize) -> Result<LiveExec, OrchestratorError> {
        let argv = ["/bin/sh", "-c", SHELL].map(str::to_owned).to_vec();
        let request = ExecRequest {
            environment: BTreeMap::from([("TERM".to_owned(), "xterm-256color".to_owned())]),
            ..ExecRequest::default()
        };
        let program = protocol::Program::Arguments(argv);
        let begun = self.begin_program(id, &request, program, ("terminal", json!({}))).await?;
        let talk = Talk { terminal: Some(size), keep_stdin_open: true, waits_for_reader: false };
        self.open_begun(begun, &request, talk).await
    }

    /// Comes back to a shell, with what it printed last.
    ///
    /// # Errors
    /// There is no such session, or the job has no sandbox now.
    pub async fn return_to_terminal(
        &self,
        id: JobId,
        session: &str,
        size: TerminalSize,
    ) -> Result<LiveExec, OrchestratorError> {
        let key = CallKey::new(session, 1);
        let unknown = || InvalidField {
            field: "session".into(),
            problem: format!("there is no session `{}` in this sandbox", session.escape_debug()),
        };
        if !key.is_well_formed() {
            return Err(unknown().into());
        }
        let (live, client) = self.reach(id).await?;
        let printed = match client.call_status(key.clone()).await? {
            CallStatus::Running { next_sequence } => next_sequence,
            CallStatus::Ended(outcome) => outcome.next_sequence,
            CallStatus::Unknown | CallStatus::Answered | CallStatus::File(_) => return Err(unknown().into()),
        };
        self.note_deed(id, PersonDeed::to_named(DeedKind::TerminalJoined, session)).await?;
        // One that has ended keeps the size it had.
        let _ = client.resize(key.clone(), size).await;
        LiveExec::return_to(client, key, printed.saturating_sub(SHOWN_AGAIN), &live).await
    }
}
