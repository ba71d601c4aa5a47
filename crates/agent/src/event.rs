//! What happens to an agent, as it is logged. The orchestrator stores these among its own events and hands them back in
//! the order of the log; the state of an agent ([`crate::Conversation`]) is a fold over them.

use context::{Blob, EntryBody};
use model::{Answer, Money, ToolCall, Usage};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::budget::Budget;
use crate::picture::Picture;
use crate::plan::Plan;
use crate::request::{PersonAnswer, PersonRequest};

/// An event with its place in the log.
#[derive(Debug, Clone, PartialEq)]
pub struct Logged {
    /// Its number.
    pub sequence: u64,
    /// Milliseconds since 1970.
    pub time_ms: i64,
    /// What happened.
    pub event: AgentEvent,
}

/// What happens to an agent.
#[derive(Debug, Clone, PartialEq)]
pub enum AgentEvent {
    /// The model is about to be asked.
    TurnStarted(TurnStarted),
    /// The model has answered.
    ModelAnswered(Box<ModelAnswered>),
    /// Answers broke off, none came, and what came must be paid for.
    AnswerLost(Box<AnswerLost>),
    /// A tool is about to be run.
    CallStarted {
        /// The call, such as `turn-3-1`.
        call: String,
        /// The tool.
        tool: String,
        /// What it was given.
        input: Value,
    },
    /// A tool has ended.
    CallEnded {
        /// The call.
        call: String,
        /// How.
        end: ToolEnd,
    },
    /// There is a new plan.
    PlanChanged {
        /// The plan.
        plan: Plan,
        /// Who wrote it.
        by: Author,
    },
    /// The agent has written something down for itself.
    NoteKept {
        /// Its name.
        name: String,
        /// What it says; empty where it was removed.
        text: String,
    },
    /// A person says something.
    MessageReceived {
        /// What.
        text: String,
    },
    /// Something waits for a person.
    RequestOpened(PersonRequest),
    /// A person has answered, or the time for it is over.
    RequestAnswered {
        /// Which request.
        id: String,
        /// The answer; `None` when nobody answered in time.
        answer: Option<PersonAnswer>,
    },
    /// What the job may spend was changed.
    BudgetChanged {
        /// What it may spend now.
        budget: Budget,
    },
    /// The model is told something by the machinery.
    Told(Notice),
    /// Something for the context engine that no other event carries.
    ContextChanged(EntryBody),
    /// A model was asked to sum up older events, ahead of time.
    SummaryMade(Box<SummaryMade>),
    /// The agent has ended its work.
    Finished(Finished),
}

/// The model is about to be asked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TurnStarted {
    /// Counts from 1.
    pub turn: u64,
    /// Who is asked.
    pub model: String,
    /// Tokens of the prompt, by our count.
    pub prompt_tokens: u32,
    /// What stands at the very end of the prompt: the one part of it that no other event tells.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub status: String,
}

/// The model has answered.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ModelAnswered {
    /// Counts from 1.
    pub turn: u64,
    /// The answer. Ids of its calls are ours.
    pub answer: Answer,
    /// Tokens of the prompt, by our count.
    #[serde(default)]
    pub prompt_tokens: u32,
    /// What the answer costs in later prompts, by our count; logs that are older than this do not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens: Option<u32>,
    /// From asking to the end of the answer.
    pub duration_ms: u64,
    /// Whether the answer is a recording.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub recorded: bool,
}

impl ModelAnswered {
    /// The calls with their ids.
    pub fn calls(&self) -> impl Iterator<Item = &ToolCall> {
        self.answer.tool_calls()
    }
}

/// Answers broke off, none came, and what came must be paid for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AnswerLost {
    /// The turn, counted from 1.
    pub turn: u64,
    /// Who was asked.
    pub model: String,
    /// Tokens that it took.
    pub usage: Usage,
    /// What it cost, where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost: Option<Money>,
    /// Why there is no answer.
    pub problem: String,
}

