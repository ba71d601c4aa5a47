//! Runs a process interactively over a WebSocket.
//!
//! Three things run concurrently: sending output, receiving messages, and feeding input to the process. None waits
//! for another, so a process that reads no input can still be killed.

use std::collections::BTreeMap;

use axum::extract::State;
use axum::response::Response;
use bytes::{BufMut, Bytes, BytesMut};
use job::{CallEnd, JobId};
use orchestrator::{ExecRequest, ExecStreamOptions, LiveControl, LiveExec, LiveOutput, LiveUpdate};
use protocol::{MAX_SIGNAL, TerminalSize};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use utoipa::ToSchema;

use super::exec_input::{self, InputSender, feed};
use crate::access::takeover_gate::TakeoverGate;
use crate::extract::{AppState, JobPath, OnBehalfOfCaller, parse_json};
use crate::openapi::{JobProblems, WebSocketProblems};
use crate::problem::Problem;
use crate::streams::{ClientMessage, CloseReason, SocketReader, SocketWriter, Upgrade};

/// The first message of a client: what to run.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct StreamRequest {
    /// A command line; either this or `argv`.
    command: Option<String>,
    /// A program and its arguments.
    argv: Option<Vec<String>>,
    /// Working directory; default `/workspace`.
    cwd: Option<String>,
    /// Additional environment variables.
    #[serde(default)]
    environment: BTreeMap<String, String>,
    /// Timeout in seconds; default none.
    timeout_s: Option<f64>,
    /// Allocates a terminal of this size.
    terminal: Option<Size>,
    /// The beginning of standard input.
    stdin: Option<String>,
    /// Keeps standard input open for binary messages; a terminal always does.
    #[serde(default)]
    keep_stdin_open: bool,
    /// The process blocks while the client does not read, as with a pipe, and no output is dropped. Not possible with a terminal. A
    /// client that reads nothing for long must send something now and then, such as a pong.
    #[serde(default)]
    backpressure: bool,
}

/// The size of a terminal.
#[derive(Debug, Clone, Copy, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Size {
    /// Height in characters.
    rows: u16,
    /// Width in characters.
    columns: u16,
}

/// What a client says in text afterwards.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum StreamOrder {
    /// Resizes the terminal.
    Resize {
        /// Height in characters.
        rows: u16,
        /// Width in characters.
        columns: u16,
    },
    /// Closes standard input.
    StdinEnd {},
    /// Sends a signal to the process.
    Signal {
        /// Signal number, 1 to 64.
        signal: i32,
    },
    /// Kills the process and all its children.
    Kill {},
}

/// What the server says in text.
#[derive(Debug, Serialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum StreamNotice {
    /// The process has started.
    Started {
        /// The id of the call in the log.
        call: String,
    },
    /// Bytes of output were dropped here, because the client was too slow. With `backpressure` only in sandboxes started by an
    /// earlier version.
    Gap {
        /// Number of bytes.
        bytes: u64,
    },
    /// The process has ended; the last message.
    Ended {
        /// `succeeded`, `failed` or `interrupted`.
        #[schema(value_type = String)]
        status: job::CallStatus,
        /// Exit code.
        exit_code: Option<i32>,
        /// Error code if it did not succeed.
        code: Option<String>,
        /// Error message if it did not succeed.
        reason: Option<String>,
        /// Remarks, such as refused connections.
        #[serde(skip_serializing_if = "Option::is_none")]
        note: Option<String>,
        /// Duration in milliseconds.
        duration_ms: u64,
    },
}

/// Run a command interactively (WebSocket)
///
/// The client first sends a `StreamRequest` as text. Then the server sends `StreamNotice` as text and output as binary
/// messages, whose first byte is 1 for standard output, 2 for standard error, 3 for a terminal. The client sends standard
/// input as binary messages and `StreamOrder` as text. Errors are text messages with the fields of a problem and
/// `"type": "problem"`. If the client reads too slowly, the server drops output and reports how much; with `backpressure`
/// the process blocks instead. If the client disconnects, the process continues and its output is logged; a process with a
/// terminal is hung up.
#[utoipa::path(
    get, path = "/exec/stream", tag = "sandbox", operation_id = "job_exec_stream",
    params(("id" = JobId, Path, description = "The job")),
    responses((status = 101, description = "A WebSocket"), JobProblems, WebSocketProblems)
)]
pub(crate) async fn exec_stream(
    State(state): State<AppState>,
    OnBehalfOfCaller(orchestrator): OnBehalfOfCaller,
    JobPath(id): JobPath,
    gate: TakeoverGate,
    upgrade: Upgrade,
) -> Response {
    let state = AppState { orchestrator, ..state };
    upgrade.start(move |writer, reader| run_session(state, id, gate, writer, reader))
}

