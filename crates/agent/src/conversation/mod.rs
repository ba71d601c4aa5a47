//! The state of an agent: a fold over the log. The same events produce the same state, also after a restart.

mod accessors;
mod answer;
mod call_state;
mod duration;
mod finish_checks;
mod history;
mod repeats;
mod replay;
mod stuck_detector;
mod stuck_patterns;

pub(crate) use answer::{answer_body, assistant_parts};
pub use call_state::{OpenCall, Reply, Stage};
pub(crate) use duration::duration_note;
pub use duration::without_duration;
pub use history::{Record, RecordKind};
pub(crate) use history::{is_history_tool, search};
pub use replay::replay;
pub(crate) use replay::{check_versions, first_window};
pub(crate) use stuck_detector::NOT_REPEATED;
pub use stuck_detector::{CallOutcome, StuckDetector, Verdict};

use std::collections::{BTreeMap, HashMap, HashSet};

use context::{Appended, CallResult, Engine, Entry, EntryBody, EventId, Window};
use model::{Money, StopReason, Usage};
use serde_json::Value;

use self::answer::answer_record;
use self::finish_checks::FinishChecks;
use crate::budget::{Budget, Spent};
use crate::event::{
    AgentEvent, Finished, ModelAnswered, Notice, NoticeCode, ProcessState, SequencedEvent, ToolEnd,
    ToolStatus,
};
use crate::input_request::{InputAnswer, InputRequest, RequestKind};
use crate::plan::Plan;

/// The name of the tool whose calls may wait for a running process.
pub(crate) const PROCESS_TOOL: &str = "process";
/// The name of the tool that ends the work.
pub(crate) const FINISH_TOOL: &str = "finish";

/// The names of the tools that only repeat what is already in the history.
pub(crate) const HISTORY_SEARCH_TOOL: &str = "history_search";
pub(crate) const HISTORY_READ_TOOL: &str = "history_read";

/// The notice to a model whose `finish` a message from a person overtook.
const NOT_OVER: &str =
    "a message from the user arrived before the work ended: do what the message asks, then call finish again";

/// Whether the model accepts images.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VisionSupport {
    Images,
    /// The model does not accept images; it reads the tools' text descriptions instead.
    TextOnly,
}

impl VisionSupport {
    #[must_use]
    pub fn of(window: &Window) -> Self {
        if window.sees_pictures { Self::Images } else { Self::TextOnly }
    }
}

pub struct Conversation {
    engine: Engine,
    turn: u64,
    calls: Vec<OpenCall>,
    tools: HashMap<String, (String, String)>,
    plan: Option<Plan>,
    is_plan_accepted: bool,
    processes: BTreeMap<String, ProcessState>,
    requests: BTreeMap<String, (InputRequest, Reply)>,
    budget: Budget,
    spent: Spent,
    stuck: StuckDetector,
    finish_checks: FinishChecks,
    notices: Vec<String>,
    sight: VisionSupport,
    records: Vec<Record>,
    finished: Option<Finished>,
    asked: Option<String>,
    has_task: bool,
    /// Messages from people that came after the newest model request began, so no prompt had them yet.
    unread_messages: usize,
    summarized: HashSet<String>,
    /// Consecutive summaries that were unusable.
    failed_summaries: u32,
}

impl Conversation {
    /// The state before the first event.
    #[must_use]
    pub fn new(engine: Engine, budget: Budget, sight: VisionSupport) -> Self {
        Self {
            engine,
            turn: 0,
            calls: Vec::new(),
            tools: HashMap::new(),
            plan: None,
            is_plan_accepted: false,
            processes: BTreeMap::new(),
            requests: BTreeMap::new(),
            budget,
            spent: Spent::default(),
            stuck: StuckDetector::default(),
            finish_checks: FinishChecks::default(),
            notices: Vec::new(),
            sight,
            records: Vec::new(),
            finished: None,
            asked: None,
            has_task: false,
            unread_messages: 0,
            summarized: HashSet::new(),
            failed_summaries: 0,
        }
    }

