//! What the client sends to a command: control messages, input, keepalives.

use std::io::Read;
use std::time::Duration;

use bytes::Bytes;
use futures::SinkExt;
use futures::stream::SplitSink;
use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;
use tokio_tungstenite::tungstenite::Message;

use crate::client::websocket::Socket;

/// The maximum size of one input message.
const INPUT_BYTES: usize = 16 * 1024;
/// How often the client sends a keepalive.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(2);

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

/// A control message, which is sent before any queued input, and a channel that reports that it was sent.
pub(super) struct ControlMessage {
    message: Message,
    sent: oneshot::Sender<()>,
}

impl ControlMessage {
    pub(super) fn new(control: &Value) -> (Self, oneshot::Receiver<()>) {
        let (sent, receiver) = oneshot::channel();
        (Self { message: Message::text(control.to_string()), sent }, receiver)
    }
}

/// Sends queued messages until the connection fails.
pub(super) async fn write(
    mut sink: SplitSink<Socket, Message>,
    mut controls: mpsc::UnboundedReceiver<ControlMessage>,
    mut input: mpsc::Receiver<Message>,
) {
    let mut pulse = tokio::time::interval(KEEPALIVE_INTERVAL);
    loop {
        let sent = tokio::select! {
            biased;
            Some(control) = controls.recv() => {
                let sent = sink.send(control.message).await;
                if sent.is_ok() {
                    // The receiver may have been dropped.
                    let _ = control.sent.send(());
                }
                sent
            }
            Some(input) = input.recv() => sink.send(input).await,
            // Not a reply: the server's ping may be queued behind much unread output.
            _ = pulse.tick() => sink.send(Message::Pong(Bytes::new())).await,
        };
        if sent.is_err() {
            return;
        }
    }
}

/// Queues one chunk of input once there is one and room for it, and the end of input once. Cancel safe.
pub(super) async fn forward_input(keys: &mut Option<mpsc::Receiver<Vec<u8>>>, input: &mpsc::Sender<Message>) {
    let Ok(room) = input.reserve().await else { return std::future::pending().await };
    match next_of(keys).await {
        Some(bytes) => room.send(Message::binary(bytes)),
        None => {
            *keys = None;
            room.send(Message::text(json!({"type": "stdin_end"}).to_string()));
        }
    }
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
pub(super) fn read_input() -> mpsc::Receiver<Vec<u8>> {
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

/// The state of Ctrl-C: the first asks the command to end, further ones kill it.
pub(super) enum KillState {
    None,
    Next,
    /// Being sent, with a deadline.
    Waiting {
        sent: oneshot::Receiver<()>,
        until: Instant,
    },
    Sent,
}

impl KillState {
    pub(super) fn is_some(&self) -> bool {
        !matches!(self, Self::None)
    }

    /// Returns if the message could not be sent in time, otherwise never. Cancel safe.
    pub(super) async fn send_timed_out(&mut self) {
        if let Self::Waiting { sent, until } = self {
            match tokio::time::timeout_at(*until, sent).await {
                Ok(Ok(())) => *self = Self::Sent,
                Ok(Err(_)) | Err(_) => return,
            }
        }
        std::future::pending().await
    }
}
