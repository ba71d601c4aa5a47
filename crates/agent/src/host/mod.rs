//! The agent's interface to its environment: a durable log, a sandbox and a clock. The orchestrator implements it;
//! the tests of this crate have their own implementation. The agent knows nothing about storage, sandboxes or HTTP.

mod external_tools;

pub use external_tools::{Effect, ExternalTool, ExternalTools};

use std::any::Any;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use model::ModelRequest;
use protocol::{CallKey, FileError, FileOperation, FileReply, GuiAction, GuiReply, Program};
use serde_json::Value;

use crate::conversation::Conversation;
use crate::event::{AgentEvent, SequencedEvent, ToolEnd};
use crate::stored_image::Picture;

/// The work must stop now. The payload is the host's reason, which the agent passes through.
pub struct Stopped(pub Box<dyn Any + Send>);

impl std::fmt::Debug for Stopped {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Stopped")
    }
}

/// A process to start or to keep following.
#[derive(Debug, Clone)]
pub struct ProcessRequest {
    /// The call under which its output is logged.
    pub call: String,
    /// Identifies the process. A process with the same key never runs twice.
    pub key: CallKey,
    /// What to start; `None` follows a process that was started earlier.
    pub start: Option<ExecStart>,
    /// The first output chunk to return.
    pub from_chunk: u64,
    /// How long to wait for the process to end.
    pub wait: Duration,
}

#[derive(Debug, Clone)]
pub struct ExecStart {
    pub program: Program,
    pub stdin: Option<String>,
    /// Keeps stdin open for later input.
    pub keep_stdin_open: bool,
    /// Kills the process after this time.
    pub timeout: Option<Duration>,
    /// Environment variables in addition to the job's own.
    pub environment: BTreeMap<String, String>,
}

impl ExecStart {
    /// A command line without stdin.
    #[must_use]
    pub fn shell(command: impl Into<String>) -> Self {
        Self::program(Program::Shell(command.into()))
    }

    /// A program without stdin.
    #[must_use]
    pub fn program(program: Program) -> Self {
        Self { program, stdin: None, keep_stdin_open: false, timeout: None, environment: BTreeMap::new() }
    }
}

/// What a process has done so far.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ExecReport {
    /// `None` while the process runs.
    pub end: Option<ExecEnd>,
    /// Everything it printed, both streams in order. Gaps in the kept output are marked in the text.
    pub output: String,
    /// Images that it displayed, if a kernel ran it.
    pub images: Vec<model::Image>,
    /// The first output chunk after this report.
    pub next_chunk: u64,
    /// How long the process has run.
    pub duration_ms: u64,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ExecEnd {
    /// The exit code; 128 plus the signal number if a signal ended the process.
    pub exit_code: Option<i32>,
    /// Human-readable failure; `None` for exit code 0.
    pub problem: Option<String>,
}

impl ExecReport {
    /// Whether the process has ended with exit code 0.
    #[must_use]
    pub fn is_success(&self) -> bool {
        self.end.as_ref().is_some_and(|end| end.problem.is_none())
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Language {
    Python,
    TypeScript,
}

#[derive(Debug, Clone)]
pub struct CodeExecution {
    pub call: String,
    pub language: Language,
    pub code: String,
    /// Stops the code after this time.
    pub timeout: Duration,
}

#[derive(Debug, Clone, Default)]
pub struct CodeReport {
    /// What the code printed, and the value of its last expression.
    pub output: String,
    /// Images that it displayed.
    pub images: Vec<model::Image>,
    /// Why it failed; `None` on success.
    pub problem: Option<String>,
    /// A remark about how the code was run.
    pub note: Option<String>,
    /// How long it ran.
    pub duration_ms: u64,
}

/// The result of a desktop action.
#[derive(Debug, Clone, Default)]
pub struct DesktopReport {
    pub reply: GuiReply,
    /// The screenshot, if one was taken.
    pub image: Option<model::Image>,
}

/// The result of a browser action.
#[derive(Debug, Clone, Default)]
pub struct BrowserReport {
    /// The action's result as JSON.
    pub facts: Value,
    /// The screenshot, if one was taken.
    pub image: Option<model::Image>,
}

/// What a sandbox image can provide. Tools that need something else are not offered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Capability {
    Python,
    /// A live kernel for Python.
    PythonKernel,
    TypeScript,
    Curl,
    Ripgrep,
    /// A desktop for screenshots, mouse and keyboard.
    Desktop,
    Browser,
}

/// Whether input has reached a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InputDelivery {
    Delivered,
    /// The connection broke during the write; the input may or may not have arrived.
    Uncertain,
}

