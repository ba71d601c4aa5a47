//! What a command sends to the client: output, and control messages such as its exit.

use std::process::ExitCode;

use anyhow::{Result, anyhow, bail};
use serde_json::Value;
use tokio::sync::mpsc;
use tokio_tungstenite::tungstenite::Message;

use super::input::Input;
use crate::client::http_client::problem_of;
use crate::output::print_queue::Chunk;

/// The first byte of a message with standard error output.
const STDERR: u8 = 2;
/// The exit code after the output was closed, as shells report SIGPIPE.
pub(super) const EXIT_OUTPUT_CLOSED: u8 = 141;

/// The state of the output.
#[derive(Default)]
pub(super) struct OutputState {
    /// Bytes that the server dropped because the client read too slowly.
    missing_bytes: u64,
    /// Whether the reader, such as `head`, has closed the output.
    pub(super) is_output_closed: bool,
}

impl OutputState {
    /// Our exit code, given the command's.
    pub(super) fn exit_code_for(&self, code: ExitCode, input: Input) -> Result<ExitCode> {
        if self.is_output_closed {
            return Ok(ExitCode::from(EXIT_OUTPUT_CLOSED));
        }
        // On a terminal the user has seen the gap. A program would take incomplete output for complete.
        if self.missing_bytes == 0 || input == Input::Terminal {
            return Ok(code);
        }
        bail!(
            "{} bytes of output were dropped because they came faster than they were read; write the output to a file and \
             download it with `caisson cp`",
            self.missing_bytes
        )
    }
}

/// Handles one message; returns the exit code at the end.
pub(super) fn handle_message(
    message: Message,
    room: Option<mpsc::Permit<'_, Chunk>>,
    state: &mut OutputState,
) -> Result<Option<ExitCode>> {
    let print = |chunk| {
        if let Some(room) = room {
            room.send(chunk);
        }
    };
    match message {
        Message::Binary(mut bytes) if !bytes.is_empty() => {
            let kind = bytes.split_to(1)[0];
            print(if kind == STDERR { Chunk::Stderr(bytes) } else { Chunk::Stdout(bytes) });
            Ok(None)
        }
        Message::Text(text) => {
            let ServerNotice { text, exit } =
                parse_notice(&serde_json::from_str(&text).unwrap_or_default(), state);
            print(Chunk::Stderr(text.into()));
            exit.transpose()
        }
        Message::Close(_) => bail!("the server closed the connection before the command had ended"),
        _ => Ok(None),
    }
}

/// What a control message says.
#[derive(Default)]
struct ServerNotice {
    /// A message for the user.
    text: String,
    /// The exit of the command.
    exit: Option<Result<ExitCode>>,
}

fn parse_notice(message: &Value, state: &mut OutputState) -> ServerNotice {
    match message["type"].as_str() {
        Some("gap") => {
            let bytes = message["bytes"].as_u64().unwrap_or(1);
            state.missing_bytes = state.missing_bytes.saturating_add(bytes);
            let text = format!("\r\ncaisson: {bytes} bytes of output dropped here\r\n");
            ServerNotice { text, exit: None }
        }
        Some("ended") => {
            let note = message["note"].as_str().unwrap_or_default();
            let reason = message["reason"].as_str().unwrap_or("no reason given");
            let code = message["exit_code"].as_i64().map(exit_code);
            ServerNotice {
                text: note.lines().flat_map(|line| [line, "\r\n"]).collect(),
                exit: Some(code.ok_or_else(|| anyhow!("the command did not finish: {reason}"))),
            }
        }
        Some("problem") => ServerNotice { exit: Some(Err(problem_of(message))), ..ServerNotice::default() },
        _ => ServerNotice::default(),
    }
}

/// Exit codes have eight bits; larger values must not become success.
fn exit_code(code: i64) -> ExitCode {
    ExitCode::from(u8::try_from(code).unwrap_or(u8::MAX))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_end_of_a_command_becomes_an_exit_code() {
        let mut state = OutputState::default();
        let mut exit = |message: &Value| parse_notice(message, &mut state).exit.transpose();
        let mut code = |message: Value| exit(&message).unwrap();
        assert_eq!(code(json!({"type": "started", "call": "exec-1"})), None);
        assert_eq!(code(json!({"type": "ended", "exit_code": 7})), Some(ExitCode::from(7)));
        assert_eq!(code(json!({"type": "ended", "exit_code": -1})), Some(ExitCode::from(255)));
        let early = exit(&json!({"type": "ended", "exit_code": null, "reason": "out of time"})).unwrap_err();
        assert!(early.to_string().contains("out of time"));
        let problem =
            exit(&json!({"type": "problem", "detail": "no such job", "code": "job_not_found"})).unwrap_err();
        assert_eq!(problem.to_string(), "no such job (job_not_found)");
    }

    #[test]
    fn incomplete_output_is_an_error() {
        let mut state = OutputState::default();
        assert_eq!(state.exit_code_for(ExitCode::SUCCESS, Input::None).unwrap(), ExitCode::SUCCESS);
        for bytes in [40, 2] {
            let ServerNotice { text, exit } =
                parse_notice(&json!({"type": "gap", "bytes": bytes}), &mut state);
            assert!(text.contains("bytes of output dropped here") && exit.is_none());
        }
        let error = state.exit_code_for(ExitCode::SUCCESS, Input::Pipe).unwrap_err().to_string();
        assert!(error.starts_with("42 bytes of output were dropped"), "{error}");
        assert_eq!(state.exit_code_for(ExitCode::from(3), Input::Terminal).unwrap(), ExitCode::from(3));
        state.is_output_closed = true;
        assert_eq!(
            state.exit_code_for(ExitCode::SUCCESS, Input::None).unwrap(),
            ExitCode::from(EXIT_OUTPUT_CLOSED)
        );
    }
}
