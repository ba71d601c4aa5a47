//! `shell`: runs a command line. A command that is still running after the wait time continues in the background.

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;

use super::process_result;
use crate::event::ToolEnd;
use crate::host::{Effect, ExecStart, ProcessRequest, Stopped};
use crate::tools::{CallContext, Tool, ToolFlow};

/// The default wait time.
const DEFAULT_WAIT_S: f64 = 60.0;

pub(super) struct Shell;

/// A command line.
#[derive(Deserialize, JsonSchema)]
pub(super) struct Input {
    /// The command line, run by bash in /workspace.
    #[serde(alias = "cmd")]
    command: String,
    /// Seconds to wait for its end, 60 when absent, at most 600. After that it goes on in the background.
    #[serde(default)]
    wait_s: Option<f64>,
    /// Keeps its standard input open, to type into it with `process`.
    #[serde(default)]
    interactive: Option<bool>,
}

/// The command line of a valid input, parsed the same way as the tool does; `None` for invalid input.
pub(super) fn command_of(input: &Value) -> Option<String> {
    Input::deserialize(input).ok().map(|input| input.command)
}

impl Tool for Shell {
    const NAME: &'static str = "shell";
    const DESCRIPTION: &'static str = "Runs a command line with bash in /workspace and returns what it prints and its \
        exit code. A command that has not ended after `wait_s` seconds goes on in the background, and you get a handle \
        for `process`: right for servers. Each call starts in /workspace; `cd` does not last from call to call.";
    type Input = Input;

    fn effect(&self) -> Effect {
        Effect::Changes
    }

    async fn run(&self, input: Input, call: &CallContext<'_>) -> Result<ToolFlow, Stopped> {
        if input.command.trim().is_empty() {
            return Ok(ToolEnd::malformed("shell: `command` is empty").into());
        }
        if input.command.contains('\0') {
            return Ok(ToolEnd::malformed("shell: `command` has a NUL character").into());
        }
        let start = ExecStart {
            keep_stdin_open: input.interactive.unwrap_or(false),
            ..ExecStart::shell(input.command.clone())
        };
        let request = ProcessRequest {
            call: call.id.to_owned(),
            key: call.key(),
            start: Some(start),
            from_chunk: 0,
            wait: call.wait_of(input.wait_s, DEFAULT_WAIT_S),
        };
        let report = call.host.execute(request).await?;
        Ok(process_result(report, call.id, &input.command).into())
    }
}
