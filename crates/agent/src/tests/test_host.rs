//! A host and a model for this crate's tests: an in-memory log, files in a map, scripted answers.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use futures::StreamExt;
use model::{
    Answer, Image, Model, ModelError, ModelEvent, ModelLimits, ModelName, ModelRequest, ModelStream, Money,
    Part, Price, StopReason, ToolCall, Usage,
};
use protocol::{
    CallKey, FileEntry, FileError, FileErrorCode, FileKind, FileOperation, FileReply, FileStat, GuiAction,
    GuiReply, Program, WindowInfo,
};
use serde_json::{Value, json};

use crate::{
    Agent, AgentEvent, AgentParts, AgentSettings, BrowserReport, Capability, CodeExecution, CodeReport,
    Conversation, DesktopReport, ExecEnd, ExecReport, Host, InputDelivery, Picture, ProcessRequest,
    SequencedEvent, Stopped, ToolEnd, Toolbox, VisionSupport, tools,
};

/// A model that returns these answers in order.
pub(crate) struct ScriptedModel {
    name: ModelName,
    sight: VisionSupport,
    answers: Mutex<VecDeque<Result<Answer, ModelError>>>,
    is_silent: bool,
    unpriced: Option<ModelName>,
    price: Option<Price>,
    pub(crate) requests: Mutex<Vec<ModelRequest>>,
}

#[async_trait]
impl Model for ScriptedModel {
    fn name(&self) -> &ModelName {
        &self.name
    }

    fn limits(&self) -> ModelLimits {
        ModelLimits {
            context_tokens: 100_000,
            output_tokens: 8000,
            vision: self.sight == VisionSupport::Images,
            native_tools: true,
            reasoning: false,
        }
    }

    fn unpriced(&self) -> Option<&ModelName> {
        self.unpriced.as_ref()
    }

    fn cost_at_most(&self, usage: &Usage) -> Option<Money> {
        self.price.map(|price| price.of(usage))
    }

    async fn stream(&self, request: Arc<ModelRequest>) -> Result<ModelStream, ModelError> {
        self.requests.lock().unwrap().push(ModelRequest::clone(&request));
        if self.is_silent {
            return std::future::pending().await;
        }
        let next = self.answers.lock().unwrap().pop_front();
        let answer = match next.unwrap_or_else(|| Ok(text_answer("I have nothing more to say"))) {
            Ok(answer) => answer,
            Err(error) if error.lost() == Usage::default() => return Err(error),
            Err(error) => {
                let lost = ModelEvent::Lost { usage: error.lost(), cost: None };
                return Ok(futures::stream::iter([Ok(lost), Err(error)]).boxed());
            }
        };
        let text_event = ModelEvent::Text(answer.text());
        Ok(futures::stream::iter([Ok(text_event), Ok(ModelEvent::Answer(Box::new(answer)))]).boxed())
    }
}

fn answer_of(parts: Vec<Part>) -> Answer {
    Answer {
        parts,
        stop_reason: StopReason::End,
        usage: Usage { input: 100, output: 10, ..Usage::default() },
        lost: Usage::default(),
        model: ModelName::new("test/list"),
        cost: Some(model::Money::from_nanodollars(1_000_000)),
    }
}

/// A text answer.
pub(crate) fn text_answer(text: &str) -> Answer {
    answer_of(vec![Part::Text(text.to_owned())])
}

/// An answer that calls tools.
pub(crate) fn calls(list: &[(&str, Value)]) -> Answer {
    let call = |(name, arguments): &(&str, Value)| {
        Part::ToolCall(ToolCall {
            // Some models use the same id for every call.
            id: "call_0".into(),
            name: (*name).to_owned(),
            arguments: arguments.clone(),
            opaque: None,
        })
    };
    answer_of(list.iter().map(call).collect())
}

/// Scripted results of commands: output and exit code.
type Programs = HashMap<String, VecDeque<(String, i32)>>;

/// When something else appends to the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Moment {
    PromptBuilt,
    Answering,
    CommandRunning,
}

