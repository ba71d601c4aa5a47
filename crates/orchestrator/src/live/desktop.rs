//! The desktop of a job: its size, actions on it, screenshots, and connections to its VNC server.

use std::time::{Duration, Instant};

use bytes::Bytes;
use job::{CallEnd, CallRef, CallStatus, EventBody, GuiInput, JobId};
use protocol::{CallKey, GuiAction, ProtocolError};
use serde::Serialize;
use serde_json::{Value, json};
use utoipa::ToSchema;
use uuid::Uuid;

use crate::core::Orchestrator;
use crate::driver::desktop::PNG_SIGNATURE;
use crate::driver::desktop::desktop_spec;
use crate::driver::desktop::end_of_action;
use crate::driver::desktop::is_running;
use crate::driver::desktop_script::{explain_script, script_command, script_text};
use crate::error::OrchestratorError;
use crate::live::exec_request::ExecRequest;
use crate::live::streams::PortStream;

/// Longer than any action may wait.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(660);

/// What came of something done on the desktop.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct GuiAnswer {
    /// The call in the job's log.
    pub call: String,
    /// Whether it was done.
    pub status: CallStatus,
    /// What it gave: `windows`, `window`, `pid`, `screenshot` with its digest, or `output` of a script.
    #[schema(value_type = Option<Object>)]
    pub result: Option<Value>,
    /// From start to end.
    pub duration_ms: u64,
    /// Why it was not done, for programs.
    pub code: Option<String>,
    /// Why it was not done, for people.
    pub reason: Option<String>,
}

impl Orchestrator {
    /// Performs an action on the desktop of a job. SequencedEvent like every call.
    ///
    /// # Errors
    /// The job has no sandbox now, or the request is invalid. A failed action is not an error: the answer reports it.
    pub async fn input(&self, id: JobId, input: GuiInput) -> Result<GuiAnswer, OrchestratorError> {
        input.check()?;
        let action = match input {
            GuiInput::Script { script } => return self.run_script(id, script).await,
            GuiInput::Action(action) => action,
        };
        let (live, client) = self.reach(id).await?;
        let _in_use = live.used.begin();
        let desktop = desktop_spec(&live.spec);
        let call = CallRef { id: format!("api-{}", Uuid::now_v7().simple()), attempt: 1 };
        let given = serde_json::to_value(&action).unwrap_or_default();
        let started = EventBody::CallStarted { step: None, tool: "gui".into(), input: given };
        live.recorder.append_now(vec![started.of(&call).with_actor(self.actor())]).await?;
        let began = Instant::now();
        let key = CallKey::new(call.id.clone(), call.attempt);
        let acting = client.act_on_desktop(desktop, Some(key.clone()), action);
        let done = match tokio::time::timeout(ANSWER_TIMEOUT, acting).await {
            Ok(done) => done,
            Err(_) => Err(ProtocolError::Refused("the guest did not answer in time".into())),
        };
        let end = end_of_action(&live.recorder, done, began).await?;
        live.recorder.record(EventBody::CallEnded(end.clone()).of(&call)).await?;
        tokio::spawn(async move {
            let _ = client.forget(key).await;
        });
        Ok(answer(call.id, end))
    }

    async fn run_script(&self, id: JobId, script: String) -> Result<GuiAnswer, OrchestratorError> {
        let (live, client) = self.reach(id).await?;
        client.start_desktop(desktop_spec(&live.spec)).await.map_err(explain)?;
        let request = ExecRequest {
            argv: Some(script_command()),
            stdin: Some(script_text(&script)),
            environment: [("DISPLAY".to_owned(), protocol::DISPLAY.to_owned())].into(),
            ..ExecRequest::default()
        };
        let reply = self.exec(id, request).await?;
        let reason = reply.reason.map(|reason| explain_script(&reason, &reply.stderr));
        Ok(GuiAnswer {
            call: reply.call,
            status: reply.status,
            result: Some(json!({ "output": reply.stdout })),
            duration_ms: reply.duration_ms,
            code: reply.code,
            reason,
        })
    }

    /// A screenshot of the desktop of a job, as PNG. Not logged.
    ///
    /// # Errors
    /// The job has no sandbox now, or its desktop cannot be started.
    pub async fn screenshot(&self, id: JobId) -> Result<Bytes, OrchestratorError> {
        let (live, client) = self.reach(id).await?;
        let _in_use = live.used.begin();
        let desktop = desktop_spec(&live.spec);
        Ok(client.act_on_desktop(desktop, None, GuiAction::Screenshot).await.map_err(explain)?.1)
    }

    /// An image from the log of a job, by its digest.
    ///
    /// # Errors
    /// The log contains no PNG image with this digest.
    pub async fn picture(&self, id: JobId, digest: &str) -> Result<Bytes, OrchestratorError> {
        self.core.store.job(id).await?;
        let found = self.core.store.blob(id, digest.to_owned()).await?;
        match found.filter(|bytes| bytes.starts_with(PNG_SIGNATURE)) {
            Some(bytes) => Ok(bytes.into()),
            None => Err(OrchestratorError::NoScreenshot(digest.to_owned())),
        }
    }

    /// Whether the desktop of a job is running. Does not start it.
    ///
    /// # Errors
    /// The job has no sandbox now.
    pub async fn desktop_runs(&self, id: JobId) -> Result<bool, OrchestratorError> {
        let (_, client) = self.reach(id).await?;
        Ok(is_running(&client).await?)
    }

    /// Starts the desktop of a job. Returns once the window manager is running.
    ///
    /// # Errors
    /// The job has no sandbox now, or its desktop cannot be started.
    pub async fn start_desktop(&self, id: JobId) -> Result<(), OrchestratorError> {
        let (live, client) = self.reach(id).await?;
        let desktop = desktop_spec(&live.spec);
        client.start_desktop(desktop).await.map_err(explain)
    }

    /// Connects to the VNC server of the desktop of a job, and starts the desktop first if needed.
    ///
    /// # Errors
    /// The job has no sandbox now, or its desktop cannot be started.
    pub async fn open_desktop(&self, id: JobId) -> Result<PortStream, OrchestratorError> {
        let (live, client) = self.reach(id).await?;
        let desktop = desktop_spec(&live.spec);
        let stream = client.open_vnc(desktop).await.map_err(explain)?;
        Ok(PortStream::new(stream, client, &live))
    }
}

/// Passes the guest's refusal on to the caller: the image lacks a program, or a program does not start.
fn explain(error: ProtocolError) -> OrchestratorError {
    match error {
        ProtocolError::Gui(error) => OrchestratorError::NoDesktop(error.message),
        ProtocolError::Refused(message) => OrchestratorError::NoDesktop(message),
        other => other.into(),
    }
}

fn answer(call: String, end: CallEnd) -> GuiAnswer {
    GuiAnswer {
        call,
        status: end.status,
        result: end.result,
        duration_ms: end.duration_ms,
        code: end.code,
        reason: end.reason,
    }
}
