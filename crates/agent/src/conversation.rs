//! The state of an agent: a fold over the log. The same events produce the same state, also after a restart.

use std::collections::{BTreeMap, HashMap, HashSet};

use context::{Appended, Call, CallResult, Engine, Entry, EntryBody, EventId, Window};
use model::{Answer, Money, Part, StopReason, ToolCall, Usage};

use crate::budget::{Budget, Spent};
use crate::event::{
    AgentEvent, Finished, Logged, ModelAnswered, Notice, NoticeCode, ProcessState, ToolEnd, ToolStatus,
};
use crate::messages::kept_for_provider;
use crate::plan::Plan;
use crate::record::{Record, RecordKind, is_recall};
use crate::request::{PersonAnswer, PersonRequest, RequestKind};
use crate::stuck::{CallSort, StuckWatch};
use crate::tools;

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

/// A tool call of the newest answer.
#[derive(Debug, Clone, PartialEq)]
pub struct OpenCall {
    pub call: ToolCall,
    pub stage: Stage,
}

/// The progress of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// Not started.
    Waiting,
    /// Logged as started.
    Started,
    Ended,
}

/// The state of a request to a person.
#[derive(Debug, Clone, PartialEq)]
pub enum Reply {
    /// Nobody has answered yet.
    Open,
    /// Nobody answered before the deadline.
    TooLate,
    Answered(PersonAnswer),
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
    stuck: StuckWatch,
    notices: Vec<String>,
    sight: Sight,
    records: Vec<Record>,
    finished: Option<Finished>,
    last_had_calls: bool,
    asked: Option<String>,
    summed_up: HashSet<String>,
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
            stuck: StuckWatch::default(),
            notices: Vec::new(),
            sight,
            records: Vec::new(),
            finished: None,
            last_had_calls: true,
            asked: None,
            summed_up: HashSet::new(),
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
            AgentEvent::ModelAnswered(answered) => self.take_answer(logged, answered),
            AgentEvent::AnswerLost(lost) => self.spend(lost.usage, lost.cost),
            AgentEvent::CallStarted { call, .. } => self.mark(call, Stage::Started),
            AgentEvent::CallEnded { call, end } => self.take_result(logged, call, end),
            AgentEvent::PlanChanged { plan, .. } => {
                let text = plan.to_text();
                self.records.push(record(RecordKind::Plan, &text));
                self.plan = Some(plan.clone());
                self.enter(logged, EntryBody::Plan { text });
            }
            AgentEvent::NoteKept { name, text } => {
                self.records.push(record(RecordKind::Note, &format!("{name}: {text}")));
                self.enter(logged, EntryBody::Note { name: name.clone(), text: text.clone() });
            }
            AgentEvent::MessageReceived { text } => {
                self.records.push(record(RecordKind::Person, text));
                self.stuck.reset();
                self.enter(logged, EntryBody::User { text: text.clone(), images: Vec::new() });
            }
            AgentEvent::RequestOpened(request) => {
                self.requests.insert(request.call.clone(), (request.clone(), Reply::Open));
            }
            AgentEvent::RequestAnswered { id, answer } => self.take_reply(id, answer.as_ref()),
            AgentEvent::BudgetChanged { budget } => {
                self.budget = *budget;
                self.stuck.reset();
            }
            AgentEvent::Told(notice) => {
                self.records.push(record(RecordKind::Notice, &notice.text));
                self.take_notice(logged, notice);
            }
            AgentEvent::ContextChanged(body) => {
                if let EntryBody::Window(window) = body {
                    self.sight = Sight::of(window);
                    if self.engine.window().is_none_or(|before| before.model != window.model) {
                        self.failed_summaries = 0;
                    }
                }
                self.enter(logged, body.clone());
            }
            AgentEvent::SummaryMade(made) => {
                self.spend(made.usage, made.cost);
                if !made.abandoned {
                    self.summed_up.insert(made.input_hash.clone());
                    self.failed_summaries = made.summary.as_ref().map_or(self.failed_summaries + 1, |_| 0);
                }
                if let Some(summary) = &made.summary {
                    self.enter(logged, EntryBody::Summary(summary.clone()));
                }
            }
            AgentEvent::Finished(finished) => self.finished = Some(finished.clone()),
        }
    }

    fn enter(&mut self, logged: &Logged, body: EntryBody) {
        self.enter_counted(logged, None, body);
    }

    /// Adds an entry to the prompt. A token count from the log is used as it is instead of being counted again.
    fn enter_counted(&mut self, logged: &Logged, tokens: Option<u32>, body: EntryBody) {
        self.asked = None;
        let tokens = tokens.unwrap_or_else(|| context::tokens::count_body(&body));
        let entry = Entry::counted(EventId(logged.sequence), logged.time_ms, tokens, body);
        match self.engine.append(entry) {
            Ok(Appended::Grown | Appended::Epoch) => {}
            // The log has each event exactly once and in order. Anything else is a bug, but it must not end the job.
            Err(error) => tracing::error!(%error, "an event is missing in the prompt"),
        }
    }

    fn take_answer(&mut self, logged: &Logged, answered: &ModelAnswered) {
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
        self.stuck.saw_answer(self.calls.len(), !text.trim().is_empty());
        self.records.push(said(logged, answered, &text));
        self.enter_counted(logged, answered.tokens, answer_body(answer));
    }

    fn spend(&mut self, usage: Usage, cost: Option<Money>) {
        self.spent.input_tokens += usage.prompt();
        self.spent.output_tokens += usage.output;
        self.spent.cached_tokens += usage.cached_input;
        self.spent.cost_nanodollars += cost.map_or(0, Money::nanodollars);
    }

    fn take_result(&mut self, logged: &Logged, call: &str, end: &ToolEnd) {
        let Some((tool, input)) = self.tools.get(call).cloned() else { return };
        self.mark(call, Stage::Ended);
        self.spent.tool_calls += 1;
        let sort = match end.status {
            ToolStatus::Done => CallSort::Done,
            ToolStatus::Failed | ToolStatus::Interrupted => CallSort::Failed,
            ToolStatus::Malformed => CallSort::Malformed,
        };
        // Waiting for a running process is not a loop, however quiet the process is. Turns and time limit it.
        let only_waits =
            tool == tools::PROCESS && end.process.as_ref().is_some_and(|process| process.is_running);
        if !only_waits {
            self.stuck.saw_call(&tool, &input, &end.text, sort);
        }
        if let Some(process) = &end.process {
            if process.is_running {
                self.processes.insert(process.handle.clone(), process.clone());
            } else {
                self.processes.remove(&process.handle);
            }
        }
        let record = Record::new(logged.sequence, logged.time_ms, RecordKind::Result, end.text.clone());
        let found_bytes = if is_recall(&tool) { 0 } else { record.found_bytes };
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
        self.enter_counted(logged, tokens, EntryBody::Result(result));
    }

    fn take_reply(&mut self, id: &str, answer: Option<&PersonAnswer>) {
        self.stuck.reset();
        let Some((request, reply)) = self.requests.values_mut().find(|(request, _)| request.id == id) else {
            return;
        };
        *reply = answer.map_or(Reply::TooLate, |answer| Reply::Answered(answer.clone()));
        if request.kind == RequestKind::Plan && answer.is_some_and(PersonAnswer::is_accepted) {
            self.is_plan_accepted = true;
        }
    }

    fn take_notice(&mut self, logged: &Logged, notice: &Notice) {
        match notice.code {
            NoticeCode::Nudge => {
                self.notices.push(notice.text.clone());
                self.stuck.nudged();
            }
            NoticeCode::SandboxLost => {
                // The processes of the lost sandbox are gone.
                self.processes.clear();
                self.stuck.reset();
                self.tell(logged, &notice.text);
            }
            NoticeCode::HandedBack | NoticeCode::Instructions => {
                self.stuck.reset();
                self.tell(logged, &notice.text);
            }
        }
    }

    fn tell(&mut self, logged: &Logged, text: &str) {
        self.enter(logged, EntryBody::User { text: text.to_owned(), images: Vec::new() });
    }

    fn mark(&mut self, call: &str, stage: Stage) {
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
    pub fn was_summed_up(&self, input_hash: &str) -> bool {
        self.summed_up.contains(input_hash)
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
    pub fn stuck(&self) -> &StuckWatch {
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

/// Renders an answer as a searchable record: reasoning, text and tool calls. Calls of the history tools come last,
/// outside the part that searches cover.
fn said(logged: &Logged, answered: &ModelAnswered, text: &str) -> Record {
    let mut said = String::new();
    for part in &answered.answer.parts {
        if let Part::Reasoning(reasoning) = part
            && !reasoning.text.is_empty()
        {
            said += &format!("[thought] {}\n", reasoning.text);
        }
    }
    said += text;
    let (looking_back, others): (Vec<&ToolCall>, Vec<&ToolCall>) =
        answered.calls().partition(|call| is_recall(&call.name));
    let line = |call: &ToolCall| format!("\n{}({}) as {}", call.name, call.arguments, call.id);
    said.extend(others.into_iter().map(line));
    let found_bytes = said.len();
    said.extend(looking_back.into_iter().map(line));
    let record = Record::new(logged.sequence, logged.time_ms, RecordKind::Answer, said);
    Record { found_bytes, ..record }
}

/// An answer as a prompt entry.
pub(crate) fn answer_body(answer: &Answer) -> EntryBody {
    let calls = answer.tool_calls().map(|call| Call {
        id: call.id.clone(),
        name: call.name.clone(),
        arguments: call.arguments.clone(),
    });
    EntryBody::Assistant {
        reasoning: kept_for_provider(&answer.parts),
        text: answer.text(),
        calls: calls.collect(),
    }
}

/// The token count of a call's result, without images.
pub(crate) fn result_tokens(call: &str, text: &str) -> u32 {
    let result = CallResult { call: call.to_owned(), text: text.to_owned(), ..CallResult::default() };
    context::tokens::count_body(&EntryBody::Result(result))
}
