//! WebSockets: bounded messages, a pulse that notices a lost client, an end when the server goes down or what let the client
//! in has ended.
//!
//! Nothing is queued here. A message is given to the connection before the next one is asked for, so that a slow client
//! slows down who writes to it and costs no memory.

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

use crate::access::{Closing, Lease};
use crate::admission::SlotUse;
use crate::extract::Shutdown;
use crate::problem::Problem;
use crate::settings::ServerSettings;

/// The largest message that a client may send.
pub(crate) const MAX_MESSAGE_BYTES: usize = 1024 * 1024;
/// A client that says nothing for the idle timeout, not even that it is there, is gone. It has at least this time: an
/// answer may be long on its way.
const LEAST_SILENCE: Duration = Duration::from_secs(5);
/// How often a client is asked whether it is there, within the time that it may be silent.
const PINGS: u32 = 3;
/// How long to wait for the other side's goodbye.
const GOODBYE: Duration = Duration::from_secs(1);
/// How long a conversation may go on when it shall end.
const LAST_WORDS: Duration = Duration::from_secs(3);

/// A request that wants to become a WebSocket.
pub(crate) struct Upgrade {
    upgrade: WebSocketUpgrade,
    closing: CancellationToken,
    lease: Option<Lease>,
    used: Option<SlotUse>,
    longest_silence: Duration,
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
        let lease = parts.extensions.get::<Lease>().cloned();
        let upgrade = WebSocketUpgrade::from_request_parts(parts, state).await.map_err(|e| refuse(&e))?;
        let longest_silence = Arc::<ServerSettings>::from_ref(state).idle_timeout.max(LEAST_SILENCE);
        Ok(Self { upgrade, closing, lease, used, longest_silence })
    }
}

fn refuse(rejection: &WebSocketUpgradeRejection) -> Problem {
    let detail = format!("this address is a WebSocket: {}", rejection.body_text());
    Problem::new(StatusCode::UPGRADE_REQUIRED, "websocket_required", detail)
}

impl Upgrade {
    /// Accepts, and talks.
    pub(crate) fn start<F>(
        self,
        talk: impl FnOnce(SocketWriter, SocketReader) -> F + Send + 'static,
    ) -> Response
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let Self { upgrade, closing, lease, used, longest_silence } = self;
        let talk = move |socket: WebSocket| async move {
            let (sink, stream) = socket.split();
            let mut pulse = interval(longest_silence / PINGS);
            pulse.set_missed_tick_behavior(MissedTickBehavior::Delay);
            pulse.reset();
            let writer = SocketWriter { sink, pulse };
            let closing = Closing::new(lease, &closing);
            let reader = SocketReader { stream, closing: closing.token().clone(), longest_silence };
            let too_late = async {
                closing.token().cancelled().await;
                tokio::time::sleep(LAST_WORDS).await;
            };
            tokio::select! {
                () = talk(writer, reader) => {}
                () = too_late => {}
            }
            drop(used);
        };
        let bounded = upgrade
            .max_message_size(MAX_MESSAGE_BYTES)
            .max_frame_size(MAX_MESSAGE_BYTES)
            .write_buffer_size(0)
            .max_write_buffer_size(2 * MAX_MESSAGE_BYTES);
        bounded.on_upgrade(talk).into_response()
    }
}

/// What a client says.
#[derive(Debug)]
pub(crate) enum Heard {
    Text(Utf8Bytes),
    Bytes(Bytes),
    /// It has said goodbye, or is lost.
    Gone,
    /// The server goes down, or what let the client in has ended.
    Closing,
}

/// Hears a client.
pub(crate) struct SocketReader {
    stream: SplitStream<WebSocket>,
    closing: CancellationToken,
    longest_silence: Duration,
}

impl SocketReader {
    /// What the client says next. Cancel safe.
    pub(crate) async fn next(&mut self) -> Heard {
        loop {
            let message = tokio::select! {
                // Whoever may not speak any more is not heard.
                biased;
                () = self.closing.cancelled() => return Heard::Closing,
                message = tokio::time::timeout(self.longest_silence, self.stream.next()) => message,
            };
            match message {
                Ok(Some(Ok(Message::Text(text)))) => return Heard::Text(text),
                Ok(Some(Ok(Message::Binary(bytes)))) => return Heard::Bytes(bytes),
                Ok(Some(Ok(Message::Ping(_) | Message::Pong(_)))) => {}
                Ok(Some(Ok(Message::Close(_)) | Err(_)) | None) | Err(_) => return Heard::Gone,
            }
        }
    }
}

/// The client takes nothing any more.
#[derive(Debug)]
pub(crate) struct ClientGone;

/// Speaks to a client.
pub(crate) struct SocketWriter {
    sink: SplitSink<WebSocket, Message>,
    pulse: Interval,
}

impl SocketWriter {
    /// Sends text; waits while the client takes nothing.
    pub(crate) async fn text(&mut self, text: String) -> Result<(), ClientGone> {
        self.send(Message::Text(text.into())).await
    }

    /// Sends bytes; waits while the client takes nothing.
    pub(crate) async fn bytes(&mut self, bytes: Bytes) -> Result<(), ClientGone> {
        self.send(Message::Binary(bytes)).await
    }

    /// Waits until the client should be asked whether it is there. Cancel safe.
    pub(crate) async fn pulse(&mut self) {
        self.pulse.tick().await;
    }

    /// Asks the client whether it is there.
    pub(crate) async fn ping(&mut self) -> Result<(), ClientGone> {
        self.send(Message::Ping(Bytes::new())).await
    }

    async fn send(&mut self, message: Message) -> Result<(), ClientGone> {
        self.sink.send(message).await.map_err(|_| ClientGone)
    }

    /// Says goodbye and waits a moment for the answer: closed at once, the client's system might drop what was sent.
    pub(crate) async fn close(mut self, why: Goodbye, mut reader: SocketReader) {
        let frame = CloseFrame { code: why.code(), reason: Utf8Bytes::default() };
        let goodbye = async {
            if self.send(Message::Close(Some(frame))).await.is_ok() {
                while let Some(Ok(_)) = reader.stream.next().await {}
            }
        };
        let _ = tokio::time::timeout(GOODBYE, goodbye).await;
    }
}

/// Why a conversation ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Goodbye {
    Done,
    ServerCloses,
    NotUnderstood,
    Failed,
}

impl Goodbye {
    fn code(self) -> u16 {
        match self {
            Self::Done => close_code::NORMAL,
            Self::ServerCloses => close_code::AWAY,
            Self::NotUnderstood => close_code::UNSUPPORTED,
            Self::Failed => close_code::ERROR,
        }
    }
}
