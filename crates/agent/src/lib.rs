//! The agent of a job: a loop of prompt, model answer and tool calls.
//!
//! The loop ([`Agent`]) knows nothing about storage, sandboxes or HTTP. It works through a [`Host`], which writes to
//! the log and does what tools request. Every model answer and every tool result is logged before the agent acts on
//! it, and the state ([`Conversation`]) is a fold over the log. An agent that was killed at any point therefore
//! continues from there.

mod agent;
mod budget;
mod command_rules;
mod conversation;
mod error;
mod event;
mod host;
mod input_request;
mod plan;
mod prompt;
mod recall;
mod settings;
mod stored_image;
#[cfg(test)]
mod tests;
pub mod tools;

pub use agent::{Agent, AgentParts, RunOutcome};
pub use budget::{Budget, MAX_BUDGET_COUNT, Spent};
pub use command_rules::{Approval, CommandRule, CommandRules, Decision, RuleDecision};
pub use context::{ToolEffect, tool_effect};
pub use conversation::{
    CallOutcome, Conversation, OpenCall, Record, RecordKind, Reply, Stage, StuckDetector, Verdict,
    VisionSupport, replay, without_duration,
};
pub use error::AgentError;
pub use event::{
    AgentEvent, Author, FinishOutcome, Finished, ModelAnswerLost, ModelAnswered, Notice, NoticeCode,
    ProcessState, SequencedEvent, SummaryCreated, ToolEnd, ToolStatus, TurnStarted, call_id,
};
pub use host::{
    BrowserReport, Capability, CodeExecution, CodeReport, DesktopReport, Effect, ExecEnd, ExecReport,
    ExecStart, ExternalTool, ExternalTools, Host, InputDelivery, Language, ProcessRequest, Stopped,
};
pub use input_request::{EgressQuestion, InputAnswer, InputRequest, InvalidAnswer, RequestKind, Scope};
pub use plan::{Plan, PlanItem, PlanStatus};
pub use prompt::context_text;
pub use recall::{OutputStore, Recall};
pub use settings::{AgentSettings, SummaryMode};
pub use stored_image::Picture;
pub use tools::{AnyTool, CallContext, CallStart, Tool, ToolFlow, ToolOutput, Toolbox};
