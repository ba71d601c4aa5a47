//! WebSockets with bounded messages, ping timeouts, and an end when the server shuts down or the client's lease ends.
//!
//! Nothing is queued here. Each message is handed to the connection before the next one is fetched, so a slow client
//! slows down the producer and costs no memory.

use std::error::Error as _;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::extract::ws::{CloseFrame, Message, Utf8Bytes, WebSocket, WebSocketUpgrade, close_code};
use axum::extract::{FromRef, FromRequestParts};
use axum::http::StatusCode;
use axum::http::request::Parts;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures::stream::{SplitSink, SplitStream};
use futures::{SinkExt, StreamExt};
use tokio::time::{Interval, MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use crate::access::{AccessGrant, CloseSignal};
use crate::extract::Shutdown;
use crate::problem::Problem;
use crate::serve::SlotUse;
use crate::settings::ServerSettings;

pub(crate) const MAX_MESSAGE_BYTES: usize = 1024 * 1024;
/// A client that sends nothing for the idle timeout, not even a pong, is considered lost. The timeout is at least
/// this long, because a pong may take a while to arrive.
const MIN_SILENCE_TIMEOUT: Duration = Duration::from_secs(5);
/// Number of pings sent within the permitted silence.
const PINGS_PER_TIMEOUT: u32 = 3;
/// How long to wait for the peer's close frame.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);
/// How long a session may continue after it was told to close.
const CLOSING_GRACE: Duration = Duration::from_secs(3);

/// Extractor for a WebSocket upgrade request.
pub(crate) struct Upgrade {
    upgrade: WebSocketUpgrade,
    closing: CancellationToken,
    grant: Option<AccessGrant>,
    used: Option<SlotUse>,
    silence_timeout: Duration,
}

impl<S> FromRequestParts<S> for Upgrade
where
    S: Send + Sync,
    Arc<ServerSettings>: FromRef<S>,
{
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let closing = parts.extensions.get::<Shutdown>().cloned().unwrap_or_default().0;
        let used = parts.extensions.get::<SlotUse>().cloned();
        let grant = parts.extensions.get::<AccessGrant>().cloned();
        let upgrade = WebSocketUpgrade::from_request_parts(parts, state).await.map_err(|e| refuse(&e))?;
        let silence_timeout = Arc::<ServerSettings>::from_ref(state).idle_timeout.max(MIN_SILENCE_TIMEOUT);
        Ok(Self { upgrade, closing, grant, used, silence_timeout })
    }
}

fn refuse(rejection: &WebSocketUpgradeRejection) -> Problem {
    let detail = format!("this address is a WebSocket: {}", rejection.body_text());
    Problem::new(StatusCode::UPGRADE_REQUIRED, "websocket_required", detail)
}

impl Upgrade {
    /// Accepts the upgrade and runs `handler` on the connection.
    pub(crate) fn start<F>(
        self,
        handler: impl FnOnce(SocketWriter, SocketReader) -> F + Send + 'static,
    ) -> Response
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let Self { upgrade, closing, grant, used, silence_timeout } = self;
        let handler = move |socket: WebSocket| async move {
            let (sink, stream) = socket.split();
            let mut ping_due = interval(silence_timeout / PINGS_PER_TIMEOUT);
            ping_due.set_missed_tick_behavior(MissedTickBehavior::Delay);
            ping_due.reset();
            let writer = SocketWriter { sink, ping_due };
            let closing = CloseSignal::new(grant, &closing);
            let reader = SocketReader { stream, closing: closing.token().clone(), silence_timeout };
            let closing_timeout = async {
                closing.token().cancelled().await;
                tokio::time::sleep(CLOSING_GRACE).await;
            };
            tokio::select! {
                () = handler(writer, reader) => {}
                () = closing_timeout => {}
            }
            drop(used);
        };
        let bounded = upgrade
            .max_message_size(MAX_MESSAGE_BYTES)
            .max_frame_size(MAX_MESSAGE_BYTES)
            .write_buffer_size(0)
            .max_write_buffer_size(2 * MAX_MESSAGE_BYTES);
        bounded.on_upgrade(handler).into_response()
    }
}

/// A message from the client, or the end of the connection.
#[derive(Debug)]
pub(crate) enum ClientMessage {
    Text(Utf8Bytes),
    Bytes(Bytes),
    /// The client closed the connection or was lost.
    Gone,
    /// The client sent a message of more than [`MAX_MESSAGE_BYTES`]. Nothing can be received after it.
    TooLarge,
    /// The server is shutting down, or the client's lease has ended.
    Closing,
}