/// How a session ends.
pub(super) enum Outcome {
    Ended(Box<CallEnd>),
    Refused(Problem),
    Gone,
    /// The client sent a message that is too large.
    TooLarge,
    Closing,
}

async fn run_session(
    state: AppState,
    id: JobId,
    gate: TakeoverGate,
    mut writer: SocketWriter,
    mut reader: SocketReader,
) {
    let outcome = match begin(&state, id, &gate, &mut reader).await {
        Ok(exec) => relay_process(exec, &gate, &mut writer, &mut reader).await,
        Err(outcome) => outcome,
    };
    let close_reason = match outcome {
        Outcome::Ended(end) => {
            let notice = StreamNotice::Ended {
                status: end.status,
                exit_code: end.exit_code,
                code: end.code,
                reason: end.reason,
                note: end.note,
                duration_ms: end.duration_ms,
            };
            let _ = writer.text(text_of(&notice)).await;
            CloseReason::Done
        }
        Outcome::Refused(problem) => {
            let _ = writer.text(text_of_problem(&problem)).await;
            CloseReason::Failed
        }
        Outcome::Gone => CloseReason::Done,
        Outcome::TooLarge => CloseReason::MessageTooLarge,
        Outcome::Closing => CloseReason::ServerShutdown,
    };
    writer.close(close_reason, reader).await;
}

/// Receives the request and starts the process.
async fn begin(
    state: &AppState,
    id: JobId,
    gate: &TakeoverGate,
    reader: &mut SocketReader,
) -> Result<LiveExec, Outcome> {
    gate.check().map_err(Outcome::Refused)?;
    let first = tokio::time::timeout(state.settings.request_timeout, reader.next()).await;
    let text = match first {
        Ok(ClientMessage::Text(text)) => text,
        Ok(ClientMessage::Bytes(_)) => {
            return Err(Outcome::Refused(Problem::bad_request(
                "malformed_json",
                "the first message must be text: the command, as JSON",
            )));
        }
        Ok(ClientMessage::Gone) => return Err(Outcome::Gone),
        Ok(ClientMessage::TooLarge) => return Err(Outcome::TooLarge),
        Ok(ClientMessage::Closing) => return Err(Outcome::Closing),
        Err(_) => {
            let detail = "the first message with the command did not arrive in time";
            return Err(Outcome::Refused(Problem::bad_request("body_timeout", detail)));
        }
    };
    let request: StreamRequest = parse_json(text.as_bytes()).map_err(Outcome::Refused)?;
    if request.backpressure && request.terminal.is_some() {
        let detail = "not possible with a terminal; omit one of the two";
        return Err(Outcome::Refused(Problem::invalid_field("backpressure", detail)));
    }
    let talk = ExecStreamOptions {
        terminal: request.terminal.map(|Size { rows, columns }| TerminalSize { rows, columns }),
        keep_stdin_open: request.keep_stdin_open,
        has_backpressure: request.backpressure,
    };
    let exec = ExecRequest {
        command: request.command,
        argv: request.argv,
        stdin: request.stdin,
        cwd: request.cwd,
        environment: request.environment,
        timeout_s: request.timeout_s,
    };
    state.orchestrator.open_exec(id, exec, talk).await.map_err(|error| Outcome::Refused(error.into()))
}

/// Runs the session until the process or the client ends.
async fn relay_process(
    exec: LiveExec,
    gate: &TakeoverGate,
    writer: &mut SocketWriter,
    reader: &mut SocketReader,
) -> Outcome {
    let LiveExec { output, input, control } = exec;
    let (input_sender, input_receiver) = exec_input::queue();
    let (refusals, mut refused) = mpsc::channel(1);
    let outcome = tokio::select! {
        outcome = send_output(output, control.call(), &mut refused, writer) => outcome,
        outcome = receive_messages(reader, &control, input_sender, (gate, refusals)) => outcome,
        () = feed(input, input_receiver) => Outcome::Gone,
    };
    // When the server shuts down, the process continues. Only a client that disconnects or is disconnected hangs up.
    if matches!(outcome, Outcome::Gone | Outcome::TooLarge | Outcome::Refused(_)) {
        control.hang_up().await;
    }
    outcome
}

