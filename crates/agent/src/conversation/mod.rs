//! The state of an agent: a fold over the log. The same events produce the same state, also after a restart.

mod answer;
mod call_state;
mod history;
mod replay;
mod stuck_detector;

pub(crate) use answer::{answer_body, assistant_parts};
pub use call_state::{OpenCall, Reply, Stage};
pub(crate) use history::search;
pub use history::{Record, RecordKind};
pub use replay::replay;
pub(crate) use replay::{check_versions, first_window};
pub use stuck_detector::{CallOutcome, StuckDetector, Verdict};

use std::collections::{BTreeMap, HashMap, HashSet};

use context::{Appended, CallResult, Engine, Entry, EntryBody, EventId, Window};
use model::{Money, StopReason, Usage};

use self::answer::answer_record;
use self::history::is_history_tool;
use crate::budget::{Budget, Spent};
use crate::event::{
    AgentEvent, Finished, Logged, ModelAnswered, Notice, NoticeCode, ProcessState, ToolEnd, ToolStatus,
};
use crate::input_request::{PersonAnswer, PersonRequest, RequestKind};
use crate::plan::Plan;

/// The name of the tool whose calls may wait for a running process.
pub(crate) const PROCESS_TOOL: &str = "process";

/// Whether the model accepts images.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sight {
    Sees,
    /// The model does not accept images; it reads the tools' text descriptions instead.
    Blind,
}

impl Sight {
    #[must_use]
    pub fn of(window: &Window) -> Self {
        if window.sees_pictures { Self::Sees } else { Self::Blind }
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
    requests: BTreeMap<String, (PersonRequest, Reply)>,
    budget: Budget,
    spent: Spent,
    stuck: StuckDetector,
    notices: Vec<String>,
    sight: Sight,
    records: Vec<Record>,
    finished: Option<Finished>,
    last_had_calls: bool,
    asked: Option<String>,
    summarized: HashSet<String>,
    /// Consecutive summaries that were unusable.
    failed_summaries: u32,
}

impl Conversation {
    /// The state before the first event.
    #[must_use]
    pub fn new(engine: Engine, budget: Budget, sight: Sight) -> Self {
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
            notices: Vec::new(),
            sight,
            records: Vec::new(),
            finished: None,
            last_had_calls: true,
            asked: None,
            summarized: HashSet::new(),
            failed_summaries: 0,
        }
    }