/// The receiving half of a WebSocket.
pub(crate) struct SocketReader {
    stream: SplitStream<WebSocket>,
    closing: CancellationToken,
    silence_timeout: Duration,
}

impl SocketReader {
    /// Receives the next message. Cancel safe.
    pub(crate) async fn next(&mut self) -> ClientMessage {
        loop {
            let message = tokio::select! {
                // Once the socket is closing, do not accept further messages.
                biased;
                () = self.closing.cancelled() => return ClientMessage::Closing,
                message = tokio::time::timeout(self.silence_timeout, self.stream.next()) => message,
            };
            match message {
                Ok(Some(Ok(Message::Text(text)))) => return ClientMessage::Text(text),
                Ok(Some(Ok(Message::Binary(bytes)))) => return ClientMessage::Bytes(bytes),
                Ok(Some(Ok(Message::Ping(_) | Message::Pong(_)))) => {}
                Ok(Some(Err(error))) if is_too_large(&error) => return ClientMessage::TooLarge,
                Ok(Some(Ok(Message::Close(_)) | Err(_)) | None) | Err(_) => return ClientMessage::Gone,
            }
        }
    }
}

fn is_too_large(error: &axum::Error) -> bool {
    let source = error.source().and_then(|source| source.downcast_ref::<tungstenite::Error>());
    matches!(source, Some(tungstenite::Error::Capacity(_)))
}

/// The client can no longer be written to.
#[derive(Debug)]
pub(crate) struct ClientGone;

/// The sending half of a WebSocket.
pub(crate) struct SocketWriter {
    sink: SplitSink<WebSocket, Message>,
    ping_due: Interval,
}

impl SocketWriter {
    /// Sends a text message. Waits while the client does not read.
    pub(crate) async fn text(&mut self, text: String) -> Result<(), ClientGone> {
        self.send(Message::Text(text.into())).await
    }

    /// Sends a binary message. Waits while the client does not read.
    pub(crate) async fn bytes(&mut self, bytes: Bytes) -> Result<(), ClientGone> {
        self.send(Message::Binary(bytes)).await
    }

    /// Waits until the next ping is due. Cancel safe.
    pub(crate) async fn ping_due(&mut self) {
        self.ping_due.tick().await;
    }

    pub(crate) async fn ping(&mut self) -> Result<(), ClientGone> {
        self.send(Message::Ping(Bytes::new())).await
    }

    async fn send(&mut self, message: Message) -> Result<(), ClientGone> {
        self.sink.send(message).await.map_err(|_| ClientGone)
    }

    /// Sends a close frame and waits briefly for the peer's. If the connection were closed at once, the client's TCP
    /// stack might discard data that is still in flight. After a message that is too large, the peer's frame cannot
    /// be received, so this waits for as long as it may take.
    pub(crate) async fn close(mut self, reason: CloseReason, mut reader: SocketReader) {
        let frame = CloseFrame { code: reason.code(), reason: Utf8Bytes::from_static(reason.text()) };
        let close_reason = async {
            if self.send(Message::Close(Some(frame))).await.is_ok() {
                while let Some(Ok(_)) = reader.stream.next().await {}
                if reason == CloseReason::MessageTooLarge {
                    std::future::pending::<()>().await;
                }
            }
        };
        let _ = tokio::time::timeout(CLOSE_TIMEOUT, close_reason).await;
    }
}

/// Why the server closes a WebSocket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CloseReason {
    Done,
    ServerShutdown,
    UnsupportedData,
    MessageTooLarge,
    Failed,
}

impl CloseReason {
    fn code(self) -> u16 {
        match self {
            Self::Done => close_code::NORMAL,
            Self::ServerShutdown => close_code::AWAY,
            Self::UnsupportedData => close_code::UNSUPPORTED,
            Self::MessageTooLarge => close_code::SIZE,
            Self::Failed => close_code::ERROR,
        }
    }

    /// What the client's developer should know.
    fn text(self) -> &'static str {
        match self {
            Self::MessageTooLarge => "a message may have at most 1 MiB (1048576 bytes)",
            Self::Done | Self::ServerShutdown | Self::UnsupportedData | Self::Failed => "",
        }
    }
}