/// A host without a sandbox.
#[derive(Default)]
pub(crate) struct TestHost {
    pub(crate) log: Mutex<Vec<SequencedEvent>>,
    seen: AtomicUsize,
    pub(crate) files: Mutex<BTreeMap<String, String>>,
    /// Files that are not text.
    pub(crate) binaries: Mutex<BTreeMap<String, Vec<u8>>>,
    pub(crate) programs: Mutex<Programs>,
    pub(crate) executed: Mutex<Vec<String>>,
    /// Files that commands write: path and content. Without any, listings are empty.
    pub(crate) written_by: Mutex<HashMap<String, (String, String)>>,
    done: Mutex<HashMap<CallKey, Result<FileReply, FileError>>>,
    pub(crate) now_ms: Mutex<i64>,
    pictures: Mutex<HashMap<String, Vec<u8>>>,
    pub(crate) texts: Mutex<HashMap<String, String>>,
    pub(crate) streamed_text: Mutex<String>,
    pub(crate) sight: Mutex<Option<VisionSupport>>,
    pub(crate) is_model_silent: AtomicBool,
    pub(crate) is_model_unpriced: AtomicBool,
    pub(crate) price: Mutex<Option<Price>>,
    /// Text that was typed into processes.
    pub(crate) typed: Mutex<Vec<String>>,
    pub(crate) is_link_broken: AtomicBool,
    pub(crate) worked: Mutex<Duration>,
    /// How often a background process is polled before it ends.
    pub(crate) quiet_polls: AtomicUsize,
    /// How long the next commands run, in milliseconds; 1 for all others.
    pub(crate) durations: Mutex<VecDeque<u64>>,
    /// The wait times of the process requests.
    pub(crate) waits: Mutex<Vec<Duration>>,
    /// The external tools, and what replaces them when a given command runs.
    pub(crate) external: Mutex<crate::ExternalTools>,
    pub(crate) external_later: Mutex<Option<(String, crate::ExternalTools)>>,
    /// Files that can be read only after another one was.
    pub(crate) waits_for: Mutex<HashMap<String, String>>,
    read: tokio::sync::watch::Sender<BTreeSet<String>>,
    recording: tokio::sync::Mutex<()>,
    /// Tools that the image does not support.
    pub(crate) left_out: Mutex<Vec<&'static str>>,
    /// How background processes have ended, by handle.
    pub(crate) ended: Mutex<HashMap<String, String>>,
    /// Appended to the log during the next check.
    pub(crate) appended_by_check: Mutex<Option<AgentEvent>>,
    /// Appended to the log when the prompt is built, while the model answers, or while a command runs.
    pub(crate) appended_at: Mutex<HashMap<Moment, AgentEvent>>,
}

/// A screenshot.
fn screen() -> Image {
    let mut bytes = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR".to_vec();
    bytes.extend(1280_u32.to_be_bytes());
    bytes.extend(800_u32.to_be_bytes());
    Image { media_type: "image/png".into(), bytes }
}

impl TestHost {
    pub(crate) fn with_task(task: &str) -> Self {
        let host = Self::default();
        host.append(AgentEvent::MessageReceived { text: task.to_owned() });
        host
    }

    pub(crate) fn append(&self, event: AgentEvent) {
        let mut log = self.log.lock().unwrap();
        let sequence = log.len() as u64 + 1;
        log.push(SequencedEvent { sequence, time_ms: 1000, event });
    }

    fn pass(&self, moment: Moment) {
        if let Some(event) = self.appended_at.lock().unwrap().remove(&moment) {
            self.append(event);
        }
    }

    pub(crate) fn program(&self, command: &str, results: &[(&str, i32)]) {
        let results = results.iter().map(|(text, code)| ((*text).to_owned(), *code)).collect();
        self.programs.lock().unwrap().insert(command.to_owned(), results);
    }

    /// The results that the model received, in order.
    pub(crate) fn results(&self) -> Vec<String> {
        let log = self.log.lock().unwrap();
        let ends = log.iter().filter_map(|logged| match &logged.event {
            AgentEvent::CallEnded { end, .. } => Some(end.text.clone()),
            _ => None,
        });
        ends.collect()
    }