    /// Applies one event.
    pub fn apply(&mut self, logged: &SequencedEvent) {
        let record = |kind, text: &str| Record::new(logged.sequence, logged.time_ms, kind, text.to_owned());
        match &logged.event {
            AgentEvent::TurnStarted(started) => {
                self.turn = started.turn;
                self.unread_messages = 0;
                self.engine.begin_request();
                self.asked = Some(started.status.clone());
            }
            AgentEvent::ModelAnswered(answered) => self.apply_answer(logged, answered),
            AgentEvent::ModelAnswerLost(lost) => self.spend(lost.usage, lost.cost),
            AgentEvent::CallStarted { call, .. } => {
                self.set_stage(call, Stage::Started { time_ms: logged.time_ms });
            }
            AgentEvent::CallEnded { call, end } => self.apply_result(logged, call, end),
            AgentEvent::PlanChanged { plan, .. } => {
                let text = plan.to_text();
                self.records.push(record(RecordKind::Plan, &text));
                self.plan = Some(plan.clone());
                self.push_entry(logged, EntryBody::Plan { text });
            }
            AgentEvent::NoteSaved { name, text } => {
                self.records.push(record(RecordKind::Note, &format!("{name}: {text}")));
                self.push_entry(logged, EntryBody::Note { name: name.clone(), text: text.clone() });
            }
            AgentEvent::MessageReceived { text } => {
                self.records.push(record(RecordKind::Person, text));
                self.stuck.reset();
                self.finish_checks = FinishChecks::default();
                self.push_person_message(logged, text);
            }
            AgentEvent::InputRequested(request) => {
                self.requests.insert(request.call.clone(), (request.clone(), Reply::Open));
            }
            AgentEvent::InputAnswered { id, answer } => self.apply_reply(id, answer.as_ref()),
            AgentEvent::BudgetChanged { budget } => {
                self.budget = *budget;
                self.stuck.reset();
            }
            AgentEvent::Notified(notice) => {
                self.records.push(record(RecordKind::Notice, &notice.text));
                self.apply_notice(logged, notice);
            }
            AgentEvent::ContextChanged(body) => {
                if let EntryBody::Window(window) = body {
                    self.sight = VisionSupport::of(window);
                    if self.engine.window().is_none_or(|before| before.model != window.model) {
                        self.failed_summaries = 0;
                    }
                }
                self.push_entry(logged, body.clone());
            }
            AgentEvent::SummaryCreated(made) => {
                self.spend(made.usage, made.cost);
                if !made.abandoned {
                    self.summarized.insert(made.input_hash.clone());
                    self.failed_summaries = made.summary.as_ref().map_or(self.failed_summaries + 1, |_| 0);
                }
                if let Some(summary) = &made.summary {
                    self.push_entry(logged, EntryBody::Summary(summary.clone()));
                }
            }
            // A message that the model has not read keeps the job going, however late it came.
            AgentEvent::Finished(_) if self.unread_messages > 0 => self.notices.push(NOT_OVER.to_owned()),
            AgentEvent::Finished(finished) => self.finished = Some(finished.clone()),
        }
    }

    fn push_entry(&mut self, logged: &SequencedEvent, body: EntryBody) {
        self.push_counted_entry(logged, None, body);
    }

    /// Adds an entry to the prompt. A token count from the log is used as it is instead of being counted again.
    fn push_counted_entry(&mut self, logged: &SequencedEvent, tokens: Option<u32>, body: EntryBody) {
        self.asked = None;
        let tokens = tokens.unwrap_or_else(|| body.tokens());
        let entry = Entry::counted(EventId(logged.sequence), logged.time_ms, tokens, body);
        match self.engine.append(entry) {
            Ok(Appended::Grown | Appended::Epoch) => {}
            // The log has each event exactly once and in order. Anything else is a bug, but it must not end the job.
            Err(error) => tracing::error!(%error, "an event is missing in the prompt"),
        }
    }

    fn apply_answer(&mut self, logged: &SequencedEvent, answered: &ModelAnswered) {
        let answer = &answered.answer;
        let usage = answer.usage + answer.lost;
        self.turn = answered.turn;
        self.finish_checks.on_answer();
        self.spent.turns += 1;
        self.spend(usage, answer.cost);
        self.notices.clear();
        if answer.stop_reason == StopReason::MaxTokens {
            self.notices.push(format!(
                "your last answer was cut off after {} tokens, so what stood at its end is not complete; write a long file \
                 in pieces: `write_file` for the first, `edit_file` or `cat >>` in `shell` for each further one",
                answer.usage.output
            ));
        }
        self.calls =
            answered.calls().map(|call| OpenCall { call: call.clone(), stage: Stage::Waiting }).collect();
        self.tools = self
            .calls
            .iter()
            .map(|open| (open.call.id.clone(), (open.call.name.clone(), sorted_text(&open.call.arguments))))
            .collect();
        let text = answer.text();
        self.stuck.on_answer(self.calls.len(), !text.trim().is_empty());
        self.records.push(answer_record(logged, answered, &text));
        self.push_counted_entry(logged, answered.tokens, answer_body(answer));
    }

    fn spend(&mut self, usage: Usage, cost: Option<Money>) {
        self.spent.input_tokens = self.spent.input_tokens.saturating_add(usage.prompt());
        self.spent.output_tokens = self.spent.output_tokens.saturating_add(usage.output);
        self.spent.cached_tokens = self.spent.cached_tokens.saturating_add(usage.cached_input);
        self.spent.cost_nanodollars =
            self.spent.cost_nanodollars.saturating_add(cost.map_or(0, Money::nanodollars));
    }

