//! The agent's host: gives it the log, the sandbox and the clock of one job.

use std::collections::HashMap;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use agent::{
    AgentEvent, BrowserReport, CodeExecution, CodeReport, Conversation, DesktopReport, ExecReport,
    ExternalTools, Host, InputDelivery, Picture, ProcessRequest, SequencedEvent, Stopped, ToolEnd,
    ToolStatus,
};
use async_trait::async_trait;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use job::{ControlRequest, Event, EventBody};
use model::ModelRequest;
use protocol::{
    CallKey, CallStatus as GuestCallStatus, FileError, FileOperation, FileReply, GuiAction, ProtocolError,
};
use serde_json::Value;
use tokio::time::Instant;

use super::super::pause::{self, Pause};
use super::super::{Driver, DriverExit};
use super::code::CellEnd;
use super::execute::end_in_words;
use super::mcp::McpServers;
use super::memory::Memory;
use super::recall::into_text;
use super::{events, open_outputs, stopped, transcript};
use crate::clock::now_ms;
use crate::error::OrchestratorError;
use crate::recorder::StateReason;

/// Events per page read from the store.
const PAGE: usize = 512;

/// What the agent of one job works with.
pub(in crate::driver) struct AgentHost<'a> {
    pub(super) driver: &'a Driver,
    memory: Memory,
    past: Mutex<HashMap<String, Vec<Event>>>,
    attributed_usage: Mutex<sandbox::Usage>,
    worked_before: Duration,
    since: Instant,
    /// How long the job had waited for the operator at `since`.
    waited_before: Duration,
    calls_done: Mutex<usize>,
    /// Whether a desktop is running, so that programs can open windows.
    pub(super) has_desktop: AtomicBool,
    mcp: Option<McpServers>,
    /// By call: what the guest reported about cells that have ended and whose end is not in the log yet.
    pub(super) cells: Mutex<HashMap<String, CellEnd>>,
}

impl<'a> AgentHost<'a> {
    /// Creates the host of the job that this log belongs to.
    pub(in crate::driver) async fn new(driver: &'a Driver, log: &[Event]) -> Result<Self, OrchestratorError> {
        let past = open_outputs(driver.core.store.as_ref(), driver.recorder.job(), log).await?;
        let active_ms = driver
            .recorder
            .with_view(|view| view.agent.as_ref().map_or(0, |agent| agent.worked_until(now_ms())))
            .await;
        let calls_done = driver
            .recorder
            .with_view(|view| view.agent.as_ref().map_or(0, |agent| agent.spent.tool_calls))
            .await;
        Ok(Self {
            driver,
            memory: Memory::new(&driver.core.folder.job(driver.recorder.job()), driver.recorder.redactor()),
            past: Mutex::new(past),
            attributed_usage: Mutex::new(driver.attributed_usage),
            worked_before: Duration::from_millis(u64::try_from(active_ms).unwrap_or(0)),
            since: Instant::now(),
            waited_before: driver.recorder.waiting().total(),
            has_desktop: AtomicBool::new(log.iter().any(uses_desktop)),
            calls_done: Mutex::new(usize::try_from(calls_done).unwrap_or(usize::MAX)),
            mcp: None,
            cells: Mutex::default(),
        })
    }

    /// Starts the job's MCP servers, or reconnects to them, and waits for their tool lists.
    pub(super) async fn start_tools(&mut self, log: &[Event]) -> Result<(), DriverExit> {
        if self.driver.spec.mcp.is_empty() {
            return Ok(());
        }
        let mcp_servers = McpServers::start(self.driver, log);
        tokio::select! {
            () = mcp_servers.settle() => {}
            stop = self.driver.until_stop() => return Err(stop),
            stop = self.keep_link() => return Err(stop),
        }
        self.mcp = Some(mcp_servers);
        Ok(())
    }

    /// Reopens the link whenever it breaks; returns when that fails.
    async fn keep_link(&self) -> DriverExit {
        loop {
            match self.driver.guest().await {
                Ok(client) => drop(client.link().closed().await),
                Err(stop) => return stop,
            }
        }
    }

    /// What the log already has of a call that was in flight; returns it only once.
    pub(super) fn take_logged_output(&self, call: &str) -> Option<Vec<Event>> {
        self.past.lock().unwrap_or_else(PoisonError::into_inner).remove(call)
    }

