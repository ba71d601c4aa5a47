//! `shell`: runs a command line. A command that is still running after the wait time continues in the background.

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer};
use serde_json::{Value, json};

use super::process_result;
use crate::event::ToolEnd;
use crate::host::{ExecStart, ProcessRequest, Stopped};
use crate::tools::{CallContext, EndedCall, Importance, Tool, ToolFlow, ToolRole};

/// What a command given as words may begin with if its last word is a command line.
const SHELLS: [&str; 4] = ["bash", "sh", "/bin/bash", "/bin/sh"];
const LINE_OPTIONS: [&str; 2] = ["-c", "-lc"];
/// The default wait time.
const DEFAULT_WAIT_S: f64 = 60.0;

pub(super) struct Shell;

/// A command line.
#[derive(Deserialize, JsonSchema)]
pub(super) struct Input {
    /// The command line, run by bash in /workspace.
    #[serde(alias = "cmd", deserialize_with = "line_or_words")]
    command: String,
    /// Seconds to wait for its end, 60 when absent, at most 600. After that it goes on in the background.
    #[serde(default)]
    wait_s: Option<f64>,
    /// Keeps its standard input open. `process` types into it.
    #[serde(default)]
    interactive: Option<bool>,
}

/// Also accepts the words of a command, as in `["bash", "-lc", "make test"]`.
fn line_or_words<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum LineOrWords {
        Line(String),
        Words(Vec<String>),
    }
    Ok(match LineOrWords::deserialize(deserializer)? {
        LineOrWords::Line(line) => line,
        LineOrWords::Words(words) => match words.as_slice() {
            [shell, option, line]
                if SHELLS.contains(&shell.as_str()) && LINE_OPTIONS.contains(&option.as_str()) =>
            {
                line.clone()
            }
            words => words.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" "),
        },
    })
}

/// A word as the shell reads it back.
fn quoted(word: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-./:=,+@%".contains(&byte);
    if !word.is_empty() && word.bytes().all(is_plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

/// The command line of a valid input, parsed the same way as the tool does; `None` for invalid input.
pub(super) fn command_of(input: &Value) -> Option<String> {
    Input::deserialize(input).ok().map(|input| input.command)
}

impl Tool for Shell {
    const NAME: &'static str = "shell";
    const DESCRIPTION: &'static str = "Runs a command line with bash in /workspace and returns what it prints and its \
        exit code. A command that has not ended after `wait_s` seconds goes on in the background: right for servers. \
        You get a handle, with which `process` waits for it, types into it or ends it. Each call starts in /workspace; \
        `cd` does not last from call to call.";
    type Input = Input;
    const ROLE: ToolRole = ToolRole {
        importance: Importance::Always,
        other_names: &[
            "bash",
            "sh",
            "exec",
            "run",
            "terminal",
            "execute",
            "executebash",
            "runcommand",
            "runshell",
            "runterminalcmd",
            "runinterminal",
            "executecommand",
            "bashtool",
            "localshell",
            "containerexec",
            "execcommand",
            "shellcommand",
        ],
        ..ToolRole::OPTIONAL
    };

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
        Ok(process_result(report, call.id, &input.command, call).into())
    }

    fn step(input: Input, end: &EndedCall<'_>) -> Option<Value> {
        let command = input.command;
        // Processes that the run left in the background are left in the background again.
        let command = if end.is_running { format!("({command}) >/dev/null 2>&1 &") } else { command };
        Some(json!({"tool": Self::NAME, "command": command}))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_command_may_be_given_as_words() {
        for (command, line) in [
            (json!("ls -l"), "ls -l"),
            (json!(["bash", "-lc", "make test && ls"]), "make test && ls"),
            (json!(["grep", "-n", "it's", "a.txt"]), r"grep -n 'it'\''s' a.txt"),
        ] {
            assert_eq!(command_of(&json!({ "command": command })).as_deref(), Some(line));
        }
        assert_eq!(command_of(&json!({"command": 5})), None);
    }
}