    fn apply_result(&mut self, logged: &SequencedEvent, call: &str, end: &ToolEnd) {
        let Some((tool, input)) = self.tools.get(call).cloned() else { return };
        self.set_stage(call, Stage::Ended);
        self.spent.tool_calls += 1;
        let outcome = match end.status {
            ToolStatus::Done => CallOutcome::Done,
            ToolStatus::Failed | ToolStatus::NotRun | ToolStatus::Interrupted => CallOutcome::Failed,
            ToolStatus::Malformed => CallOutcome::Malformed,
        };
        self.finish_checks.on_result(&tool, call, end);
        // Waiting for a running process is not a loop, however quiet the process is. Turns and time limit it.
        let only_waits =
            tool == PROCESS_TOOL && end.process.as_ref().is_some_and(|process| process.is_running);
        if !only_waits {
            self.stuck.on_call(&tool, &input, &without_duration(&end.text), outcome);
        }
        if let Some(process) = &end.process {
            if process.is_running {
                self.processes.insert(process.handle.clone(), process.clone());
            } else {
                self.processes.remove(&process.handle);
            }
        }
        let record = Record::new(logged.sequence, logged.time_ms, RecordKind::Result, end.text.clone());
        let found_bytes = if is_history_tool(&tool) { 0 } else { record.found_bytes };
        let whole = end.whole.clone();
        self.records.push(Record { call: Some(call.to_owned()), whole, found_bytes, ..record });
        let seen =
            end.images.iter().filter(|picture| self.sight == VisionSupport::Images && picture.can_be_sent());
        let images = seen
            .map(|picture| context::Image {
                media_type: picture.media_type.clone(),
                digest: picture.digest.clone(),
                tokens: picture.tokens(),
            })
            .collect();
        let result = CallResult {
            call: call.to_owned(),
            text: end.text.clone(),
            is_error: end.status != ToolStatus::Done,
            exit_code: end.exit_code,
            images,
            blob: end.whole.clone(),
        };
        let pictures = result.images.iter().fold(0_u32, |sum, image| sum.saturating_add(image.tokens));
        let tokens = end.tokens.map(|tokens| tokens.saturating_add(pictures));
        self.push_counted_entry(logged, tokens, EntryBody::Result(result));
    }

    fn apply_reply(&mut self, id: &str, answer: Option<&InputAnswer>) {
        self.stuck.reset();
        let Some((request, reply)) = self.requests.values_mut().find(|(request, _)| request.id == id) else {
            return;
        };
        *reply = answer.map_or(Reply::TimedOut, |answer| Reply::Answered(answer.clone()));
        if request.kind == RequestKind::Plan && answer.is_some_and(InputAnswer::is_accepted) {
            self.is_plan_accepted = true;
        }
    }

    fn apply_notice(&mut self, logged: &SequencedEvent, notice: &Notice) {
        match notice.code {
            NoticeCode::Nudge => {
                self.notices.push(notice.text.clone());
                self.stuck.nudged();
            }
            NoticeCode::Resumed => {
                self.notices.push(notice.text.clone());
                self.stuck.reset();
            }
            NoticeCode::SandboxLost => {
                // The processes of the lost sandbox are gone.
                self.processes.clear();
                self.stuck.reset();
                self.push_message(logged, &notice.text);
            }
            NoticeCode::HandedBack | NoticeCode::Instructions | NoticeCode::Environment => {
                self.stuck.reset();
                self.push_message(logged, &notice.text);
            }
        }
    }

    /// Adds a message of a person. The first one is the task; later ones are labelled with their time.
    fn push_person_message(&mut self, logged: &SequencedEvent, text: &str) {
        if std::mem::replace(&mut self.has_task, true) {
            self.unread_messages += 1;
            self.push_message(logged, &format!("{}\n{text}", message_label(logged.time_ms)));
        } else {
            self.push_message(logged, text);
        }
    }

    fn push_message(&mut self, logged: &SequencedEvent, text: &str) {
        self.push_entry(logged, EntryBody::User { text: text.to_owned(), images: Vec::new() });
    }

    fn set_stage(&mut self, call: &str, stage: Stage) {
        if let Some(open) = self.calls.iter_mut().find(|open| open.call.id == call) {
            open.stage = stage;
        }
    }
}

/// The line above a message of a person, such as `[Message from the user, 12:11]`. The time is UTC, as in the status.
fn message_label(time_ms: i64) -> String {
    let minute = time_ms.div_euclid(60_000).rem_euclid(24 * 60);
    format!("[Message from the user, {:02}:{:02}]", minute / 60, minute % 60)
}

/// The arguments of a call as text in which equal arguments are equal, whatever their order.
pub(crate) fn sorted_text(arguments: &Value) -> String {
    let mut arguments = arguments.clone();
    arguments.sort_all_objects();
    arguments.to_string()
}

/// The token count of a call's result, without images.
pub(crate) fn result_tokens(call: &str, text: &str) -> u32 {
    let result = CallResult { call: call.to_owned(), text: text.to_owned(), ..CallResult::default() };
    EntryBody::Result(result).tokens()
}
