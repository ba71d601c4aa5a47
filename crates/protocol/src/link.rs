//! Multiplexes streams over one byte stream.
//!
//! yamux gives each stream its own flow control, so a slow reader blocks no other stream. One task owns the yamux
//! connection; [`Link`] sends it requests to open streams.

use std::fmt;
use std::future::poll_fn;
use std::io;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures::io::BufReader;
use tokio::sync::{mpsc, oneshot, watch};

use crate::deferred_flush::{DeferredFlush, Flusher};
use crate::error::ProtocolError;
use crate::stream::{ByteStream, MessageStream};

/// The most concurrent streams. Exceeding it ends the link, so each side stays well below.
const MAX_STREAMS: usize = 2048;
/// The most streams that the other side may open before this side accepts them.
const MAX_WAITING: usize = 256;
/// Size of the read and write buffers. They combine small frames; larger frames bypass them.
const BUFFER_BYTES: usize = 4096;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    Host,
    /// The process inside the sandbox.
    Guest,
}

/// A handle that opens streams on a link. Cheap to clone. The link ends when the other side disconnects, when
/// [`Link::close`] is called, or when the last clone is dropped.
#[derive(Clone)]
pub struct Link {
    commands: mpsc::Sender<oneshot::Sender<MessageStream>>,
    end: watch::Receiver<Option<LinkEnd>>,
    close: Arc<watch::Sender<bool>>,
}

/// Why a link ended.
#[derive(Debug, Clone)]
pub enum LinkEnd {
    /// This side closed the link or dropped its last handle.
    ClosedLocally,
    /// The other side closed the link.
    ClosedByPeer,
    /// The underlying byte stream failed.
    Io(Arc<io::Error>),
    /// One side violated the yamux protocol.
    ProtocolViolation(Arc<yamux::ConnectionError>),
}

impl fmt::Display for LinkEnd {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ClosedLocally => formatter.write_str("this side has closed it"),
            Self::ClosedByPeer => formatter.write_str("the other side has closed it"),
            Self::Io(error) => write!(formatter, "its byte stream failed: {error}"),
            Self::ProtocolViolation(error) => write!(formatter, "its rules were broken: {error}"),
        }
    }
}

impl From<yamux::ConnectionError> for LinkEnd {
    fn from(error: yamux::ConnectionError) -> Self {
        match error {
            yamux::ConnectionError::Io(error) => Self::Io(error.into()),
            yamux::ConnectionError::Closed => Self::ClosedByPeer,
            error => Self::ProtocolViolation(error.into()),
        }
    }
}

/// The streams opened by the other side.
pub struct IncomingStreams {
    streams: mpsc::Receiver<MessageStream>,
}

impl IncomingStreams {
    /// Waits for the next stream. Returns `None` when the link has ended.
    pub async fn next(&mut self) -> Option<MessageStream> {
        self.streams.recv().await
    }
}

impl Link {
    /// Starts a link on a byte stream, driven by a task on the current runtime.
    pub fn start(stream: impl ByteStream, side: Side) -> (Self, IncomingStreams) {
        let mut config = yamux::Config::default();
        config.set_max_num_streams(MAX_STREAMS);
        config.set_max_connection_receive_window(Some(MAX_STREAMS * 256 * 1024));
        let mode = match side {
            Side::Host => yamux::Mode::Client,
            Side::Guest => yamux::Mode::Server,
        };
        let (commands, command_queue) = mpsc::channel(64);
        let (incoming, streams) = mpsc::channel(MAX_WAITING);
        let (end_sender, end) = watch::channel(None);
        let (close, close_requested) = watch::channel(false);
        let (deferred_flush, flusher) = DeferredFlush::new(stream, BUFFER_BYTES);
        let buffered = BufReader::with_capacity(BUFFER_BYTES, deferred_flush);
        let driver = Driver {
            connection: yamux::Connection::new(buffered, config, mode),
            flusher,
            commands: command_queue,
            waiting: None,
            incoming,
        };
        tokio::spawn(async move {
            let end = driver.run(close_requested).await;
            let _ = end_sender.send(Some(end));
        });
        (Self { commands, end, close: Arc::new(close) }, IncomingStreams { streams })
    }

