//! What the agent needs of whoever runs it: a durable log, a computer, a clock. The orchestrator gives it one; the tests
//! of this crate another. The agent knows no store, no sandbox and no HTTP.

use std::any::Any;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use model::ModelRequest;
use protocol::{CallKey, FileError, FileOperation, FileReply, GuiAction, GuiReply, Program};
use serde_json::Value;

use crate::event::{AgentEvent, Logged, ToolEnd};
use crate::extra::ExtraTools;
use crate::picture::Picture;

/// The work must stop now; the host knows why and what comes of it.
pub struct Stopped(pub Box<dyn Any + Send>);

impl std::fmt::Debug for Stopped {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Stopped")
    }
}

/// A process to run, or to go on with.
#[derive(Debug, Clone)]
pub struct ExecOrder {
    /// The call under which its output is logged.
    pub call: String,
    /// Names the process; the same key never runs twice.
    pub key: CallKey,
    /// What to start; `None` follows a process that was started before.
    pub start: Option<ExecStart>,
    /// The first piece of output that is wanted.
    pub from_chunk: u64,
    /// How long to wait for its end.
    pub wait: Duration,
}

/// How to start a process.
#[derive(Debug, Clone)]
pub struct ExecStart {
    /// What to run.
    pub program: Program,
    /// Standard input.
    pub stdin: Option<String>,
    /// Leaves standard input open, to type into later.
    pub keep_stdin_open: bool,
    /// Ends it after this time.
    pub timeout: Option<Duration>,
    /// Variables beside the job's own.
    pub environment: BTreeMap<String, String>,
}

impl ExecStart {
    /// A command line without input.
    #[must_use]
    pub fn shell(command: impl Into<String>) -> Self {
        Self::program(Program::Shell(command.into()))
    }

    /// A program without input.
    #[must_use]
    pub fn program(program: Program) -> Self {
        Self { program, stdin: None, keep_stdin_open: false, timeout: None, environment: BTreeMap::new() }
    }
}

/// What came of a process.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ExecReport {
    /// How it ended; `None` while it runs.
    pub end: Option<ExecEnd>,
    /// All that it printed, both streams in order; what nobody has kept is said.
    pub output: String,
    /// Pictures that it showed, where a kernel ran it.
    pub images: Vec<model::Image>,
    /// The first piece of output after these.
    pub next_chunk: u64,
    /// How long it has run.
    pub duration_ms: u64,
}

/// How a process ended.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ExecEnd {
    /// Its exit code; 128 and the signal's number where one ended it.
    pub exit_code: Option<i32>,
    /// Why it did not succeed, for people; `None` for exit code 0.
    pub problem: Option<String>,
}

impl ExecReport {
    /// Whether it has ended with exit code 0.
    #[must_use]
    pub fn is_success(&self) -> bool {
        self.end.as_ref().is_some_and(|end| end.problem.is_none())
    }
}

/// A language that code can be written in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Language {
    /// Python.
    Python,
    /// TypeScript.
    TypeScript,
}

/// Code to run.
#[derive(Debug, Clone)]
pub struct CodeOrder {
    /// The call.
    pub call: String,
    /// In which language.
    pub language: Language,
    /// The code.
    pub code: String,
    /// Ends it after this time.
    pub timeout: Duration,
}

/// What came of code.
#[derive(Debug, Clone, Default)]
pub struct CodeReport {
    /// What it printed and its last value.
    pub output: String,
    /// Pictures that it showed.
    pub images: Vec<model::Image>,
    /// Why it did not succeed.
    pub problem: Option<String>,
    /// Something about how it was run.
    pub note: Option<String>,
}

/// What came of something done on the desktop.
#[derive(Debug, Clone, Default)]
pub struct DesktopReport {
    /// What it gave.
    pub reply: GuiReply,
    /// The picture, where one was taken.
    pub image: Option<model::Image>,
}

/// What came of something done in the browser.
#[derive(Debug, Clone, Default)]
pub struct BrowserReport {
    /// What it gave.
    pub facts: Value,
    /// The picture, where one was taken.
    pub image: Option<model::Image>,
}

/// What a sandbox's image has; tools that need something else are not offered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Ability {
    /// Python code.
    Python,
    /// TypeScript code.
    TypeScript,
    /// `curl`.
    Curl,
    /// `rg`.
    Ripgrep,
    /// A desktop to look at and to click on.
    Desktop,
    /// A web browser.
    Browser,
}

