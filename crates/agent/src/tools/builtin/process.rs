//! `process`: polls, types into or kills a process that `shell` left running.

use protocol::CallKey;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;

use super::process_result;
use crate::conversation::PROCESS_TOOL;
use crate::event::ToolEnd;
use crate::host::{InputDelivery, ProcessRequest, Stopped};
use crate::tools::{CallContext, CallStart, Tool, ToolFlow};

/// The note to the model if it is unknown whether its text was typed.
const PERHAPS_TYPED: &str = "[the connection or the server was lost while this was typed: it was perhaps typed, and is not \
    typed again. Look at the output before you type it once more]\n";
/// The default time to wait for new output.
const DEFAULT_WAIT_S: f64 = 5.0;

pub(super) struct Process;

/// What to do with a process.
#[derive(Deserialize, JsonSchema)]
pub(super) struct Input {
    /// The handle of the command: the id of the call that started it.
    handle: String,
    /// What to do: `poll` waits for its end and shows what is new, `type` sends `text` to it first, `kill` ends it.
    action: Action,
    /// What to type; end a line with \n.
    #[serde(default)]
    text: Option<String>,
    /// Seconds to wait, 5 when absent, at most 600.
    #[serde(default)]
    wait_s: Option<f64>,
}

#[derive(Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum Action {
    #[serde(alias = "wait", alias = "read")]
    Poll,
    #[serde(alias = "write", alias = "input")]
    Type,
    #[serde(alias = "stop", alias = "end")]
    Kill,
}

/// The handle and text of a valid `type` input; `None` for other actions and for invalid input.
pub(super) fn typed_of(input: &Value) -> Option<(String, String)> {
    let input = Input::deserialize(input).ok().filter(|input| input.action == Action::Type)?;
    Some((input.handle, input.text?))
}

/// Whether the input only waits for a process.
pub(super) fn is_poll(input: &Value) -> bool {
    Input::deserialize(input).is_ok_and(|input| input.action == Action::Poll)
}

impl Tool for Process {
    const NAME: &'static str = PROCESS_TOOL;
    const DESCRIPTION: &'static str = "Works with a command that runs in the background: waits for it and shows new output, types into it, or ends it.";
    type Input = Input;

    async fn run(&self, input: Input, call: &CallContext<'_>) -> Result<ToolFlow, Stopped> {
        let Some(process) = call.conversation.processes().get(&input.handle) else {
            let running: Vec<&str> = call.conversation.processes().keys().map(String::as_str).collect();
            let list = if running.is_empty() {
                "nothing runs in the background".into()
            } else {
                format!("these run: {}", running.join(", "))
            };
            return Ok(ToolEnd::failed(format!("process: `{}` is not running; {list}", input.handle)).into());
        };
        let key = CallKey::new(process.handle.clone(), 1);
        let delivery = match input.action {
            Action::Poll => Ok(InputDelivery::Delivered),
            Action::Type => match &input.text {
                // Typed input is not journaled, so text that may already have been typed is not typed again.
                Some(_) if call.begun == CallStart::Before => Ok(InputDelivery::Uncertain),
                Some(text) => call.host.type_into(key.clone(), text).await?,
                None => Err("`text` is missing".into()),
            },
            Action::Kill => call.host.kill(key.clone()).await?.map(|()| InputDelivery::Delivered),
        };
        let typed = match delivery {
            Ok(typed) => typed,
            Err(problem) => return Ok(ToolEnd::failed(format!("process: {problem}")).into()),
        };
        let request = ProcessRequest {
            call: call.id.to_owned(),
            key,
            start: None,
            from_chunk: process.next_chunk,
            wait: call.wait_of(input.wait_s, DEFAULT_WAIT_S),
        };
        let report = call.host.execute(request).await?;
        let mut end = process_result(report, &process.handle, &process.command, call);
        if input.action == Action::Kill {
            // The model requested the kill, so its exit status is not a failure.
            end.status = crate::event::ToolStatus::Done;
        }
        if typed == InputDelivery::Uncertain {
            end.text.insert_str(0, PERHAPS_TYPED);
        }
        Ok(end.into())
    }
}
