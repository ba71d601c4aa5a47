//! A command in a sandbox, live: a WebSocket that carries its input, output, window size and end.

use std::io::{Read, Write};
use std::process::ExitCode;

use anyhow::{Context, Result, anyhow, bail};
use futures::{SinkExt, StreamExt};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::{Error, Message};

use crate::client::{self, Client};
use crate::ids::Target;
use crate::terminal::{self, RawMode};

/// The first byte of a message with output on standard error.
const STDERR: u8 = 2;
/// How much of the input is sent at once.
const INPUT_BYTES: usize = 16 * 1024;
/// Ctrl-C, as the programs inside know it.
const INTERRUPT: i32 = 2;

/// What of the terminal in front goes along.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Input {
    /// Nothing: the command reads an empty input.
    None,
    /// Standard input, to its end.
    Pipe,
    /// The terminal: every key, and its size.
    Terminal,
}

/// How a command is started.
pub(crate) struct Start {
    /// `command` or `argv`, and whatever else the server takes.
    pub(crate) request: Value,
    pub(crate) input: Input,
}

/// Runs the command to its end; its exit code becomes ours.
pub(crate) async fn run(client: &Client, target: &Target, start: Start) -> Result<ExitCode> {
    let mut socket = connect(client, &target.path("exec/stream")).await?;
    let mut request = start.request;
    request["keep_stdin_open"] = json!(start.input != Input::None);
    if start.input == Input::Terminal {
        let size = terminal::size();
        request["terminal"] = json!({"rows": size.rows, "columns": size.columns});
    }
    socket.send(Message::text(request.to_string())).await.context("sending the command")?;
    let raw = (start.input == Input::Terminal).then(RawMode::enter).transpose()?;
    let ended = carry(&mut socket, start.input).await;
    drop(raw);
    ended
}

async fn connect(client: &Client, path: &str) -> Result<WebSocketStream<TcpStream>> {
    let url = client.url();
    let address = reqwest::Url::parse(url).with_context(|| format!("`{url}` is not an address"))?;
    let host = address.host_str().with_context(|| format!("`{url}` names no host"))?;
    let port = address.port_or_known_default().unwrap_or(80);
    let stream = TcpStream::connect((host.trim_matches(['[', ']']), port)).await;
    let stream = stream.map_err(|_| client.not_reached())?;
    stream.set_nodelay(true).context("preparing the connection")?;
    let url = format!("{}{path}", url.replacen("http", "ws", 1));
    match tokio_tungstenite::client_async(url, stream).await {
        Ok((socket, _)) => Ok(socket),
        Err(Error::Http(response)) => {
            let body = response.body().clone().unwrap_or_default();
            Err(client::problem(response.status(), &body))
        }
        Err(error) => Err(error).context("opening the stream"),
    }
}

/// Carries bytes both ways until the command has ended.
async fn carry(socket: &mut WebSocketStream<TcpStream>, input: Input) -> Result<ExitCode> {
    let mut keys = if input == Input::None { None } else { Some(read_input()) };
    let mut resized = signal(SignalKind::window_change()).context("listening for signals")?;
    let mut interrupts = 0;
    loop {
        let message = tokio::select! {
            message = socket.next() => match message {
                Some(message) => match take(message.context("the connection to the server broke")?)? {
                    Some(code) => return Ok(code),
                    None => continue,
                },
                None => bail!("the server closed the connection before the command had ended"),
            },
            bytes = next_of(&mut keys) => match bytes {
                Some(bytes) => Message::binary(bytes),
                None => {
                    keys = None;
                    Message::text(json!({"type": "stdin_end"}).to_string())
                }
            },
            _ = resized.recv(), if input == Input::Terminal => {
                let size = terminal::size();
                Message::text(json!({"type": "resize", "rows": size.rows, "columns": size.columns}).to_string())
            }
            _ = tokio::signal::ctrl_c() => {
                interrupts += 1;
                let asked = json!({"type": "signal", "signal": INTERRUPT});
                Message::text(if interrupts > 1 { json!({"type": "kill"}) } else { asked }.to_string())
            }
        };
        socket.send(message).await.context("the connection to the server broke")?;
    }
}

/// Shows one message; an exit code at the end.
fn take(message: Message) -> Result<Option<ExitCode>> {
    match message {
        Message::Binary(bytes) => {
            if let Some((kind, output)) = bytes.split_first() {
                show(*kind, output).context("writing the output")?;
            }
            Ok(None)
        }
        Message::Text(text) => told(&serde_json::from_str(&text).unwrap_or_default()),
        Message::Close(_) => bail!("the server closed the connection before the command had ended"),
        _ => Ok(None),
    }
}

fn show(kind: u8, output: &[u8]) -> std::io::Result<()> {
    if kind == STDERR {
        let mut error = std::io::stderr().lock();
        return error.write_all(output).and_then(|()| error.flush());
    }
    let mut out = std::io::stdout().lock();
    out.write_all(output).and_then(|()| out.flush())
}

fn told(message: &Value) -> Result<Option<ExitCode>> {
    match message["type"].as_str() {
        Some("gap") => {
            eprintln!("\r\ncaisson: {} bytes of output were left out here\r", message["bytes"]);
            Ok(None)
        }
        Some("ended") => match message["exit_code"].as_i64() {
            Some(code) => Ok(Some(exit_code(code))),
            None => {
                Err(anyhow!("it ended early: {}", message["reason"].as_str().unwrap_or("no reason given")))
            }
        },
        Some("problem") => Err(client::problem_of(message)),
        _ => Ok(None),
    }
}

/// Exit codes have eight bits; what does not fit must not look like success.
fn exit_code(code: i64) -> ExitCode {
    ExitCode::from(u8::try_from(code).unwrap_or(u8::MAX))
}

/// Waits for input; for ever when there is none.
async fn next_of(keys: &mut Option<mpsc::Receiver<Vec<u8>>>) -> Option<Vec<u8>> {
    match keys {
        Some(keys) => keys.recv().await,
        None => std::future::pending().await,
    }
}

/// Reads standard input on a thread of its own, which ends with the process: a read cannot be called off.
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
        let code = |message: Value| told(&message).unwrap();
        assert_eq!(code(json!({"type": "started", "call": "exec-1"})), None);
        assert_eq!(code(json!({"type": "ended", "exit_code": 7})), Some(ExitCode::from(7)));
        assert_eq!(code(json!({"type": "ended", "exit_code": -1})), Some(ExitCode::from(255)));
        let early = told(&json!({"type": "ended", "exit_code": null, "reason": "out of time"})).unwrap_err();
        assert!(early.to_string().contains("out of time"));
        let problem =
            told(&json!({"type": "problem", "detail": "no such job", "code": "job_not_found"})).unwrap_err();
        assert_eq!(problem.to_string(), "no such job (job_not_found)");
    }
}