/// Sends the process's output. Fetches more only after the client has read the previous message.
async fn send_output(
    mut output: LiveOutput,
    call: &str,
    refused: &mut mpsc::Receiver<Problem>,
    writer: &mut SocketWriter,
) -> Outcome {
    let started = StreamNotice::Started { call: call.to_owned() };
    let mut sent = writer.text(text_of(&started)).await;
    while let Ok(()) = sent {
        sent = tokio::select! {
            update = output.next() => match update {
                Ok(LiveUpdate::Output { stream, bytes }) => writer.bytes(with_stream_prefix(stream as u8, &bytes)).await,
                Ok(LiveUpdate::Gap { bytes }) => writer.text(text_of(&StreamNotice::Gap { bytes })).await,
                Ok(LiveUpdate::Ended(end)) => return Outcome::Ended(end),
                Err(error) => return Outcome::Refused(error.into()),
            },
            Some(problem) = refused.recv() => writer.text(text_of_problem(&problem)).await,
            () = writer.ping_due() => writer.ping().await,
        };
    }
    Outcome::Gone
}

/// Carries out the client's messages.
pub(super) async fn receive_messages(
    reader: &mut SocketReader,
    control: &LiveControl,
    input: InputSender,
    (gate, refusals): (&TakeoverGate, mpsc::Sender<Problem>),
) -> Outcome {
    loop {
        let message = reader.next().await;
        // A client that may not send input keeps watching. It is told why, but not for every message.
        if matches!(message, ClientMessage::Bytes(_) | ClientMessage::Text(_))
            && let Err(problem) = gate.check()
        {
            let _ = refusals.try_send(problem);
            continue;
        }
        let done = match message {
            ClientMessage::Gone => return Outcome::Gone,
            ClientMessage::TooLarge => return Outcome::TooLarge,
            ClientMessage::Closing => return Outcome::Closing,
            ClientMessage::Bytes(bytes) => {
                input.add(bytes).await;
                Ok(())
            }
            ClientMessage::Text(text) => match parse_json::<StreamOrder>(text.as_bytes()) {
                Err(problem) => return Outcome::Refused(problem),
                Ok(StreamOrder::StdinEnd {}) => {
                    input.end();
                    Ok(())
                }
                Ok(StreamOrder::Resize { rows, columns }) => {
                    control.resize(TerminalSize { rows, columns }).await
                }
                Ok(StreamOrder::Signal { signal }) if !(1..=MAX_SIGNAL).contains(&signal) => {
                    let detail = format!("must be 1 to {MAX_SIGNAL}");
                    return Outcome::Refused(Problem::invalid_field("signal", detail));
                }
                Ok(StreamOrder::Signal { signal }) => control.signal(signal).await,
                Ok(StreamOrder::Kill {}) => control.kill().await,
            },
        };
        // The process may have ended meanwhile; the client is about to be told.
        if let Err(error) = done {
            tracing::debug!(%error, "a client message had no effect");
        }
    }
}

/// Prefixes output with the number of its stream.
fn with_stream_prefix(stream: u8, output: &[u8]) -> Bytes {
    let mut message = BytesMut::with_capacity(output.len() + 1);
    message.put_u8(stream);
    message.put_slice(output);
    message.freeze()
}

fn text_of(notice: &StreamNotice) -> String {
    serde_json::to_string(notice).unwrap_or_default()
}

pub(super) fn text_of_problem(problem: &Problem) -> String {
    let mut json: Value = serde_json::from_slice(&problem.to_json()).unwrap_or_default();
    json["type"] = json!("problem");
    json.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_stream_commands_are_rejected_by_name() {
        let order = |text: &str| parse_json::<StreamOrder>(text.as_bytes());
        assert!(matches!(order(r#"{"type":"kill"}"#), Ok(StreamOrder::Kill {})));
        assert!(matches!(order(r#"{"type":"stdin_end"}"#), Ok(StreamOrder::StdinEnd {})));
        assert!(matches!(order(r#"{"type":"signal","signal":2}"#), Ok(StreamOrder::Signal { signal: 2 })));
        assert!(matches!(
            order(r#"{"type":"resize","rows":2,"columns":3}"#),
            Ok(StreamOrder::Resize { rows: 2, columns: 3 })
        ));
        assert!(order(r#"{"type":"fly"}"#).unwrap_err().detail().contains("fly"));
        assert_eq!(order("kill").unwrap_err().code(), "malformed_json");
    }

    #[test]
    fn stream_notices_have_the_documented_format() {
        let notice = |notice: &StreamNotice| serde_json::from_str::<Value>(&text_of(notice)).unwrap();
        assert_eq!(
            notice(&StreamNotice::Started { call: "c".into() }),
            json!({"type": "started", "call": "c"})
        );
        assert_eq!(notice(&StreamNotice::Gap { bytes: 5 }), json!({"type": "gap", "bytes": 5}));
        let problem: Value =
            serde_json::from_str(&text_of_problem(&Problem::invalid_field("command", "is empty"))).unwrap();
        assert_eq!((&problem["type"], &problem["code"]), (&json!("problem"), &json!("invalid_field")));
        assert_eq!(with_stream_prefix(2, b"ab").as_ref(), b"\x02ab");
    }
}