/// What the agent needs from its environment.
#[async_trait]
pub trait Host: Send + Sync {
    /// Appends events to the log. They are durable when this returns, and [`Host::news`] returns them later.
    async fn record(&self, events: Vec<AgentEvent>) -> Result<(), Stopped>;

    /// Events since the last call, in log order: the agent's own and those of people.
    async fn news(&self) -> Result<Vec<SequencedEvent>, Stopped>;

    /// Called between tool calls; fails if the job was paused or cancelled.
    async fn check(&self) -> Result<(), Stopped>;

    /// Returns when the work must end immediately, even in the middle of a call.
    async fn must_stop(&self) -> Stopped;

    /// Runs a file operation. An operation with a key runs once, however often it is requested.
    async fn file(
        &self,
        key: Option<CallKey>,
        operation: FileOperation,
    ) -> Result<Result<FileReply, FileError>, Stopped>;

    /// The result of the file operation that ran under this key, if any.
    async fn finished_file(&self, key: CallKey) -> Result<Option<Result<FileReply, FileError>>, Stopped>;

    /// Starts a process, or follows a running one, for at most the wait time.
    async fn execute(&self, request: ProcessRequest) -> Result<ExecReport, Stopped>;

    /// Writes to a process's stdin, at most once. The inner error is for the model.
    async fn type_into(&self, key: CallKey, text: &str) -> Result<Result<InputDelivery, String>, Stopped>;

    /// How a background process has ended, in a few words; `None` while it runs.
    async fn process_end(&self, key: CallKey) -> Result<Option<String>, Stopped>;

    /// Kills a process and all its descendants. The inner error is for the model.
    async fn kill(&self, key: CallKey) -> Result<Result<(), String>, Stopped>;

    /// Runs code, in a live kernel if the image has one.
    async fn run_code(&self, execution: CodeExecution) -> Result<CodeReport, Stopped>;

    /// Performs a desktop action and starts the desktop if necessary. An action with a key runs once. The inner
    /// error is for the model.
    async fn desktop(
        &self,
        key: Option<CallKey>,
        action: GuiAction,
    ) -> Result<Result<DesktopReport, String>, Stopped>;

    /// Performs a browser action and starts the browser if necessary. `action` has the form of a job step. The inner
    /// error is for the model.
    async fn browse(&self, action: Value) -> Result<Result<BrowserReport, String>, Stopped>;

    /// Stores an image. It is durable when this returns.
    async fn store_image(&self, image: model::Image) -> Result<Picture, Stopped>;

    /// The content of a stored image; `None` if it no longer exists.
    async fn picture(&self, digest: &str) -> Result<Option<Vec<u8>>, Stopped>;

    /// Stores a text that is too large for the log. It is durable when this returns. Returns the text as stored,
    /// with secret values redacted, and its blob.
    async fn store_text(&self, text: String) -> Result<(String, context::Blob), Stopped>;

    /// A stored text; `None` if it no longer exists.
    async fn stored_text(&self, digest: &str) -> Result<Option<String>, Stopped>;

    /// Writes a binary file to the workspace. The inner error is for the model.
    async fn save_file(&self, path: &str, bytes: &[u8]) -> Result<Result<(), String>, Stopped>;

    /// Everything that the log has of a call's output between two events, for old logs without stored outputs;
    /// `None` if there is nothing.
    async fn output_of(&self, call: &str, after: u64, until: u64) -> Result<Option<String>, Stopped>;

    /// Streams model output to live viewers. It is not logged.
    fn hear(&self, turn: u64, event: &model::ModelEvent);

    /// The external tools that are available at this moment.
    fn external_tools(&self) -> ExternalTools {
        ExternalTools::default()
    }

    /// Calls an external tool. A call that was started before a restart is never repeated.
    async fn call_external_tool(&self, tool: &str, _input: Value, _call: &str) -> Result<ToolEnd, Stopped> {
        Ok(ToolEnd::failed(format!("there is no tool `{tool}`")))
    }

    /// Publishes the current prompt and history, for the files `context.txt` (see [`crate::context_text`]) and
    /// `memory.json`.
    fn show(&self, request: Arc<ModelRequest>, conversation: &Conversation);

    /// How long the job has worked, without the time spent waiting for people.
    fn worked(&self) -> Duration;

    /// Milliseconds since 1970.
    fn now_ms(&self) -> i64;
}