    /// The resource usage that was already attributed to a call.
    pub(super) fn attributed_usage(&self) -> sandbox::Usage {
        *self.attributed_usage.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn set_attributed_usage(&self, usage: sandbox::Usage) {
        *self.attributed_usage.lock().unwrap_or_else(PoisonError::into_inner) = usage;
    }

    /// Writes the memory files, both in the job's folder and in the sandbox.
    pub(super) async fn save_memory(&self, conversation: &Conversation) {
        self.memory.keep(conversation);
        let client = self.driver.guest.borrow().clone();
        self.memory.save(client).await;
    }

    async fn check_for_stop(&self) -> Result<(), DriverExit> {
        if let Some(stop) = self.driver.stop_now() {
            return Err(stop);
        }
        let (control_request, taken_over) = self
            .driver
            .recorder
            .with_view(|view| {
                (view.control_request, view.agent.as_ref().and_then(|agent| agent.taken_over_by.clone()))
            })
            .await;
        if let Some(by) = taken_over {
            let why = StateReason::new(
                "takeover",
                format!("{by} has taken over the sandbox; hand it back to let the agent continue"),
            );
            return Err(DriverExit::Paused(Pause { why, retry_after: None }));
        }
        if control_request == Some(ControlRequest::Pause) {
            return Err(DriverExit::Paused(pause::paused_by_user()));
        }
        let done = *self.calls_done.lock().unwrap_or_else(PoisonError::into_inner);
        self.driver.checkpoint_if_due(done, usize::MAX).await
    }

    /// Sends a request to the guest, and repeats it on a new link if the link breaks.
    async fn ask<T, F>(&self, ask: impl Fn(protocol::GuestClient) -> F) -> Result<Result<T, String>, Stopped>
    where
        F: Future<Output = Result<T, ProtocolError>>,
    {
        loop {
            let client = self.driver.guest().await.map_err(stopped)?;
            match ask(client).await {
                Ok(answer) => return Ok(Ok(answer)),
                Err(ProtocolError::Refused(message)) => return Ok(Err(message)),
                Err(error) => self.driver.after_break(error).await.map_err(stopped)?,
            }
        }
    }
}

#[async_trait]
impl Host for AgentHost<'_> {
    async fn record(&self, new: Vec<AgentEvent>) -> Result<(), Stopped> {
        let ended = new.iter().filter(|event| matches!(event, AgentEvent::CallEnded { .. })).count();
        for event in &new {
            if let AgentEvent::CallEnded { end, .. } = event {
                self.driver.checkpoint_schedule().worked(Duration::from_millis(end.duration_ms));
            }
        }
        let entries = new.into_iter().map(events::entry).map(|entry| self.with_cell_end(entry)).collect();
        self.driver.recorder.append(entries).await.map_err(stopped)?;
        *self.calls_done.lock().unwrap_or_else(PoisonError::into_inner) += ended;
        Ok(())
    }

    async fn news(&self) -> Result<Vec<SequencedEvent>, Stopped> {
        let news = self.driver.recorder.take_news().await;
        Ok(news.iter().filter_map(events::logged).collect())
    }

    async fn check(&self) -> Result<(), Stopped> {
        self.check_for_stop().await.map_err(stopped)
    }

    async fn must_stop(&self) -> Stopped {
        stopped(self.driver.until_stop().await)
    }

    async fn file(
        &self,
        key: Option<CallKey>,
        operation: FileOperation,
    ) -> Result<Result<FileReply, FileError>, Stopped> {
        self.driver.perform_file_operation(key, operation).await.map_err(stopped)
    }

    async fn finished_file(&self, key: CallKey) -> Result<Option<Result<FileReply, FileError>>, Stopped> {
        let status = self.ask(|client| {
            let key = key.clone();
            async move { client.call_status(key).await }
        });
        Ok(match status.await? {
            Ok(GuestCallStatus::File(result)) => Some(result.into()),
            _ => None,
        })
    }

    async fn execute(&self, order: ProcessRequest) -> Result<ExecReport, Stopped> {
        self.run(order).await.map_err(stopped)
    }

    async fn type_into(&self, key: CallKey, text: &str) -> Result<Result<InputDelivery, String>, Stopped> {
        let open = self.ask(|client| {
            let key = key.clone();
            async move { client.input(key).await }
        });
        let mut input = match open.await? {
            Ok(input) => input,
            Err(problem) => return Ok(Err(problem)),
        };
        // Never type a text again that may have been typed.
        match input.write(text.as_bytes()).await {
            Ok(()) => Ok(Ok(InputDelivery::Delivered)),
            Err(ProtocolError::Refused(message)) => Ok(Err(message)),
            Err(error) => {
                self.driver.after_break(error).await.map_err(stopped)?;
                Ok(Ok(InputDelivery::Uncertain))
            }
        }
    }

    async fn process_end(&self, key: CallKey) -> Result<Option<String>, Stopped> {
        let status = self.ask(|client| {
            let key = key.clone();
            async move { client.call_status(key).await }
        });
        Ok(match status.await? {
            Ok(GuestCallStatus::Ended(outcome)) => Some(end_in_words(&outcome.end)),
            Ok(GuestCallStatus::Unknown) => Some("it is gone".into()),
            _ => None,
        })
    }

    async fn kill(&self, key: CallKey) -> Result<Result<(), String>, Stopped> {
        self.ask(|client| {
            let key = key.clone();
            async move { client.kill(key).await }
        })
        .await
    }

    async fn run_code(&self, order: CodeExecution) -> Result<CodeReport, Stopped> {
        self.code(order).await.map_err(stopped)
    }

    async fn desktop(
        &self,
        key: Option<CallKey>,
        action: GuiAction,
    ) -> Result<Result<DesktopReport, String>, Stopped> {
        self.act(key, action).await.map_err(stopped)
    }

