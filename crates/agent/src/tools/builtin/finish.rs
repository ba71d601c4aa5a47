//! `finish`: ends the work. It is refused once while points of the plan are open or a call has failed unseen, and always
//! while the job's acceptance commands fail.

use std::fmt::Write as _;
use std::time::Duration;

use context::truncate::last_bytes;
use schemars::JsonSchema;
use serde::Deserialize;

use crate::conversation::FINISH_TOOL;
use crate::event::{AgentEvent, FinishOutcome, Finished, ToolEnd};
use crate::host::{ExecStart, ProcessRequest, Stopped};
use crate::plan::Plan;
use crate::tools::{CallContext, Importance, Tool, ToolFlow, ToolOutput, ToolRole};

/// Time limit of one acceptance command.
const ACCEPTANCE_TIMEOUT: Duration = Duration::from_secs(900);
/// How much output of a failing command is shown, in bytes.
const MAX_OUTPUT: usize = 6000;

/// The refusal while a message from a person is unread.
pub(crate) const UNREAD: &str = "not finished: the user has sent a message that you have not read. It follows these \
    results: do what it asks, then call `finish` again";

pub(super) struct Finish;

/// How it ends.
#[derive(Deserialize, JsonSchema)]
pub(super) struct Input {
    /// What was done and how to use it, for the user. Or why it cannot be done.
    #[serde(alias = "message", alias = "result", alias = "text", alias = "answer")]
    summary: String,
    /// `done` when the task is done (also when absent), `failed` when it cannot be done.
    #[serde(default)]
    outcome: Option<FinishOutcome>,
    /// Why it ends although something is open; only after a refusal.
    #[serde(default)]
    reason: Option<String>,
}

impl Tool for Finish {
    const NAME: &'static str = FINISH_TOOL;
    const DESCRIPTION: &'static str = "Ends the work: call it once everything is done and checked, with a summary for \
        the user; or with outcome `failed` when the task cannot be done.";
    type Input = Input;
    const ROLE: ToolRole = ToolRole {
        importance: Importance::Always,
        is_control: true,
        other_names: &[
            "done",
            "submit",
            "complete",
            "end",
            "finalanswer",
            "attemptcompletion",
            "taskdone",
            "exit",
            "stop",
        ],
    };

    async fn run(&self, input: Input, call: &CallContext<'_>) -> Result<ToolFlow, Stopped> {
        if call.conversation.unread_messages() > 0 {
            return Ok(ToolEnd::failed(UNREAD).into());
        }
        let outcome = input.outcome.unwrap_or(FinishOutcome::Done);
        if outcome == FinishOutcome::Done {
            let has_reason = input.reason.is_some_and(|reason| !reason.trim().is_empty());
            let is_overridden = has_reason && call.conversation.finish_checks().was_refused();
            if let Some(open) = open_points(call).filter(|_| !is_overridden) {
                return Ok(ToolEnd::failed(open).into());
            }
            if let Some(failure) = failing_acceptance(call).await? {
                return Ok(ToolEnd::failed(failure).into());
            }
        }
        let events = vec![AgentEvent::Finished(Finished { outcome, summary: input.summary })];
        Ok(ToolFlow::Done(ToolOutput { end: ToolEnd::done("finished"), events }))
    }
}

/// The refusal while points of the plan are open, or a call of the same answer has failed.
fn open_points(call: &CallContext<'_>) -> Option<String> {
    let mut list = String::new();
    for failed in call.conversation.finish_checks().unseen_failures() {
        let _ = writeln!(
            list,
            "- `{}` ({}) failed in the same answer; its result is above",
            failed.tool, failed.call
        );
    }
    for (number, item) in call.conversation.plan().into_iter().flat_map(Plan::open_items) {
        let _ = writeln!(list, "- item {number} of the plan is open: {}", item.text);
    }
    let mark = if call.toolbox.find("plan").is_some() {
        ", and mark in `plan` what is done or not needed"
    } else {
        ""
    };
    (!list.is_empty()).then(|| {
        format!(
            "not finished yet:\n{list}Do what is missing{mark}. Then call `finish` again. With a `reason` it is accepted \
             although parts of this list are left"
        )
    })
}

/// The output of the first acceptance command that fails.
async fn failing_acceptance(call: &CallContext<'_>) -> Result<Option<String>, Stopped> {
    for (index, command) in call.settings.acceptance.iter().enumerate() {
        let start = ExecStart { timeout: Some(ACCEPTANCE_TIMEOUT), ..ExecStart::shell(command.clone()) };
        let key = call.part_key(&format!("check{}", index + 1));
        let request = ProcessRequest {
            // A separate call id, because the outputs of several processes under one id could not be told apart.
            call: key.call.clone(),
            key,
            start: Some(start),
            from_chunk: 0,
            wait: ACCEPTANCE_TIMEOUT + Duration::from_secs(15),
        };
        let report = call.host.execute(request).await?;
        if !report.is_success() {
            let problem = report.end.and_then(|end| end.problem).unwrap_or_else(|| "it did not end".into());
            let mut text = format!(
                "not finished yet: the acceptance command `{command}` fails ({problem}). Its output:\n"
            );
            let _ = writeln!(text, "{}", last_bytes(&report.output, MAX_OUTPUT));
            text += "Fix the cause, run the command yourself, then call finish again";
            return Ok(Some(text));
        }
    }
    Ok(None)
}