    /// An agent that continues this log.
    pub(crate) fn agent(
        &self,
        settings: AgentSettings,
        answers: Vec<Result<Answer, ModelError>>,
    ) -> (Agent, Arc<ScriptedModel>) {
        let model = Arc::new(ScriptedModel {
            name: ModelName::new("test/list"),
            sight: self.sight.lock().unwrap().unwrap_or(VisionSupport::Images),
            answers: Mutex::new(answers.into()),
            is_silent: self.is_model_silent.load(Ordering::Relaxed),
            unpriced: self.is_model_unpriced.load(Ordering::Relaxed).then(|| ModelName::new("test/list")),
            price: *self.price.lock().unwrap(),
            requests: Mutex::default(),
        });
        let agent = self.agent_of(Arc::clone(&model) as Arc<dyn Model>, settings, crate::SummaryMode::Model);
        (agent, model)
    }

    /// An agent with any model that continues this log.
    pub(crate) fn agent_of(
        &self,
        model: Arc<dyn Model>,
        settings: AgentSettings,
        summaries: crate::SummaryMode,
    ) -> Agent {
        let abilities =
            BTreeSet::from([Capability::Python, Capability::Curl, Capability::Desktop, Capability::Browser]);
        let parts = AgentParts {
            recall: crate::Recall::none(),
            summaries,
            extra: self.external.lock().unwrap().clone(),
            settings,
            model,
            toolbox: self.toolbox(&abilities),
            egress: "off".into(),
            cache_key: "job".into(),
        };
        let log = self.log.lock().unwrap().clone();
        self.seen.store(log.len(), Ordering::Relaxed);
        Agent::new(parts, &log).unwrap()
    }

    fn toolbox(&self, abilities: &BTreeSet<Capability>) -> Toolbox {
        let mut toolbox = Toolbox::new(tools::standard(), abilities);
        let left_out = self.left_out.lock().unwrap().clone();
        toolbox.retain(|name| !left_out.contains(&name));
        toolbox
    }

    fn do_file(&self, operation: FileOperation) -> Result<FileReply, FileError> {
        let mut files = self.files.lock().unwrap();
        let refuse = |code, message: &str| Err(FileError { code, message: message.to_owned() });
        match operation {
            FileOperation::Write { path, content, .. } => {
                let size = content.len() as u64;
                files.insert(path, content);
                Ok(FileReply::Written { size })
            }
            FileOperation::Read { path, .. } => {
                let binaries = self.binaries.lock().unwrap();
                let (content, base64, size) = match (files.get(&path), binaries.get(&path)) {
                    (Some(text), _) => (text.clone(), false, text.len()),
                    (None, Some(bytes)) => (STANDARD.encode(bytes), true, bytes.len()),
                    (None, None) => return refuse(FileErrorCode::NotFound, "there is no such file"),
                };
                Ok(FileReply::Content { content, base64, size: size as u64 })
            }
            FileOperation::Edit { path, old, new } => match files.get_mut(&path) {
                Some(content) if content.matches(&old).count() == 1 => {
                    *content = content.replacen(&old, &new, 1);
                    Ok(FileReply::Written { size: content.len() as u64 })
                }
                Some(_) => refuse(FileErrorCode::NoMatch, "the text is not there"),
                None => refuse(FileErrorCode::NotFound, "there is no such file"),
            },
            FileOperation::Remove { path, .. } => {
                files.remove(&path);
                Ok(FileReply::Done)
            }
            FileOperation::List { .. } if !self.written_by.lock().unwrap().is_empty() => {
                let entry = |(path, content): (&String, &String)| {
                    let (kind, size) = (FileKind::File, content.len() as u64);
                    let stat = FileStat { kind, size, mode: 0o644, modified_ms: 0, link_target: None };
                    FileEntry { path: path.clone(), stat }
                };
                Ok(FileReply::Entries { entries: files.iter().map(entry).collect(), truncated: false })
            }
            _ => Ok(FileReply::Entries { entries: Vec::new(), truncated: false }),
        }
    }
}