/// Whether a text has reached a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Typed {
    /// It was sent.
    Surely,
    /// The connection broke while it was sent.
    Perhaps,
}

/// What the agent needs of whoever runs it.
#[async_trait]
pub trait Host: Send + Sync {
    /// Writes events to the log; they are durable when this returns, and come back by [`Host::news`].
    async fn record(&self, events: Vec<AgentEvent>) -> Result<(), Stopped>;

    /// The events that were not handed out yet, in the order of the log: the agent's own, and those of people.
    async fn news(&self) -> Result<Vec<Logged>, Stopped>;

    /// Stops the work between two calls when somebody wants it to wait or to end.
    async fn check(&self) -> Result<(), Stopped>;

    /// Returns when the work must end at once, in the middle of whatever it does.
    async fn must_stop(&self) -> Stopped;

    /// Does a file operation; one with a key is done once, however often it is asked for.
    async fn file(
        &self,
        key: Option<CallKey>,
        operation: FileOperation,
    ) -> Result<Result<FileReply, FileError>, Stopped>;

    /// What came of a file operation that was done under this key, if it was.
    async fn finished_file(&self, key: CallKey) -> Result<Option<Result<FileReply, FileError>>, Stopped>;

    /// Runs a process, or goes on with one, for at most the time to wait.
    async fn execute(&self, order: ExecOrder) -> Result<ExecReport, Stopped>;

    /// Types into a process, at most once. The inner error is for the model.
    async fn type_into(&self, key: CallKey, text: &str) -> Result<Result<Typed, String>, Stopped>;

    /// Ends a process with all it has started. The inner error is for the model.
    async fn kill(&self, key: CallKey) -> Result<Result<(), String>, Stopped>;

    /// Runs code, in a live kernel where the image has one.
    async fn run_code(&self, order: CodeOrder) -> Result<CodeReport, Stopped>;

    /// Does something on the desktop, which is started where needed; what has a key is done once. The inner error is for
    /// the model.
    async fn desktop(
        &self,
        key: Option<CallKey>,
        action: GuiAction,
    ) -> Result<Result<DesktopReport, String>, Stopped>;

    /// Does something in the browser, which is started where needed; written like a step of a job. The inner error is
    /// for the model.
    async fn browse(&self, action: Value) -> Result<Result<BrowserReport, String>, Stopped>;

    /// Keeps a picture; it is durable when this returns.
    async fn keep_picture(&self, image: model::Image) -> Result<Picture, Stopped>;

    /// The content of a picture that was kept; `None` where it is there no more.
    async fn picture(&self, digest: &str) -> Result<Option<Vec<u8>>, Stopped>;

    /// Keeps a text that is too large for the log; it is durable when this returns. The text as it was kept, without the
    /// values of secrets, and its name.
    async fn keep_text(&self, text: String) -> Result<(String, context::Blob), Stopped>;

    /// A text that was kept; `None` where it is there no more.
    async fn kept_text(&self, digest: &str) -> Result<Option<String>, Stopped>;

    /// Writes a file that is no text into the workspace. The inner error is for the model.
    async fn save_file(&self, path: &str, bytes: &[u8]) -> Result<Result<(), String>, Stopped>;

    /// All that the log has of a call's output between two events, for logs of before whole outputs were kept; `None`
    /// where there is none.
    async fn output_of(&self, call: &str, after: u64, until: u64) -> Result<Option<String>, Stopped>;

    /// What the model says, as it comes; for who watches, and in no log.
    fn hear(&self, turn: u64, event: &model::ModelEvent);

    /// Tools from elsewhere, as they are at this moment.
    fn extra_tools(&self) -> ExtraTools {
        ExtraTools::default()
    }

    /// Calls a tool from elsewhere. A call that was begun before a restart is never made again.
    async fn call_extra(&self, tool: &str, _input: Value, _call: &str) -> Result<ToolEnd, Stopped> {
        Ok(ToolEnd::failed(format!("there is no tool `{tool}`")))
    }

    /// What the model sees next, and what happened so far, for the files `context.txt` (see [`crate::context_text`]) and
    /// `memory.json`.
    fn show(&self, request: Arc<ModelRequest>, conversation: &crate::conversation::Conversation);

    /// How long the job has worked, without waiting for people.
    fn worked(&self) -> Duration;

    /// Milliseconds since 1970.
    fn now_ms(&self) -> i64;
}
