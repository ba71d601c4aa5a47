//! The agent of a job: a loop of prompt, model answer and tool calls.
//!
//! The loop ([`Agent`]) knows nothing about storage, sandboxes or HTTP. It works through a [`Host`], which writes to
//! the log and does what tools request. Every model answer and every tool result is logged before the agent acts on
//! it, and the state ([`Conversation`]) is a fold over the log. An agent that was killed at any point therefore
//! continues from there.

mod admission;
mod agent;
mod ahead;
mod allowance;
mod brief;
mod budget;
mod calls;
mod command_line;
mod conversation;
mod error;
mod event;
mod extra;
mod host;
mod mapping;
mod messages;
mod patch;
mod picture;
mod plan;
mod prompt;
mod recall;
mod record;
mod replay;
mod request;
mod rules;
mod settings;
mod shell_words;
mod stuck;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod tests_dialects;
#[cfg(test)]
mod tests_limits;
#[cfg(test)]
mod tests_recall;
#[cfg(test)]
mod tests_window;
mod time;
mod tool;
pub mod tools;
mod window;
mod wrapper;

pub use agent::{Agent, AgentParts, Ending};
pub use budget::{Budget, Spent};
pub use conversation::{Conversation, OpenCall, Reply, Sight, Stage};
pub use error::AgentError;
pub use event::{
    AgentEvent, AnswerLost, Author, FinishOutcome, Finished, Logged, ModelAnswered, Notice, NoticeCode,
    ProcessState, SummaryMade, ToolEnd, ToolStatus, TurnStarted, call_id,
};
pub use extra::{ExtraTool, ExtraTools};
pub use host::{
    Ability, BrowserReport, CodeOrder, CodeReport, DesktopReport, ExecEnd, ExecOrder, ExecReport, ExecStart,
    Host, Language, Stopped, Typed,
};
pub use picture::Picture;
pub use plan::{Plan, PlanItem, PlanStatus};
pub use prompt::context_text;
pub use recall::{Recall, WholeTexts};
pub use record::{Record, RecordKind};
pub use replay::replay;
pub use request::{EgressQuestion, PersonAnswer, PersonRequest, RequestKind, Scope, UnfitAnswer};
pub use rules::{Approval, CommandRule, CommandRules, Decision, Judgement};
pub use settings::{AgentSettings, SummaryMode};
pub use stuck::{CallSort, StuckWatch, Verdict};
pub use tool::{AnyTool, Begun, CallContext, Effect, Tool, ToolFlow, ToolOutput, Toolbox};