#[async_trait]
impl Host for TestHost {
    async fn record(&self, events: Vec<AgentEvent>) -> Result<(), Stopped> {
        // A real host holds a lock while it waits for its database.
        let _turn = self.recording.lock().await;
        tokio::task::yield_now().await;
        events.into_iter().for_each(|event| self.append(event));
        Ok(())
    }

    async fn news(&self) -> Result<Vec<SequencedEvent>, Stopped> {
        let log = self.log.lock().unwrap();
        let seen = self.seen.swap(log.len(), Ordering::Relaxed);
        Ok(log[seen..].to_vec())
    }

    async fn check(&self) -> Result<(), Stopped> {
        if let Some(event) = self.appended_by_check.lock().unwrap().take() {
            self.append(event);
        }
        Ok(())
    }

    async fn must_stop(&self) -> Stopped {
        std::future::pending().await
    }

    async fn file(
        &self,
        key: Option<CallKey>,
        operation: FileOperation,
    ) -> Result<Result<FileReply, FileError>, Stopped> {
        if let FileOperation::Read { path, .. } = &operation {
            let wanted = self.waits_for.lock().unwrap().get(path).cloned();
            if let Some(wanted) = wanted {
                self.read.subscribe().wait_for(|read| read.contains(&wanted)).await.unwrap();
            }
            self.read.send_modify(|read| read.extend([path.clone()]));
        }
        let Some(key) = key else { return Ok(self.do_file(operation)) };
        if let Some(done) = self.done.lock().unwrap().get(&key) {
            return Ok(done.clone());
        }
        let result = self.do_file(operation);
        self.done.lock().unwrap().insert(key, result.clone());
        Ok(result)
    }

    async fn finished_file(&self, key: CallKey) -> Result<Option<Result<FileReply, FileError>>, Stopped> {
        Ok(self.done.lock().unwrap().get(&key).cloned())
    }

