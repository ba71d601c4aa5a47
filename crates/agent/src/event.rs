//! The agent's events. The orchestrator stores them among its own events and returns them in log order. The state of
//! an agent ([`crate::Conversation`]) is a fold over them.

use context::{Blob, EntryBody};
use model::{Answer, Money, ToolCall, Usage};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::budget::Budget;
use crate::input_request::{InputAnswer, InputRequest};
use crate::plan::Plan;
use crate::stored_image::Picture;

/// An event with its position in the log.
#[derive(Debug, Clone, PartialEq)]
pub struct SequencedEvent {
    pub sequence: u64,
    /// Milliseconds since 1970.
    pub time_ms: i64,
    pub event: AgentEvent,
}

#[derive(Debug, Clone, PartialEq)]
pub enum AgentEvent {
    /// A model request is about to be sent.
    TurnStarted(TurnStarted),
    ModelAnswered(Box<ModelAnswered>),
    /// The model request failed, but the provider still bills for partial answers.
    ModelAnswerLost(Box<ModelAnswerLost>),
    /// A tool is about to run.
    CallStarted {
        /// Call id, such as `turn-3-1`.
        call: String,
        tool: String,
        input: Value,
    },
    /// A tool call has ended.
    CallEnded {
        call: String,
        end: ToolEnd,
    },
    PlanChanged {
        plan: Plan,
        by: Author,
    },
    /// The agent has written or removed a note.
    NoteSaved {
        name: String,
        /// The note's text; empty if the note was removed.
        text: String,
    },
    /// A person has sent a message.
    MessageReceived {
        text: String,
    },
    /// A person must answer before the call can continue.
    InputRequested(InputRequest),
    /// A person has answered, or the deadline has passed.
    InputAnswered {
        /// Id of the request.
        id: String,
        /// The answer; `None` if nobody answered before the deadline.
        answer: Option<InputAnswer>,
    },
    BudgetChanged {
        budget: Budget,
    },
    /// The system has sent the model a notice.
    Notified(Notice),
    /// A context engine entry that no other event carries.
    ContextChanged(EntryBody),
    /// A background summary request has ended, with or without a summary.
    SummaryCreated(Box<SummaryCreated>),
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
    /// The very end of the prompt: the only part of it that no other event has.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub status: String,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ModelAnswered {
    /// Counts from 1.
    pub turn: u64,
    /// The answer, with its call ids replaced by ours.
    pub answer: Answer,
    /// Tokens of the prompt, by our count.
    #[serde(default)]
    pub prompt_tokens: u32,
    /// Tokens that the answer takes in later prompts, by our count. Absent in older logs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens: Option<u32>,
    /// Time from sending the request to the end of the answer.
    pub duration_ms: u64,
    /// Whether the answer was replayed from a recording.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub recorded: bool,
}

impl ModelAnswered {
    pub fn calls(&self) -> impl Iterator<Item = &ToolCall> {
        self.answer.tool_calls()
    }
}

/// The model request failed, but the provider still bills for partial answers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ModelAnswerLost {
    /// Turn number, from 1.
    pub turn: u64,
    pub model: String,
    pub usage: Usage,
    /// The cost, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost: Option<Money>,
    /// Why there is no answer.
    pub problem: String,
}

/// The outcome of a request for a summary.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SummaryCreated {
    /// The events to summarize.
    pub range: context::EventRange,
    /// Hash of the content to summarize.
    pub input_hash: String,
    pub model: String,
    pub usage: Usage,
    /// The cost, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost: Option<Money>,
    /// Time from sending the request to the end of the answer.
    pub duration_ms: u64,
    /// The summary, if it passed the checks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub summary: Option<context::Summary>,
    /// Why there is no summary. The rule-based extract is used instead.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    /// Whether the work stopped before the answer arrived. The usage is then the prompt that was sent, by our count.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub abandoned: bool,
}

/// Makes a call id that is unique within the job, whatever id the model uses.
#[must_use]
pub fn call_id(turn: u64, number: usize) -> String {
    format!("turn-{turn}-{number}")
}

/// The outcome of a tool call.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ToolEnd {
    pub status: ToolStatus,
    /// The text that the model reads.
    pub text: String,
    /// Where the complete output is stored, if `text` shows only part of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub whole: Option<Blob>,
    /// Tokens that `text` takes in prompts, by our count and without images. Absent in older logs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens: Option<u32>,
    /// Images for people and for models that accept them. Their contents are in the host's store.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub images: Vec<Picture>,
    /// The exit code, if a process has ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process: Option<ProcessState>,
    #[serde(default)]
    pub duration_ms: u64,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToolStatus {
    #[default]
    Done,
    /// The tool failed; the text says why.
    Failed,
    /// The call was not run; the text says why. It has changed nothing.
    NotRun,
    /// There is no such tool, or its input is invalid.
    Malformed,
    /// The sandbox or the server was lost during the call; how far it got is unknown.
    Interrupted,
}

/// State of a process that outlives the call that started it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessState {
    /// The call that started it; the handle that the model uses.
    pub handle: String,
    /// The first output chunk that the model has not seen.
    pub next_chunk: u64,
    pub is_running: bool,
    /// The command line, for the list of running processes.
    pub command: String,
}

impl ToolEnd {
    /// A successful result.
    pub fn done(text: impl Into<String>) -> Self {
        Self { text: text.into(), ..Self::default() }
    }

    /// A failed result.
    pub fn failed(text: impl Into<String>) -> Self {
        Self { status: ToolStatus::Failed, text: text.into(), ..Self::default() }
    }

    /// The result of a call that was not run.
    pub fn not_run(text: impl Into<String>) -> Self {
        Self { status: ToolStatus::NotRun, text: text.into(), ..Self::default() }
    }

    /// The result for a call with an unknown tool or invalid input.
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

/// A message of the server to the model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Notice {
    /// For programs: `nudge`, `resumed`, `sandbox_lost`, `handed_back`, `instructions`, `environment`.
    pub code: NoticeCode,
    /// The message.
    pub text: String,
}

/// What a notice is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum NoticeCode {
    /// It turns in circles.
    Nudge,
    /// It turned in circles until it was paused, and continues now.
    Resumed,
    /// Its sandbox was lost and work was undone.
    SandboxLost,
    /// A person has worked in its sandbox.
    HandedBack,
    /// Instructions that lie in the workspace.
    Instructions,
    /// What the sandbox is and has.
    Environment,
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
