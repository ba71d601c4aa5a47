//! A sandbox in memory: a log, files, and commands that print what the task says.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use agent::{
    AgentEvent, BrowserReport, CodeExecution, CodeReport, Conversation, DesktopReport, ExecEnd, ExecReport,
    Host, InputDelivery, Picture, ProcessRequest, SequencedEvent, Stopped,
};
use async_trait::async_trait;
use model::ModelRequest;
use protocol::{
    CallKey, FileEntry, FileError, FileErrorCode, FileKind, FileOperation, FileReply, FileStat, GuiAction,
    Program,
};
use serde_json::Value;

/// The time of the first event, in milliseconds since 1970; each event comes a second after the one before.
const START_MS: i64 = 1_750_000_000_000;

/// What a command prints, and its exit code.
pub(crate) type Outputs = fn(&str) -> (String, i32);

pub(crate) struct MemoryHost {
    outputs: Outputs,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    log: Vec<SequencedEvent>,
    read: usize,
    files: BTreeMap<String, String>,
    texts: BTreeMap<String, String>,
}

impl MemoryHost {
    pub(crate) fn new(task: &str, outputs: Outputs) -> Self {
        let host = Self { outputs, state: Mutex::default() };
        append(&mut host.state(), AgentEvent::MessageReceived { text: task.to_owned() });
        host
    }

    pub(crate) fn log(&self) -> Vec<SequencedEvent> {
        let mut state = self.state();
        state.read = state.log.len();
        state.log.clone()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn append(state: &mut State, event: AgentEvent) {
    let sequence = state.log.len() as u64 + 1;
    let time_ms = START_MS + i64::try_from(sequence).unwrap_or_default() * 1000;
    state.log.push(SequencedEvent { sequence, time_ms, event });
}

fn no_such_file() -> FileError {
    FileError { code: FileErrorCode::NotFound, message: "there is no such file".to_owned() }
}

fn no_such_tool<T>() -> Result<Result<T, String>, Stopped> {
    Ok(Err("this is not part of the benchmark".to_owned()))
}

#[async_trait]
impl Host for MemoryHost {
    async fn record(&self, events: Vec<AgentEvent>) -> Result<(), Stopped> {
        let mut state = self.state();
        events.into_iter().for_each(|event| append(&mut state, event));
        Ok(())
    }

    async fn news(&self) -> Result<Vec<SequencedEvent>, Stopped> {
        let mut state = self.state();
        let from = state.read;
        state.read = state.log.len();
        Ok(state.log[from..].to_vec())
    }

    async fn check(&self) -> Result<(), Stopped> {
        Ok(())
    }

    async fn must_stop(&self) -> Stopped {
        std::future::pending().await
    }

    async fn file(
        &self,
        _: Option<CallKey>,
        operation: FileOperation,
    ) -> Result<Result<FileReply, FileError>, Stopped> {
        let mut state = self.state();
        let files = &mut state.files;
        Ok(match operation {
            FileOperation::Write { path, content, .. } => {
                let size = content.len() as u64;
                files.insert(path, content);
                Ok(FileReply::Written { size })
            }
            FileOperation::Read { path, .. } => files.get(&path).ok_or_else(no_such_file).map(|text| {
                FileReply::Content { content: text.clone(), base64: false, size: text.len() as u64 }
            }),
            FileOperation::Edit { path, old, new } => match files.get_mut(&path) {
                Some(text) if text.matches(&old).count() == 1 => {
                    *text = text.replacen(&old, &new, 1);
                    Ok(FileReply::Written { size: text.len() as u64 })
                }
                Some(_) => Err(FileError {
                    code: FileErrorCode::NoMatch,
                    message: "the text is not there exactly once".to_owned(),
                }),
                None => Err(no_such_file()),
            },
            FileOperation::List { .. } => {
                let entry = |(path, text): (&String, &String)| {
                    let (kind, size) = (FileKind::File, text.len() as u64);
                    let stat = FileStat { kind, size, mode: 0o644, modified_ms: 0, link_target: None };
                    FileEntry { path: path.clone(), stat }
                };
                Ok(FileReply::Entries { entries: files.iter().map(entry).collect(), truncated: false })
            }
            _ => Err(no_such_file()),
        })
    }

    async fn finished_file(&self, _: CallKey) -> Result<Option<Result<FileReply, FileError>>, Stopped> {
        Ok(None)
    }

    async fn execute(&self, request: ProcessRequest) -> Result<ExecReport, Stopped> {
        let command = match request.start.map(|start| start.program) {
            Some(Program::Shell(command)) => command,
            Some(Program::Arguments(arguments)) => arguments.join(" "),
            Some(Program::Cell(_)) | None => String::new(),
        };
        let (output, code) = (self.outputs)(&command);
        let problem = (code != 0).then(|| format!("exit code {code}"));
        let end = Some(ExecEnd { exit_code: Some(code), problem });
        Ok(ExecReport { end, output, next_chunk: 1, duration_ms: 100, ..ExecReport::default() })
    }

    async fn type_into(&self, _: CallKey, _: &str) -> Result<Result<InputDelivery, String>, Stopped> {
        no_such_tool()
    }

    async fn process_end(&self, _: CallKey) -> Result<Option<String>, Stopped> {
        Ok(None)
    }

    async fn kill(&self, _: CallKey) -> Result<Result<(), String>, Stopped> {
        no_such_tool()
    }

    async fn run_code(&self, execution: CodeExecution) -> Result<CodeReport, Stopped> {
        let (output, _) = (self.outputs)(&execution.code);
        Ok(CodeReport { output, duration_ms: 100, ..CodeReport::default() })
    }

    async fn desktop(
        &self,
        _: Option<CallKey>,
        _: GuiAction,
    ) -> Result<Result<DesktopReport, String>, Stopped> {
        no_such_tool()
    }

    async fn browse(&self, _: Value) -> Result<Result<BrowserReport, String>, Stopped> {
        no_such_tool()
    }

    async fn store_image(&self, image: model::Image) -> Result<Picture, Stopped> {
        let digest = context::output_cap::digest(&image.bytes);
        Ok(Picture::of(&image, digest))
    }

    async fn picture(&self, _: &str) -> Result<Option<Vec<u8>>, Stopped> {
        Ok(None)
    }

    async fn store_text(&self, text: String) -> Result<(String, context::Blob), Stopped> {
        let blob = context::output_cap::blob_of(&text);
        self.state().texts.insert(blob.digest.clone(), text.clone());
        Ok((text, blob))
    }

    async fn stored_text(&self, digest: &str) -> Result<Option<String>, Stopped> {
        Ok(self.state().texts.get(digest).cloned())
    }

    async fn save_file(&self, _: &str, _: &[u8]) -> Result<Result<(), String>, Stopped> {
        no_such_tool()
    }

    async fn output_of(&self, _: &str, _: u64, _: u64) -> Result<Option<String>, Stopped> {
        Ok(None)
    }

    fn hear(&self, _: u64, _: &model::ModelEvent) {}

    fn show(&self, _: Arc<ModelRequest>, _: &Conversation) {}

    fn worked(&self) -> Duration {
        Duration::ZERO
    }

    fn now_ms(&self) -> i64 {
        START_MS + i64::try_from(self.state().log.len()).unwrap_or_default() * 1000
    }
}
