//! An interactive command in a sandbox: a WebSocket that carries its input, output, window size and exit.

use std::io::{self, Read};
use std::pin::pin;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use bytes::Bytes;
use futures::stream::{SplitSink, SplitStream};
use futures::{SinkExt, StreamExt};
use serde_json::{Value, json};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::client::IntoClientRequest as _;
use tokio_tungstenite::tungstenite::{Error, Message};

use crate::client::{self, ByteStream, Client};
use crate::commands::say;
use crate::config_client;
use crate::ids::Target;
use crate::printing::{self, Piece};
use crate::terminal::{self, RawMode};

/// The first byte of a message with standard error output.
const STDERR: u8 = 2;
/// The maximum size of one input message.
const INPUT_BYTES: usize = 16 * 1024;
/// How many input messages may be queued.
const INPUT_PIECES: usize = 4;
/// SIGINT, sent on Ctrl-C.
const INTERRUPT: i32 = 2;
/// SIGPIPE, for a command whose output nobody reads.
const BROKEN_PIPE: i32 = 13;
/// How often the client sends a keepalive.
const PULSE: Duration = Duration::from_secs(2);
/// How long sending a second Ctrl-C may take.
const KILL_PATIENCE: Duration = Duration::from_secs(2);
/// The exit code after leaving a running command, as shells report Ctrl-C.
const EXIT_LEFT: u8 = 130;
/// The exit code after the output was closed, as shells report SIGPIPE.
const EXIT_UNREAD: u8 = 141;

/// The command's input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Input {
    /// Nothing: the command reads an empty input.
    None,
    /// Standard input, to its end.
    Pipe,
    /// The terminal: every key, and its size.
    Terminal,
}

/// How to start a command.
pub(crate) struct Start {
    /// `command` or `argv`, and any other fields of the request.
    pub(crate) request: Value,
    pub(crate) input: Input,
}

/// Runs the command and returns its exit code.
pub(crate) async fn run(client: &Client, target: &Target, start: Start) -> Result<ExitCode> {
    let mut socket = connect(client, &target.path("exec/stream")).await?;
    let mut request = start.request;
    request["keep_stdin_open"] = json!(start.input != Input::None);
    // A person prefers current output to a command that waits for a slow terminal.
    if start.input != Input::Terminal {
        request["wait_for_reader"] = json!(true);
    }
    if start.input == Input::Terminal {
        let size = terminal::size();
        request["terminal"] = json!({"rows": size.rows, "columns": size.columns});
    }
    socket.send(Message::text(request.to_string())).await.context("sending the command")?;
    let raw = (start.input == Input::Terminal).then(RawMode::enter).transpose()?;
    let ended = carry(socket, start.input).await;
    drop(raw);
    ended
}

/// The WebSocket of a command.
pub(crate) type Socket = WebSocketStream<Box<dyn ByteStream>>;

pub(crate) async fn connect(client: &Client, path: &str) -> Result<Socket> {
    let stream = client.connect().await?;
    let mut url = format!("{}{path}", client.url().replacen("http", "ws", 1));
    if let Some(token) = config_client::takeover_token() {
        url += &format!("{}takeover={token}", if path.contains('?') { '&' } else { '?' });
    }
    let mut request = url.into_client_request().context("preparing the stream")?;
    if let Some(key) = client.key() {
        request.headers_mut().insert("authorization", key.clone());
    }
    match tokio_tungstenite::client_async(request, stream).await {
        Ok((socket, _)) => Ok(socket),
        Err(Error::Http(response)) => {
            let body = response.body().clone().unwrap_or_default();
            Err(client::problem(response.status(), &body))
        }
        Err(error) => Err(error).context("opening the stream"),
    }
}

/// Transfers data both ways until the command has ended and its output is printed.
async fn carry(socket: Socket, input: Input) -> Result<ExitCode> {
    let (pieces, mut printed) = printing::start();
    let mut interrupted = signal(SignalKind::interrupt()).context("listening for signals")?;
    let mut shown = Shown::default();
    let said = converse(socket, input, &pieces, &mut printed, &mut interrupted, &mut shown).await;
    drop(pieces);
    match said {
        Ok(Said::Left(code)) => return Ok(code),
        Ok(Said::Ended(_)) | Err(_) if !shown.is_unread => {
            // Print all received output before our own messages, however slow its reader is.
            tokio::select! {
                printed = printed => shown.is_unread |= is_unread(printed)?,
                _ = interrupted.recv() => return Ok(ExitCode::from(EXIT_LEFT)),
            }
        }
        _ => {}
    }
    match said? {
        Said::Ended(code) => shown.verdict(code, input),
        Said::Left(code) => Ok(code),
    }
}

