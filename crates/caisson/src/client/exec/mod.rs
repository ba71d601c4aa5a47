//! An interactive command in a sandbox: a WebSocket that carries its input, output, window size and exit.

mod input;
mod output;

use std::io;
use std::pin::pin;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use futures::stream::SplitStream;
use futures::{SinkExt, StreamExt};
use serde_json::{Value, json};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;
use tokio_tungstenite::tungstenite::{Error, Message};

use self::input::{ControlMessage, KillState, forward_input, read_input, write};
use self::output::{EXIT_OUTPUT_CLOSED, OutputState, handle_message};
use super::http_client::Client;
use super::ids::Target;
use super::websocket::{self, Socket};
use crate::output::print_queue::{self, Chunk};
use crate::output::terminal::{self, RawMode};
use crate::output::{EXIT_DETACHED, say};

pub(crate) use self::input::Input;

/// How many input messages may be queued.
const MAX_QUEUED_INPUT: usize = 4;
/// SIGINT, sent on Ctrl-C.
const INTERRUPT: i32 = 2;
/// SIGPIPE, for a command whose output nobody reads.
const BROKEN_PIPE: i32 = 13;
/// How long sending a second Ctrl-C may take.
const KILL_TIMEOUT: Duration = Duration::from_secs(2);

/// A command to start.
pub(crate) struct ExecRequest {
    /// `command` or `argv`, and any other fields of the request.
    pub(crate) body: Value,
    pub(crate) input: Input,
}

/// Runs the command and returns its exit code.
pub(crate) async fn run(client: &Client, target: &Target, exec: ExecRequest) -> Result<ExitCode> {
    let mut socket = websocket::connect(client, &target.path("exec/stream")).await?;
    let mut request = exec.body;
    request["keep_stdin_open"] = json!(exec.input != Input::None);
    // A person prefers current output to a command that waits for a slow terminal.
    if exec.input != Input::Terminal {
        request["backpressure"] = json!(true);
    }
    if exec.input == Input::Terminal {
        let size = terminal::size();
        request["terminal"] = json!({"rows": size.rows, "columns": size.columns});
    }
    socket.send(Message::text(request.to_string())).await.context("sending the command")?;
    let raw = (exec.input == Input::Terminal).then(RawMode::enter).transpose()?;
    let ended = transfer(socket, exec.input).await;
    drop(raw);
    ended
}

/// Transfers data both ways until the command has ended and its output is printed.
async fn transfer(socket: Socket, input: Input) -> Result<ExitCode> {
    let (output, mut printed) = print_queue::start();
    let mut interrupted = signal(SignalKind::interrupt()).context("listening for signals")?;
    let mut state = OutputState::default();
    let ended = exchange_messages(socket, input, &output, &mut printed, &mut interrupted, &mut state).await;
    drop(output);
    match ended {
        Ok(SessionEnd::Detached(code)) => return Ok(code),
        Ok(SessionEnd::Exited(_)) | Err(_) if !state.is_output_closed => {
            // Print all received output before our own messages, however slow its reader is.
            tokio::select! {
                printed = printed => state.is_output_closed |= is_output_closed(printed)?,
                _ = interrupted.recv() => return Ok(ExitCode::from(EXIT_DETACHED)),
            }
        }
        _ => {}
    }
    match ended? {
        SessionEnd::Exited(code) => state.exit_code_for(code, input),
        SessionEnd::Detached(code) => Ok(code),
    }
}

/// How the session with a command ended.
enum SessionEnd {
    /// The command has ended; its output may still be in the print queue.
    Exited(ExitCode),
    /// The user left the command.
    Detached(ExitCode),
}

/// Whether printing ended because the reader closed the output; any other reason is an error.
fn is_output_closed(printed: Result<io::Result<()>, oneshot::error::RecvError>) -> Result<bool> {
    match printed {
        Ok(Err(error)) if error.kind() == io::ErrorKind::BrokenPipe => Ok(true),
        printed => printed.context("writing the output")?.context("writing the output").map(|()| false),
    }
}