    pub async fn open(&self) -> Result<MessageStream, ProtocolError> {
        let (reply, stream) = oneshot::channel();
        self.commands.send(reply).await.map_err(|_| ProtocolError::Closed)?;
        stream.await.map_err(|_| ProtocolError::Closed)
    }

    /// Waits until the link has ended.
    pub async fn closed(&self) -> LinkEnd {
        let mut end = self.end.clone();
        // If the runtime shuts down, the link ends without a reason.
        end.wait_for(Option::is_some).await.ok().and_then(|end| end.clone()).unwrap_or(LinkEnd::ClosedLocally)
    }

    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.end.borrow().is_some() || self.end.has_changed().is_err()
    }

    /// Ends the link and breaks its open streams.
    pub fn close(&self) {
        let _ = self.close.send(true);
    }
}

struct Driver<T> {
    connection: yamux::Connection<BufReader<DeferredFlush<T>>>,
    /// Sends what yamux has written into the buffer.
    flusher: Flusher<T>,
    commands: mpsc::Receiver<oneshot::Sender<MessageStream>>,
    waiting: Option<oneshot::Sender<MessageStream>>,
    incoming: mpsc::Sender<MessageStream>,
}

impl<T: ByteStream> Driver<T> {
    async fn run(mut self, mut close_requested: watch::Receiver<bool>) -> LinkEnd {
        tokio::select! {
            biased;
            // Polled first, so that data written before the close request goes out as far as the other side accepts
            // it immediately. A graceful yamux close would take longer and leave readers of this side's streams
            // waiting forever.
            end = poll_fn(|cx| self.poll_and_send(cx)) => end,
            () = async { drop(close_requested.wait_for(|requested| *requested).await) } => LinkEnd::ClosedLocally,
        }
    }

    /// Ready when the connection has ended. Sends all pending output at once, so that it wakes the other side once.
    fn poll_and_send(&mut self, cx: &mut Context<'_>) -> Poll<LinkEnd> {
        // Send leftover output first. Otherwise a reader that uses up its whole cooperative budget could delay it
        // forever.
        let before = self.flusher.poll_send(cx);
        let polled = self.poll(cx);
        let error = match (before, self.flusher.poll_send(cx)) {
            (Poll::Ready(Err(error)), _) | (_, Poll::Ready(Err(error))) => error,
            _ => return polled,
        };
        // The other side has closed the connection. Whatever it sent before that has arrived by now, so read it
        // first.
        let polled = if polled.is_pending() { self.poll(cx) } else { polled };
        match polled {
            Poll::Pending => Poll::Ready(LinkEnd::Io(error.into())),
            end => end,
        }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<LinkEnd> {
        loop {
            if self.waiting.is_none()
                && let Poll::Ready(Some(request)) = self.commands.poll_recv(cx)
            {
                self.waiting = Some(request);
            }
            if self.waiting.is_some() {
                match self.connection.poll_new_outbound(cx) {
                    Poll::Ready(Ok(stream)) => {
                        if let Some(request) = self.waiting.take() {
                            let _ = request.send(MessageStream::new(stream));
                        }
                        continue;
                    }
                    Poll::Ready(Err(error)) => return Poll::Ready(error.into()),
                    Poll::Pending => {}
                }
            }
            match self.connection.poll_next_inbound(cx) {
                // If the queue is full, drop the stream, which resets it: the other side opens streams faster than
                // this side accepts them.
                Poll::Ready(Some(Ok(stream))) => drop(self.incoming.try_send(MessageStream::new(stream))),
                Poll::Ready(Some(Err(error))) => return Poll::Ready(error.into()),
                Poll::Ready(None) => return Poll::Ready(LinkEnd::ClosedByPeer),
                Poll::Pending => return Poll::Pending,
            }
        }
    }
}