/// How the conversation with a command ended.
enum Said {
    /// The command has ended; its output may still be in the print queue.
    Ended(ExitCode),
    /// The user left the command.
    Left(ExitCode),
}

/// Whether printing ended because the reader closed the output; any other reason is an error.
fn is_unread(printed: Result<io::Result<()>, oneshot::error::RecvError>) -> Result<bool> {
    match printed {
        Ok(Err(error)) if error.kind() == io::ErrorKind::BrokenPipe => Ok(true),
        printed => printed.context("writing the output")?.context("writing the output").map(|()| false),
    }
}

/// Exchanges messages with a command until it ends. Handles output and signals even while the server accepts no
/// input.
async fn converse(
    socket: Socket,
    input: Input,
    output: &mpsc::Sender<Piece>,
    printed: &mut oneshot::Receiver<io::Result<()>>,
    interrupted: &mut Signal,
    shown: &mut Shown,
) -> Result<Said> {
    let (sink, mut messages) = socket.split();
    let (pieces, waiting_pieces) = mpsc::channel(INPUT_PIECES);
    let (orders, waiting_orders) = mpsc::unbounded_channel();
    let mut writing = pin!(write(sink, waiting_orders, waiting_pieces));
    let mut is_writing = true;
    let mut keys = if input == Input::None { None } else { Some(read_input()) };
    let mut resized = signal(SignalKind::window_change()).context("listening for signals")?;
    let mut kill = Kill::None;
    // Deadline for a command to end after its output was closed.
    let mut unread_until: Option<Instant> = None;
    loop {
        tokio::select! {
            (message, room) = next_message(&mut messages, output) => match message {
                Some(message) => {
                    let message = message.context("the connection to the server broke")?;
                    if let Some(code) = take(message, room, shown)? {
                        return Ok(Said::Ended(code));
                    }
                }
                None => bail!("the server closed the connection before the command had ended"),
            },
            printed = &mut *printed, if !shown.is_unread => {
                if is_unread(printed)? {
                    shown.is_unread = true;
                    // As with a local pipe, closing the reader ends the command.
                    let (order, _) = Order::of(&json!({"type": "signal", "signal": BROKEN_PIPE}));
                    let _ = orders.send(order);
                    unread_until = Some(Instant::now() + KILL_PATIENCE);
                }
            }
            // If nothing can be sent any more, the incoming messages say why.
            () = writing.as_mut(), if is_writing => is_writing = false,
            () = pass_on(&mut keys, &pieces), if is_writing => {}
            _ = resized.recv(), if input == Input::Terminal => {
                let size = terminal::size();
                let order = json!({"type": "resize", "rows": size.rows, "columns": size.columns});
                let _ = orders.send(Order::of(&order).0);
            }
            _ = interrupted.recv() => {
                let asked = json!({"type": "signal", "signal": INTERRUPT});
                let (order, sent) = Order::of(&if kill.is_some() { json!({"type": "kill"}) } else { asked });
                let _ = orders.send(order);
                kill = match kill {
                    // The first Ctrl-C only sends SIGINT.
                    Kill::None => Kill::Next,
                    Kill::Next | Kill::Sent => Kill::Waiting { sent, until: Instant::now() + KILL_PATIENCE },
                    Kill::Waiting { .. } => return Ok(Said::Left(left())),
                };
            }
            () = kill.is_refused() => return Ok(Said::Left(left())),
            () = tokio::time::sleep_until(unread_until.unwrap_or_else(Instant::now)), if unread_until.is_some() => {
                return Ok(Said::Left(ExitCode::from(EXIT_UNREAD)));
            }
        }
    }
}

/// Waits for room in the print queue, then for the next message. The permit is `None` once the output is closed, when
/// nothing is printed any more. Cancel safe.
async fn next_message<'a>(
    messages: &mut SplitStream<Socket>,
    output: &'a mpsc::Sender<Piece>,
) -> (Option<Result<Message, Error>>, Option<mpsc::Permit<'a, Piece>>) {
    let room = output.reserve().await.ok();
    (messages.next().await, room)
}