/// Exchanges messages with a command until it ends. Handles output and signals even while the server accepts no
/// input.
async fn exchange_messages(
    socket: Socket,
    input: Input,
    output: &mpsc::Sender<Chunk>,
    printed: &mut oneshot::Receiver<io::Result<()>>,
    interrupted: &mut Signal,
    state: &mut OutputState,
) -> Result<SessionEnd> {
    let (sink, mut messages) = socket.split();
    let (queued_input, waiting_input) = mpsc::channel(MAX_QUEUED_INPUT);
    let (controls, waiting_controls) = mpsc::unbounded_channel();
    let mut writing = pin!(write(sink, waiting_controls, waiting_input));
    let mut is_writing = true;
    let mut keys = if input == Input::None { None } else { Some(read_input()) };
    let mut resized = signal(SignalKind::window_change()).context("listening for signals")?;
    let mut kill = KillState::None;
    // Deadline for a command to end after its output was closed.
    let mut closed_deadline: Option<Instant> = None;
    loop {
        tokio::select! {
            (message, room) = next_message(&mut messages, output) => match message {
                Some(message) => {
                    let message = message.context("lost the connection to the server")?;
                    if let Some(code) = handle_message(message, room, state)? {
                        return Ok(SessionEnd::Exited(code));
                    }
                }
                None => bail!("the server closed the connection before the command had ended"),
            },
            printed = &mut *printed, if !state.is_output_closed => {
                if is_output_closed(printed)? {
                    state.is_output_closed = true;
                    // As with a local pipe, closing the reader ends the command.
                    let (control, _) = ControlMessage::new(&json!({"type": "signal", "signal": BROKEN_PIPE}));
                    let _ = controls.send(control);
                    closed_deadline = Some(Instant::now() + KILL_TIMEOUT);
                }
            }
            // If nothing can be sent any more, the incoming messages say why.
            () = writing.as_mut(), if is_writing => is_writing = false,
            () = forward_input(&mut keys, &queued_input), if is_writing => {}
            _ = resized.recv(), if input == Input::Terminal => {
                let size = terminal::size();
                let control = json!({"type": "resize", "rows": size.rows, "columns": size.columns});
                let _ = controls.send(ControlMessage::new(&control).0);
            }
            _ = interrupted.recv() => {
                let interrupt = json!({"type": "signal", "signal": INTERRUPT});
                let (control, sent) = ControlMessage::new(&if kill.is_some() { json!({"type": "kill"}) } else { interrupt });
                let _ = controls.send(control);
                kill = match kill {
                    // The first Ctrl-C only sends SIGINT.
                    KillState::None => KillState::Next,
                    KillState::Next | KillState::Sent => KillState::Waiting { sent, until: Instant::now() + KILL_TIMEOUT },
                    KillState::Waiting { .. } => return Ok(SessionEnd::Detached(report_detached())),
                };
            }
            () = kill.send_timed_out() => return Ok(SessionEnd::Detached(report_detached())),
            () = tokio::time::sleep_until(closed_deadline.unwrap_or_else(Instant::now)), if closed_deadline.is_some() => {
                return Ok(SessionEnd::Detached(ExitCode::from(EXIT_OUTPUT_CLOSED)));
            }
        }
    }
}

/// Waits for room in the print queue, then for the next message. The permit is `None` once the output is closed, when
/// nothing is printed any more. Cancel safe.
async fn next_message<'a>(
    messages: &mut SplitStream<Socket>,
    output: &'a mpsc::Sender<Chunk>,
) -> (Option<Result<Message, Error>>, Option<mpsc::Permit<'a, Chunk>>) {
    let room = output.reserve().await.ok();
    (messages.next().await, room)
}

fn report_detached() -> ExitCode {
    say("\r\nthe server accepts no more input; disconnected, and the command may still be running\r");
    ExitCode::from(EXIT_DETACHED)
}