    /// Applies one event.
    pub fn apply(&mut self, logged: &Logged) {
        let record = |kind, text: &str| Record::new(logged.sequence, logged.time_ms, kind, text.to_owned());
        match &logged.event {
            AgentEvent::TurnStarted(started) => {
                self.turn = started.turn;
                self.asked = Some(started.status.clone());
            }
            AgentEvent::ModelAnswered(answered) => self.apply_answer(logged, answered),
            AgentEvent::ModelAnswerLost(lost) => self.spend(lost.usage, lost.cost),
            AgentEvent::CallStarted { call, .. } => self.set_stage(call, Stage::Started),
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
                self.push_entry(logged, EntryBody::User { text: text.clone(), images: Vec::new() });
            }
            AgentEvent::InputRequested(request) => {
                self.requests.insert(request.call.clone(), (request.clone(), Reply::Open));
            }
            AgentEvent::InputAnswered { id, answer } => self.apply_reply(id, answer.as_ref()),
            AgentEvent::BudgetChanged { budget } => {
                self.budget = *budget;
                self.stuck.reset();
            }
            AgentEvent::Told(notice) => {
                self.records.push(record(RecordKind::Notice, &notice.text));
                self.apply_notice(logged, notice);
            }
            AgentEvent::ContextChanged(body) => {
                if let EntryBody::Window(window) = body {
                    self.sight = Sight::of(window);
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
            AgentEvent::Finished(finished) => self.finished = Some(finished.clone()),
        }
    }

    fn push_entry(&mut self, logged: &Logged, body: EntryBody) {
        self.push_counted_entry(logged, None, body);
    }

    /// Adds an entry to the prompt. A token count from the log is used as it is instead of being counted again.
    fn push_counted_entry(&mut self, logged: &Logged, tokens: Option<u32>, body: EntryBody) {
        self.asked = None;
        let tokens = tokens.unwrap_or_else(|| body.tokens());
        let entry = Entry::counted(EventId(logged.sequence), logged.time_ms, tokens, body);
        match self.engine.append(entry) {
            Ok(Appended::Grown | Appended::Epoch) => {}
            // The log has each event exactly once and in order. Anything else is a bug, but it must not end the job.
            Err(error) => tracing::error!(%error, "an event is missing in the prompt"),
        }
    }

    fn apply_answer(&mut self, logged: &Logged, answered: &ModelAnswered) {
        let answer = &answered.answer;
        let usage = answer.usage + answer.lost;
        self.turn = answered.turn;
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
            .map(|open| (open.call.id.clone(), (open.call.name.clone(), open.call.arguments.to_string())))
            .collect();
        let text = answer.text();
        self.last_had_calls = !self.calls.is_empty();
        self.stuck.on_answer(self.calls.len(), !text.trim().is_empty());
        self.records.push(answer_record(logged, answered, &text));
        self.push_counted_entry(logged, answered.tokens, answer_body(answer));
    }

    fn spend(&mut self, usage: Usage, cost: Option<Money>) {
        self.spent.input_tokens += usage.prompt();
        self.spent.output_tokens += usage.output;
        self.spent.cached_tokens += usage.cached_input;
        self.spent.cost_nanodollars += cost.map_or(0, Money::nanodollars);
    }

    fn apply_result(&mut self, logged: &Logged, call: &str, end: &ToolEnd) {
        let Some((tool, input)) = self.tools.get(call).cloned() else { return };
        self.set_stage(call, Stage::Ended);
        self.spent.tool_calls += 1;
        let outcome = match end.status {
            ToolStatus::Done => CallOutcome::Done,
            ToolStatus::Failed | ToolStatus::Interrupted => CallOutcome::Failed,
            ToolStatus::Malformed => CallOutcome::Malformed,
        };
        // Waiting for a running process is not a loop, however quiet the process is. Turns and time limit it.
        let only_waits =
            tool == PROCESS_TOOL && end.process.as_ref().is_some_and(|process| process.is_running);
        if !only_waits {
            self.stuck.on_call(&tool, &input, &end.text, outcome);
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
        let seen = end.images.iter().filter(|picture| self.sight == Sight::Sees && picture.can_be_sent());
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

    fn apply_reply(&mut self, id: &str, answer: Option<&PersonAnswer>) {
        self.stuck.reset();
        let Some((request, reply)) = self.requests.values_mut().find(|(request, _)| request.id == id) else {
            return;
        };
        *reply = answer.map_or(Reply::TimedOut, |answer| Reply::Answered(answer.clone()));
        if request.kind == RequestKind::Plan && answer.is_some_and(PersonAnswer::is_accepted) {
            self.is_plan_accepted = true;
        }
    }

    fn apply_notice(&mut self, logged: &Logged, notice: &Notice) {
        match notice.code {
            NoticeCode::Nudge => {
                self.notices.push(notice.text.clone());
                self.stuck.nudged();
            }
            NoticeCode::SandboxLost => {
                // The processes of the lost sandbox are gone.
                self.processes.clear();
                self.stuck.reset();
                self.push_message(logged, &notice.text);
            }
            NoticeCode::HandedBack | NoticeCode::Instructions => {
                self.stuck.reset();
                self.push_message(logged, &notice.text);
            }
        }
    }

    fn push_message(&mut self, logged: &Logged, text: &str) {
        self.push_entry(logged, EntryBody::User { text: text.to_owned(), images: Vec::new() });
    }

    fn set_stage(&mut self, call: &str, stage: Stage) {
        if let Some(open) = self.calls.iter_mut().find(|open| open.call.id == call) {
            open.stage = stage;
        }
    }

    /// The calls of the newest answer that have not ended, in order.
    pub fn open_calls(&self) -> impl Iterator<Item = &OpenCall> {
        self.calls.iter().filter(|open| open.stage != Stage::Ended)
    }

    /// The request that a call has made of a person, and its state.
    #[must_use]
    pub fn request_of(&self, call: &str) -> Option<&(PersonRequest, Reply)> {
        self.requests.get(call)
    }

    #[must_use]
    pub fn request_count(&self) -> usize {
        self.requests.len()
    }

    /// The context engine, which holds the prompt so far.
    #[must_use]
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// The status text at the end of the pending prompt; `None` while no model request is pending.
    #[must_use]
    pub fn asked(&self) -> Option<&str> {
        self.asked.as_deref()
    }

    /// Whether a summary with this input hash was requested before, successfully or not.
    #[must_use]
    pub fn was_summarized(&self, input_hash: &str) -> bool {
        self.summarized.contains(input_hash)
    }

    /// The number of consecutive failed summary requests.
    #[must_use]
    pub fn failed_summaries(&self) -> u32 {
        self.failed_summaries
    }

    /// The number of turns started.
    #[must_use]
    pub fn turn(&self) -> u64 {
        self.turn
    }

    #[must_use]
    pub fn plan(&self) -> Option<&Plan> {
        self.plan.as_ref()
    }

    /// Whether a person has accepted a plan.
    #[must_use]
    pub fn is_plan_accepted(&self) -> bool {
        self.is_plan_accepted
    }

    /// Background processes, by handle.
    #[must_use]
    pub fn processes(&self) -> &BTreeMap<String, ProcessState> {
        &self.processes
    }

    #[must_use]
    pub fn budget(&self) -> &Budget {
        &self.budget
    }

    #[must_use]
    pub fn spent(&self) -> &Spent {
        &self.spent
    }

    #[must_use]
    pub fn stuck(&self) -> &StuckDetector {
        &self.stuck
    }

    /// Notices that only the next prompt includes.
    #[must_use]
    pub fn notices(&self) -> &[String] {
        &self.notices
    }

    /// The complete history, for searching and for `memory.json`.
    #[must_use]
    pub fn records(&self) -> &[Record] {
        &self.records
    }

    #[must_use]
    pub fn finished(&self) -> Option<&Finished> {
        self.finished.as_ref()
    }

    /// Whether the newest answer contained tool calls.
    #[must_use]
    pub fn last_had_calls(&self) -> bool {
        self.last_had_calls
    }
}

/// The token count of a call's result, without images.
pub(crate) fn result_tokens(call: &str, text: &str) -> u32 {
    let result = CallResult { call: call.to_owned(), text: text.to_owned(), ..CallResult::default() };
    EntryBody::Result(result).tokens()
}