/// A control message, sent before any input, and a channel that reports that it was sent.
struct Order {
    message: Message,
    sent: oneshot::Sender<()>,
}

impl Order {
    fn of(order: &Value) -> (Self, oneshot::Receiver<()>) {
        let (sent, receiver) = oneshot::channel();
        (Self { message: Message::text(order.to_string()), sent }, receiver)
    }
}

/// Sends queued messages until the connection fails.
async fn write(
    mut sink: SplitSink<Socket, Message>,
    mut orders: mpsc::UnboundedReceiver<Order>,
    mut pieces: mpsc::Receiver<Message>,
) {
    let mut pulse = tokio::time::interval(PULSE);
    loop {
        let sent = tokio::select! {
            biased;
            Some(order) = orders.recv() => {
                let sent = sink.send(order.message).await;
                if sent.is_ok() {
                    // The receiver may have been dropped.
                    let _ = order.sent.send(());
                }
                sent
            }
            Some(piece) = pieces.recv() => sink.send(piece).await,
            // Not a reply: the server's ping may be queued behind much unread output.
            _ = pulse.tick() => sink.send(Message::Pong(Bytes::new())).await,
        };
        if sent.is_err() {
            return;
        }
    }
}

/// Queues one piece of input once there is one and room for it, and the end of input once. Cancel safe.
async fn pass_on(keys: &mut Option<mpsc::Receiver<Vec<u8>>>, pieces: &mpsc::Sender<Message>) {
    let Ok(room) = pieces.reserve().await else { return std::future::pending().await };
    match next_of(keys).await {
        Some(bytes) => room.send(Message::binary(bytes)),
        None => {
            *keys = None;
            room.send(Message::text(json!({"type": "stdin_end"}).to_string()));
        }
    }
}

/// The state of Ctrl-C: the first asks the command to end, further ones kill it.
enum Kill {
    None,
    Next,
    /// Being sent, with a deadline.
    Waiting {
        sent: oneshot::Receiver<()>,
        until: Instant,
    },
    Sent,
}

impl Kill {
    fn is_some(&self) -> bool {
        !matches!(self, Self::None)
    }

    /// Returns if the message could not be sent in time, otherwise never. Cancel safe.
    async fn is_refused(&mut self) {
        if let Self::Waiting { sent, until } = self {
            match tokio::time::timeout_at(*until, sent).await {
                Ok(Ok(())) => *self = Self::Sent,
                Ok(Err(_)) | Err(_) => return,
            }
        }
        std::future::pending().await
    }
}

fn left() -> ExitCode {
    say("\r\nthe server takes nothing more; left without knowing whether the command goes on\r");
    ExitCode::from(EXIT_LEFT)
}

/// The state of the output.
#[derive(Default)]
struct Shown {
    /// Bytes that the server dropped because the client read too slowly.
    missing_bytes: u64,
    /// Whether the reader, such as `head`, has closed the output.
    is_unread: bool,
}

impl Shown {
    /// Our exit code, given the command's.
    fn verdict(&self, code: ExitCode, input: Input) -> Result<ExitCode> {
        if self.is_unread {
            return Ok(ExitCode::from(EXIT_UNREAD));
        }
        // On a terminal the user has seen the gap. A program would take incomplete output for complete.
        if self.missing_bytes == 0 || input == Input::Terminal {
            return Ok(code);
        }
        bail!(
            "{} bytes of the output are missing: it came faster than it was taken; let the command write a file, and fetch that \
             with `caisson cp`",
            self.missing_bytes
        )
    }
}

/// Handles one message; returns the exit code at the end.
fn take(
    message: Message,
    room: Option<mpsc::Permit<'_, Piece>>,
    shown: &mut Shown,
) -> Result<Option<ExitCode>> {
    let print = |piece| {
        if let Some(room) = room {
            room.send(piece);
        }
    };
    match message {
        Message::Binary(mut bytes) if !bytes.is_empty() => {
            let kind = bytes.split_to(1)[0];
            print(if kind == STDERR { Piece::Error(bytes) } else { Piece::Output(bytes) });
            Ok(None)
        }
        Message::Text(text) => {
            let Told { words, end } = told(&serde_json::from_str(&text).unwrap_or_default(), shown);
            print(Piece::Error(words.into()));
            end.transpose()
        }
        Message::Close(_) => bail!("the server closed the connection before the command had ended"),
        _ => Ok(None),
    }
}

