//! Shells on terminals that outlive their viewers. A terminal session is a call that the guest keeps a journal of, so
//! it is still there after the browser reconnects or the server restarts.

use std::collections::BTreeMap;

use job::{InvalidField, JobId, UserAction, UserActionKind};
use protocol::{CallKey, CallStatus, TerminalSize};
use serde_json::json;

use crate::core::Orchestrator;
use crate::error::OrchestratorError;
use crate::live::exec_request::ExecRequest;
use crate::live::streams::{ExecStreamOptions, LiveExec};

/// Uses bash if the image has it.
const SHELL: &str = "if command -v bash > /dev/null; then exec bash -l; else exec sh; fi";
/// Number of output chunks that are replayed to a client that reconnects.
const SHOWN_AGAIN: u64 = 200;

impl Orchestrator {
    /// Opens a shell in the sandbox of a job. The session id is the id of its call.
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
        let begun = self.log_call_start(id, &request, program, ("terminal", json!({}))).await?;
        let options =
            ExecStreamOptions { terminal: Some(size), keep_stdin_open: true, has_backpressure: false };
        self.follow_started_call(begun, &request, options).await
    }

    /// Reattaches to a shell, starting with its most recent output.
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
        self.log_user_action(id, UserAction::on_named(UserActionKind::TerminalJoined, session)).await?;
        // Fails if the shell has ended, and then the size does not matter.
        let _ = client.resize(key.clone(), size).await;
        LiveExec::reattach(client, key, printed.saturating_sub(SHOWN_AGAIN), &live).await
    }
}