    async fn execute(&self, order: ProcessRequest) -> Result<ExecReport, Stopped> {
        self.waits.lock().unwrap().push(order.wait);
        let one_fewer = |count: usize| count.checked_sub(1);
        let keeps_running = match &order.start {
            Some(start) => start.keep_stdin_open,
            None => self.quiet_polls.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_fewer).is_ok(),
        };
        if keeps_running && order.start.is_none() {
            return Ok(ExecReport { next_chunk: 1, duration_ms: 2000, ..ExecReport::default() });
        }
        let command = match order.start.map(|start| start.program) {
            Some(Program::Shell(command)) => command,
            Some(Program::Arguments(arguments)) => arguments.join(" "),
            Some(Program::Cell(cell)) => cell.code,
            None => String::new(),
        };
        self.executed.lock().unwrap().push(command.clone());
        if let Some((path, content)) = self.written_by.lock().unwrap().get(&command) {
            self.files.lock().unwrap().insert(path.clone(), content.clone());
        }
        self.pass(Moment::CommandRunning);
        if let Some((_, extra)) = self.external_later.lock().unwrap().take_if(|(when, _)| *when == command) {
            *self.external.lock().unwrap() = extra;
        }
        let result = self.programs.lock().unwrap().get_mut(&command).and_then(VecDeque::pop_front);
        let (output, code) = result.unwrap_or_else(|| (format!("ran {command}\n"), 0));
        let problem = (code != 0).then(|| format!("exit code {code}"));
        Ok(ExecReport {
            end: (!keeps_running).then_some(ExecEnd { exit_code: Some(code), problem }),
            output,
            images: Vec::new(),
            next_chunk: 1,
            duration_ms: self.durations.lock().unwrap().pop_front().unwrap_or(1),
        })
    }

    async fn type_into(&self, _: CallKey, text: &str) -> Result<Result<InputDelivery, String>, Stopped> {
        self.typed.lock().unwrap().push(text.to_owned());
        let is_broken = self.is_link_broken.load(Ordering::Relaxed);
        Ok(Ok(if is_broken { InputDelivery::Uncertain } else { InputDelivery::Delivered }))
    }

    async fn process_end(&self, key: CallKey) -> Result<Option<String>, Stopped> {
        Ok(self.ended.lock().unwrap().get(&key.call).cloned())
    }

    async fn kill(&self, _: CallKey) -> Result<Result<(), String>, Stopped> {
        Ok(Ok(()))
    }

    async fn run_code(&self, order: CodeExecution) -> Result<CodeReport, Stopped> {
        self.waits.lock().unwrap().push(order.timeout);
        *self.worked.lock().unwrap() += Duration::from_secs(order.code.matches("sleep").count() as u64);
        let problem = order.code.contains("| grep").then(|| "SyntaxError: invalid syntax".to_owned());
        Ok(CodeReport { output: order.code, problem, ..CodeReport::default() })
    }

    async fn desktop(
        &self,
        _: Option<CallKey>,
        action: GuiAction,
    ) -> Result<Result<DesktopReport, String>, Stopped> {
        self.executed.lock().unwrap().push(format!("gui {}", action.name()));
        let image = (action == GuiAction::Screenshot).then(screen);
        let reply = GuiReply {
            windows: (action == GuiAction::Windows).then(|| {
                vec![WindowInfo {
                    number: 1,
                    title: "Form".into(),
                    x: 10,
                    y: 20,
                    width: 300,
                    height: 200,
                    is_active: true,
                }]
            }),
            ..GuiReply::default()
        };
        Ok(Ok(DesktopReport { reply, image }))
    }

    async fn browse(&self, action: Value) -> Result<Result<BrowserReport, String>, Stopped> {
        self.executed.lock().unwrap().push(format!("browser {}", action["action"]));
        let image = (action["action"] == "screenshot").then(screen);
        Ok(Ok(BrowserReport { facts: json!({"url": "http://a/", "outline": "e1 button Go"}), image }))
    }

    async fn store_image(&self, image: Image) -> Result<Picture, Stopped> {
        let digest = context::output_cap::digest(&image.bytes);
        let picture = Picture::of(&image, digest.clone());
        self.pictures.lock().unwrap().insert(digest, image.bytes);
        Ok(picture)
    }

    async fn picture(&self, digest: &str) -> Result<Option<Vec<u8>>, Stopped> {
        Ok(self.pictures.lock().unwrap().get(digest).cloned())
    }

    async fn store_text(&self, text: String) -> Result<(String, context::Blob), Stopped> {
        let blob = context::output_cap::blob_of(&text);
        self.texts.lock().unwrap().insert(blob.digest.clone(), text.clone());
        Ok((text, blob))
    }

    async fn stored_text(&self, digest: &str) -> Result<Option<String>, Stopped> {
        Ok(self.texts.lock().unwrap().get(digest).cloned())
    }

    async fn save_file(&self, path: &str, bytes: &[u8]) -> Result<Result<(), String>, Stopped> {
        self.files.lock().unwrap().insert(path.to_owned(), format!("{} bytes", bytes.len()));
        Ok(Ok(()))
    }

    async fn output_of(&self, _: &str, _: u64, _: u64) -> Result<Option<String>, Stopped> {
        Ok(None)
    }

    fn external_tools(&self) -> crate::ExternalTools {
        self.external.lock().unwrap().clone()
    }

    async fn call_external_tool(&self, tool: &str, _: Value, _: &str) -> Result<ToolEnd, Stopped> {
        Ok(ToolEnd::done(format!("{tool} answers")))
    }

    fn hear(&self, _: u64, event: &ModelEvent) {
        self.pass(Moment::Answering);
        if let ModelEvent::Text(text) = event {
            self.streamed_text.lock().unwrap().push_str(text);
        }
    }

    fn show(&self, _: Arc<ModelRequest>, _: &Conversation) {
        self.pass(Moment::PromptBuilt);
    }

    fn worked(&self) -> Duration {
        *self.worked.lock().unwrap()
    }

    fn now_ms(&self) -> i64 {
        *self.now_ms.lock().unwrap()
    }
}