/// The control information of a message.
#[derive(Default)]
struct Told {
    /// A message for the user.
    words: String,
    /// The exit of the command.
    end: Option<Result<ExitCode>>,
}

fn told(message: &Value, shown: &mut Shown) -> Told {
    match message["type"].as_str() {
        Some("gap") => {
            let bytes = message["bytes"].as_u64().unwrap_or(1);
            shown.missing_bytes = shown.missing_bytes.saturating_add(bytes);
            let words = format!("\r\ncaisson: {bytes} bytes of output were left out here\r\n");
            Told { words, end: None }
        }
        Some("ended") => {
            let note = message["note"].as_str().unwrap_or_default();
            let reason = message["reason"].as_str().unwrap_or("no reason given");
            let code = message["exit_code"].as_i64().map(exit_code);
            Told {
                words: note.lines().flat_map(|line| [line, "\r\n"]).collect(),
                end: Some(code.ok_or_else(|| anyhow!("it ended early: {reason}"))),
            }
        }
        Some("problem") => Told { end: Some(Err(client::problem_of(message))), ..Told::default() },
        _ => Told::default(),
    }
}

/// Exit codes have eight bits; larger values must not become success.
fn exit_code(code: i64) -> ExitCode {
    ExitCode::from(u8::try_from(code).unwrap_or(u8::MAX))
}

/// Waits for input; forever if there is none.
async fn next_of(keys: &mut Option<mpsc::Receiver<Vec<u8>>>) -> Option<Vec<u8>> {
    match keys {
        Some(keys) => keys.recv().await,
        None => std::future::pending().await,
    }
}

/// Reads standard input on a separate thread, which ends with the process, because a blocking read cannot be
/// cancelled.
fn read_input() -> mpsc::Receiver<Vec<u8>> {
    let (sender, receiver) = mpsc::channel(4);
    std::thread::spawn(move || {
        let mut buffer = vec![0; INPUT_BYTES];
        loop {
            match std::io::stdin().read(&mut buffer) {
                Ok(0) | Err(_) => return,
                Ok(count) => {
                    if sender.blocking_send(buffer[..count].to_vec()).is_err() {
                        return;
                    }
                }
            }
        }
    });
    receiver
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_command_becomes_an_exit_code() {
        let mut shown = Shown::default();
        let mut told = |message: &Value| told(message, &mut shown).end.transpose();
        let mut code = |message: Value| told(&message).unwrap();
        assert_eq!(code(json!({"type": "started", "call": "exec-1"})), None);
        assert_eq!(code(json!({"type": "ended", "exit_code": 7})), Some(ExitCode::from(7)));
        assert_eq!(code(json!({"type": "ended", "exit_code": -1})), Some(ExitCode::from(255)));
        let early = told(&json!({"type": "ended", "exit_code": null, "reason": "out of time"})).unwrap_err();
        assert!(early.to_string().contains("out of time"));
        let problem =
            told(&json!({"type": "problem", "detail": "no such job", "code": "job_not_found"})).unwrap_err();
        assert_eq!(problem.to_string(), "no such job (job_not_found)");
    }

    #[test]
    fn output_with_a_gap_is_no_success() {
        let mut shown = Shown::default();
        assert_eq!(shown.verdict(ExitCode::SUCCESS, Input::None).unwrap(), ExitCode::SUCCESS);
        for bytes in [40, 2] {
            let Told { words, end } = told(&json!({"type": "gap", "bytes": bytes}), &mut shown);
            assert!(words.contains("bytes of output were left out here") && end.is_none());
        }
        let error = shown.verdict(ExitCode::SUCCESS, Input::Pipe).unwrap_err().to_string();
        assert!(error.starts_with("42 bytes of the output are missing"), "{error}");
        assert_eq!(shown.verdict(ExitCode::from(3), Input::Terminal).unwrap(), ExitCode::from(3));
        shown.is_unread = true;
        assert_eq!(shown.verdict(ExitCode::SUCCESS, Input::None).unwrap(), ExitCode::from(EXIT_UNREAD));
    }
}