/// What came of asking a model to sum up events.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SummaryMade {
    /// The events.
    pub range: context::EventRange,
    /// Names what was to be summed up.
    pub input_hash: String,
    /// Who was asked.
    pub model: String,
    /// Tokens that it took.
    pub usage: Usage,
    /// What it cost, where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost: Option<Money>,
    /// From asking to the end of the answer.
    pub duration_ms: u64,
    /// The summary, where it passed the checks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub summary: Option<context::Summary>,
    /// Why there is none; an extract by rules serves instead.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    /// Whether the work stopped before it came. The usage is what was sent, by our count.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub abandoned: bool,
}

/// The id of a call: unique in the job, whatever the model calls it.
#[must_use]
pub fn call_id(turn: u64, number: usize) -> String {
    format!("turn-{turn}-{number}")
}

/// How a tool has ended.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ToolEnd {
    /// Whether it did what was asked.
    pub status: ToolStatus,
    /// What the model reads.
    pub text: String,
    /// Where the whole output is, if `text` shows a part of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub whole: Option<Blob>,
    /// What that costs in prompts, by our count and without pictures; logs that are older than this do not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens: Option<u32>,
    /// Pictures for models that see, and for people; they lie in the store.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub images: Vec<Picture>,
    /// Exit code, where a process has ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// A process that goes on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process: Option<ProcessState>,
    /// From start to end.
    #[serde(default)]
    pub duration_ms: u64,
}

/// Whether a tool did what was asked.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToolStatus {
    /// It did.
    #[default]
    Done,
    /// It did not; the text says why.
    Failed,
    /// There is no such tool, or its input does not fit.
    Malformed,
    /// Its sandbox was lost, or the server that ran it; nobody knows how far it came.
    Interrupted,
}

/// Where a process stands whose call has returned.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessState {
    /// The call that started it; the model's handle.
    pub handle: String,
    /// The first piece of output that the model has not seen.
    pub next_chunk: u64,
    /// Whether it still runs.
    pub is_running: bool,
    /// The command, for the list of what runs.
    pub command: String,
}

impl ToolEnd {
    /// It did what was asked.
    pub fn done(text: impl Into<String>) -> Self {
        Self { text: text.into(), ..Self::default() }
    }

    /// It did not.
    pub fn failed(text: impl Into<String>) -> Self {
        Self { status: ToolStatus::Failed, text: text.into(), ..Self::default() }
    }

    /// It could not be understood.
    pub fn malformed(text: impl Into<String>) -> Self {
        Self { status: ToolStatus::Malformed, text: text.into(), ..Self::default() }
    }
}

/// Who wrote something.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Author {
    /// The model.
    Agent,
    /// A person.
    Person,
}

/// What the model is told by the machinery.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Notice {
    /// For programs: `nudge`, `sandbox_lost`, `handed_back`, `instructions`.
    pub code: NoticeCode,
    /// What it is told.
    pub text: String,
}

/// What a notice is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum NoticeCode {
    /// It turns in circles.
    Nudge,
    /// Its sandbox was lost and work was undone.
    SandboxLost,
    /// A person has worked in its sandbox.
    HandedBack,
    /// Instructions that lie in the workspace.
    Instructions,
}

/// The agent has ended its work.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Finished {
    /// Whether the task is done, as the agent says and the acceptance commands agree.
    pub outcome: FinishOutcome,
    /// What was done, for people.
    pub summary: String,
}

impl Finished {
    /// Whether the task is done.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.outcome == FinishOutcome::Done
    }
}

/// How an agent ends its work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum FinishOutcome {
    /// The task is done.
    #[serde(alias = "success", alias = "complete", alias = "completed", alias = "succeeded")]
    Done,
    /// It cannot be done; the summary says why.
    #[serde(alias = "failure", alias = "impossible", alias = "gave_up")]
    Failed,
}
