//! `finish`: ends the work. The job's acceptance commands must succeed first.

use std::fmt::Write as _;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;

use crate::event::{AgentEvent, FinishOutcome, Finished, ToolEnd};
use crate::host::{Effect, ExecStart, ProcessRequest, Stopped};
use crate::tools::{CallContext, Tool, ToolFlow, ToolOutput};

/// Time limit of one acceptance command.
const ACCEPTANCE_TIMEOUT: Duration = Duration::from_secs(900);
/// How much output of a failing command is shown, in bytes.
const MAX_OUTPUT: usize = 6000;

pub(super) struct Finish;

/// How it ends.
#[derive(Deserialize, JsonSchema)]
pub(super) struct Input {
    /// What was done and how to use it, for the person. Or why it cannot be done.
    #[serde(alias = "message", alias = "result", alias = "text")]
    summary: String,
    /// `done` when the task is done (also when absent), `failed` when it cannot be done.
    #[serde(default)]
    outcome: Option<FinishOutcome>,
}

impl Tool for Finish {
    const NAME: &'static str = "finish";
    const DESCRIPTION: &'static str = "Ends the work: call it once everything is done and checked, with a summary for \
        the person; or with outcome `failed` when the task cannot be done.";
    type Input = Input;

    fn effect(&self) -> Effect {
        Effect::Changes
    }

    async fn run(&self, input: Input, call: &CallContext<'_>) -> Result<ToolFlow, Stopped> {
        let outcome = input.outcome.unwrap_or(FinishOutcome::Done);
        if outcome == FinishOutcome::Done
            && let Some(failure) = failing_acceptance(call).await?
        {
            return Ok(ToolEnd::failed(failure).into());
        }
        let events = vec![AgentEvent::Finished(Finished { outcome, summary: input.summary })];
        Ok(ToolFlow::Done(ToolOutput { end: ToolEnd::done("the work is over"), events }))
    }
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
            let _ = writeln!(text, "{}", tail(&report.output, MAX_OUTPUT));
            text += "Fix the cause, run the command yourself, then call finish again";
            return Ok(Some(text));
        }
    }
    Ok(None)
}

fn tail(text: &str, most: usize) -> &str {
    let mut start = text.len().saturating_sub(most);
    while !text.is_char_boundary(start) {
        start += 1;
    }
    &text[start..]
}
