//! A shell for a browser terminal, over a WebSocket. The shell survives the connection and can be resumed.

use axum::extract::State;
use axum::response::Response;
use job::{CallEnd, JobId};
use orchestrator::{LiveExec, LiveOutput, LiveUpdate};
use protocol::TerminalSize;
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;
use utoipa::ToSchema;

use super::exec_input::{self, feed};
use super::exec_stream::{Outcome, receive_messages, text_of_problem};
use crate::access::takeover_gate::TakeoverGate;
use crate::extract::{AppState, JobPath, OnBehalfOfCaller, Parameters};
use crate::openapi::{JobProblems, WebSocketProblems};
use crate::problem::Problem;
use crate::streams::{CloseReason, SocketReader, SocketWriter, Upgrade};

/// The query parameters.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TerminalQuery {
    session: Option<String>,
    #[serde(default = "default_rows")]
    rows: u16,
    #[serde(default = "default_columns")]
    columns: u16,
}

fn default_rows() -> u16 {
    24
}

fn default_columns() -> u16 {
    80
}

/// What the server says in text.
#[derive(Debug, Serialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum TerminalNotice {
    /// The first message: the shell is ready.
    Session {
        /// Id of the session, for `?session=`.
        session: String,
    },
    /// Bytes of output were dropped here, because the client was too slow.
    Gap {
        /// Number of bytes.
        bytes: u64,
    },
    /// The shell has ended; the last message.
    Ended {
        /// Exit code.
        exit_code: Option<i32>,
        /// The reason if it did not end by itself.
        reason: Option<String>,
    },
}

/// Open a terminal (WebSocket)
///
/// A shell in the sandbox. Binary messages carry input and output in the xterm format. The server sends `TerminalNotice` as
/// text, first the session; the client sends `StreamOrder` as text, such as
/// `{"type": "resize", "rows": 40, "columns": 120}`. The shell survives a lost connection and a restart of the server:
/// `?session=` reconnects and shows its latest output. Errors are text messages with the fields of a problem and
/// `"type": "problem"`.
#[utoipa::path(
    get, path = "/terminal", tag = "sandbox", operation_id = "job_terminal",
    params(
        ("id" = JobId, Path, description = "The job"),
        ("session" = Option<String>, Query, description = "Id of a session to reconnect to; default a new session"),
        ("rows" = Option<u16>, Query, maximum = 65535, description = "Height in characters; default 24"),
        ("columns" = Option<u16>, Query, maximum = 65535, description = "Width in characters; default 80"),
    ),
    responses((status = 101, description = "A WebSocket"), JobProblems, WebSocketProblems)
)]
pub(crate) async fn terminal(
    State(state): State<AppState>,
    OnBehalfOfCaller(orchestrator): OnBehalfOfCaller,
    JobPath(id): JobPath,
    Parameters(query): Parameters<TerminalQuery>,
    gate: TakeoverGate,
    upgrade: Upgrade,
) -> Response {
    // A caller who may only watch does nothing that the job's log records.
    let state = if gate.check().is_ok() { AppState { orchestrator, ..state } } else { state };
    upgrade.start(move |writer, reader| run_session(state, id, query, gate, writer, reader))
}

async fn run_session(
    state: AppState,
    id: JobId,
    query: TerminalQuery,
    gate: TakeoverGate,
    mut writer: SocketWriter,
    mut reader: SocketReader,
) {
    let size = TerminalSize { rows: query.rows.max(1), columns: query.columns.max(1) };
    let opened = match &query.session {
        Some(session) => {
            state.orchestrator.return_to_terminal(id, session, size).await.map_err(Problem::from)
        }
        // Opening a new shell is more than watching.
        None => match gate.check() {
            Ok(()) => state.orchestrator.open_terminal(id, size).await.map_err(Problem::from),
            Err(problem) => Err(problem),
        },
    };
    let outcome = match opened {
        Ok(shell) => relay_shell(shell, &gate, &mut writer, &mut reader).await,
        Err(problem) => Outcome::Refused(problem),
    };
    let close_reason = match outcome {
        Outcome::Ended(end) => {
            let CallEnd { exit_code, reason, .. } = *end;
            let _ = writer.text(text_of(&TerminalNotice::Ended { exit_code, reason })).await;
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

/// Runs the session until the shell or the client ends. The shell is never hung up.
async fn relay_shell(
    shell: LiveExec,
    gate: &TakeoverGate,
    writer: &mut SocketWriter,
    reader: &mut SocketReader,
) -> Outcome {
    let LiveExec { output, input, control } = shell;
    let (input_sender, input_receiver) = exec_input::queue();
    let (refusals, mut refused) = mpsc::channel(1);
    tokio::select! {
        outcome = show(output, control.call(), &mut refused, writer) => outcome,
        outcome = receive_messages(reader, &control, input_sender, (gate, refusals)) => outcome,
        () = feed(input, input_receiver) => Outcome::Gone,
    }
}

async fn show(
    mut output: LiveOutput,
    session: &str,
    refused: &mut mpsc::Receiver<Problem>,
    writer: &mut SocketWriter,
) -> Outcome {
    let notice = TerminalNotice::Session { session: session.to_owned() };
    let mut sent = writer.text(text_of(&notice)).await;
    while let Ok(()) = sent {
        sent = tokio::select! {
            update = output.next() => match update {
                Ok(LiveUpdate::Output { bytes, .. }) => writer.bytes(bytes).await,
                Ok(LiveUpdate::Gap { bytes }) => writer.text(text_of(&TerminalNotice::Gap { bytes })).await,
                Ok(LiveUpdate::Ended(end)) => return Outcome::Ended(end),
                Err(error) => return Outcome::Refused(error.into()),
            },
            Some(problem) = refused.recv() => writer.text(text_of_problem(&problem)).await,
            () = writer.ping_due() => writer.ping().await,
        };
    }
    Outcome::Gone
}

fn text_of(notice: &TerminalNotice) -> String {
    serde_json::to_string(notice).unwrap_or_default()
}