    async fn browse(&self, action: serde_json::Value) -> Result<Result<BrowserReport, String>, Stopped> {
        self.browse_page(action).await.map_err(stopped)
    }

    async fn store_image(&self, image: model::Image) -> Result<Picture, Stopped> {
        self.keep_image(image).await.map_err(stopped)
    }

    async fn picture(&self, digest: &str) -> Result<Option<Vec<u8>>, Stopped> {
        let job = self.driver.recorder.job();
        self.driver.core.store.blob(job, digest.to_owned()).await.map_err(stopped)
    }

    async fn store_text(&self, text: String) -> Result<(String, context::Blob), Stopped> {
        let mut bytes = text.into_bytes();
        // Redact what is stored beside the log in the same way as the log.
        self.driver.recorder.redactor().cover(&mut bytes);
        let text = into_text(bytes);
        let blob = context::output_cap::blob_of(&text);
        self.driver.recorder.put_blob(text.clone().into_bytes()).await.map_err(stopped)?;
        Ok((text, blob))
    }

    async fn stored_text(&self, digest: &str) -> Result<Option<String>, Stopped> {
        Ok(self.picture(digest).await?.map(into_text))
    }

    async fn save_file(&self, path: &str, bytes: &[u8]) -> Result<Result<(), String>, Stopped> {
        self.put_file(path, bytes).await.map_err(stopped)
    }

    fn hear(&self, turn: u64, event: &model::ModelEvent) {
        self.driver.speech.apply(turn, event);
    }

    fn external_tools(&self) -> ExternalTools {
        self.mcp.as_ref().map(McpServers::tools).unwrap_or_default()
    }

    async fn call_external_tool(&self, tool: &str, input: Value, call: &str) -> Result<ToolEnd, Stopped> {
        let Some(mcp_servers) = &self.mcp else {
            return Ok(ToolEnd::failed(format!("there is no tool `{tool}`")));
        };
        let called = tokio::select! {
            called = mcp_servers.call(tool, input, call) => called,
            stop = self.must_stop() => return Err(stop),
            stop = self.keep_link() => return Err(stopped(stop)),
        };
        let outcome = match called {
            Ok(outcome) => outcome,
            Err(end) => return Ok(end),
        };
        let mut images = Vec::new();
        for image in outcome.images {
            images.push(self.keep_image(image).await.map_err(stopped)?);
        }
        let status = if outcome.is_error { ToolStatus::Failed } else { ToolStatus::Done };
        Ok(ToolEnd { status, text: outcome.text, images, ..ToolEnd::default() })
    }

    async fn output_of(&self, call: &str, after: u64, until: u64) -> Result<Option<String>, Stopped> {
        let mut bytes = Vec::new();
        let mut after = after;
        while after < until {
            let left = usize::try_from(until - after).unwrap_or(PAGE).min(PAGE);
            let page = self.driver.core.store.events(self.driver.recorder.job(), after, left).await;
            let page = page.map_err(stopped)?;
            let Some(last) = page.last() else { break };
            after = last.sequence;
            for event in page.iter().filter(|event| event.call.as_ref().is_some_and(|of| of.id == call)) {
                bytes.extend(printed(&event.body));
            }
        }
        Ok((!bytes.is_empty()).then(|| into_text(bytes)))
    }

    fn show(&self, request: Arc<ModelRequest>, conversation: &Conversation) {
        self.memory.show(request, conversation, self.driver.guest.borrow().clone());
    }

    fn worked(&self) -> Duration {
        let waited = self.driver.recorder.waiting().total().saturating_sub(self.waited_before);
        self.worked_before + self.since.elapsed().saturating_sub(waited)
    }

    fn now_ms(&self) -> i64 {
        now_ms()
    }
}

/// The output of a call that an event contains.
fn printed(body: &EventBody) -> Vec<u8> {
    match body {
        EventBody::CallOutput { text, base64: true, .. } => STANDARD.decode(text).unwrap_or_default(),
        EventBody::CallOutput { text, .. } => text.clone().into_bytes(),
        EventBody::CallOutputDropped { bytes, .. } => transcript::dropped(*bytes).into_bytes(),
        EventBody::CallDisplay { shown, .. } => format!("{}\n", shown.text).into_bytes(),
        _ => Vec::new(),
    }
}

/// Whether an event starts a call that needs the desktop.
fn uses_desktop(event: &Event) -> bool {
    matches!(&event.body, EventBody::CallStarted { tool, .. } if ["gui", "browser", "screenshot"].contains(&tool.as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn call_output_includes_pieces_that_are_not_utf_8() {
        let piece = |text: &str, base64| EventBody::CallOutput {
            stream: "stdout".into(),
            next_chunk: 1,
            text: text.into(),
            base64,
            held_bytes: 0,
        };
        let dropped = EventBody::CallOutputDropped { bytes: 9, next_chunk: 3 };
        let events = [piece("first\n", false), piece("YWz/bGUK", true), dropped, piece("last\n", false)];
        let text = into_text(events.iter().flat_map(printed).collect());
        assert_eq!(text, "first\nal\u{fffd}le\n\n[9 bytes of the output were too much to keep]\nlast\n");
    }
}
