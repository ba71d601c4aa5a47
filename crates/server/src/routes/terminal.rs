//! A shell for a browser terminal, over a WebSocket. The shell survives the connection and can be resumed.

use axum::extract::State;
use axum::response::Response;
use orchestrator::{CallEnd, JobId, LiveExec, LiveOutput, LiveUpdate};
use protocol::TerminalSize;
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;
use utoipa::ToSchema;

use super::exec_input::{self, feed};
use super::exec_stream::{Outcome, listen, text_of_problem};
use crate::extract::{Acting, AppState, JobPath, Parameters};
use crate::hold::Passed;
use crate::openapi::{JobProblems, WebSocketProblems};
use crate::problem::Problem;
use crate::websocket::{Goodbye, SocketReader, SocketWriter, Upgrade};

/// The query parameters.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TerminalQuery {
    session: Option<String>,
    #[serde(default = "usual_rows")]
    rows: u16,
    #[serde(default = "usual_columns")]
    columns: u16,
}

fn usual_rows() -> u16 {
    24
}

fn usual_columns() -> u16 {
    80
}

/// What the server says in text.
#[derive(Debug, Serialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum TerminalNotice {
    /// The first message: the shell is there.
    Session {
        /// To come back with, as `?session=`.
        session: String,
    },
    /// The client was too slow: so many bytes of output are missing here.
    Gap {
        /// How many.
        bytes: u64,
    },
    /// The shell has ended; nothing follows.
    Ended {
        /// Exit code.
        exit_code: Option<i32>,
        /// Why it did not end by itself, for people.
        reason: Option<String>,
    },
}

/// Open a terminal (WebSocket)
///
/// A shell in the sandbox. Binary messages are what is typed and what is to be shown, as xterm knows it. The server
/// says `TerminalNotice` as text, first of all the session; the client says `StreamOrder` as text, such as
/// `{"type": "resize", "rows": 40, "columns": 120}`. The shell goes on when the connection ends, also when the server is
/// restarted: `?session=` comes back to it and shows what it printed last. What cannot be done is told as a text message
/// with the fields of a problem and `"type": "problem"`.
#[utoipa::path(
    get, path = "/terminal", tag = "sandbox", operation_id = "job_terminal",
    params(
        ("id" = JobId, Path, description = "The job"),
        ("session" = Option<String>, Query, description = "A session to come back to; a new one when absent"),
        ("rows" = Option<u16>, Query, description = "Height in characters, 24 when absent"),
        ("columns" = Option<u16>, Query, description = "Width in characters, 80 when absent"),
    ),
    responses((status = 101, description = "A WebSocket"), JobProblems, WebSocketProblems)
)]
pub(crate) async fn terminal(
    State(state): State<AppState>,
    Acting(orchestrator): Acting,
    JobPath(id): JobPath,
    Parameters(query): Parameters<TerminalQuery>,
    passed: Passed,
    upgrade: Upgrade,
) -> Response {
    // A caller who may only watch does nothing that the job's log records.
    let state = if passed.check().is_ok() { AppState { orchestrator, ..state } } else { state };
    upgrade.start(move |writer, reader| converse(state, id, query, passed, writer, reader))
}

async fn converse(
    state: AppState,
    id: JobId,
    query: TerminalQuery,
    passed: Passed,
    mut writer: SocketWriter,
    mut reader: SocketReader,
) {
    let size = TerminalSize { rows: query.rows.max(1), columns: query.columns.max(1) };
    let opened = match &query.session {
        Some(session) => {
            state.orchestrator.return_to_terminal(id, session, size).await.map_err(Problem::from)
        }
        // Opening a new shell is more than watching.
        None => match passed.check() {
            Ok(()) => state.orchestrator.open_terminal(id, size).await.map_err(Problem::from),
            Err(problem) => Err(problem),
        },
    };
    let outcome = match opened {
        Ok(shell) => stay(shell, &passed, &mut writer, &mut reader).await,
        Err(problem) => Outcome::Refused(problem),
    };
    let goodbye = match outcome {
        Outcome::Ended(CallEnd { exit_code, reason, .. }) => {
            let _ = writer.text(text_of(&TerminalNotice::Ended { exit_code, reason })).await;
            Goodbye::Done
        }
        Outcome::Refused(problem) => {
            let _ = writer.text(text_of_problem(&problem)).await;
            Goodbye::Failed
        }
        Outcome::Gone => Goodbye::Done,
        Outcome::Closing => Goodbye::ServerCloses,
    };
    writer.close(goodbye, reader).await;
}

/// Runs the session until the shell or the client ends. The shell is never hung up.
async fn stay(
    shell: LiveExec,
    passed: &Passed,
    writer: &mut SocketWriter,
    reader: &mut SocketReader,
) -> Outcome {
    let LiveExec { output, input, control } = shell;
    let (waiting, pieces) = exec_input::queue();
    let (refusals, mut refused) = mpsc::channel(1);
    tokio::select! {
        outcome = show(output, control.call(), &mut refused, writer) => outcome,
        outcome = listen(reader, &control, waiting, (passed, refusals)) => outcome,
        () = feed(input, pieces) => Outcome::Gone,
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
            () = writer.pulse() => writer.ping().await,
        };
    }
    Outcome::Gone
}

fn text_of(notice: &TerminalNotice) -> String {
    serde_json::to_string(notice).unwrap_or_default()
}
