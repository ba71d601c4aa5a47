//! Many streams over one byte stream.
//!
//! yamux gives each stream its own flow control, so a slow reader stalls nobody else. A task owns the connection and
//! is the only one to touch it; [`Link`] asks it for streams.

use std::fmt;
use std::future::poll_fn;
use std::io;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures::io::BufReader;
use tokio::sync::{mpsc, oneshot, watch};

use crate::error::ProtocolError;
use crate::gathered::{Gathered, Rest};
use crate::stream::{ByteStream, MessageStream};

/// The most streams at once. Going over it ends the link, so each side keeps well below.
const MAX_STREAMS: usize = 2048;
/// Streams opened by the other side and not yet taken.
const MAX_WAITING: usize = 256;
/// What is read or written at once of small frames; larger ones go past the buffers.
const BUFFER_BYTES: usize = 4096;

/// Which end of the link this is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// The orchestrator.
    Host,
    /// Inside the sandbox.
    Guest,
}

/// Opens streams on a link. Cheap to clone; the link ends when the other side goes,
/// [`Link::close`] is called, or the last clone is dropped.
#[derive(Clone)]
pub struct Link {
    commands: mpsc::Sender<oneshot::Sender<MessageStream>>,
    end: watch::Receiver<Option<LinkEnd>>,
    close: Arc<watch::Sender<bool>>,
}

/// Why a link has ended.
#[derive(Debug, Clone)]
pub enum LinkEnd {
    /// This side wanted it, or nobody held it any more.
    Ours,
    /// The other side has closed it.
    Theirs,
    /// The byte stream below failed.
    Io(Arc<io::Error>),
    /// One of the sides broke the rules.
    Rules(Arc<yamux::ConnectionError>),
}

impl fmt::Display for LinkEnd {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ours => formatter.write_str("this side has closed it"),
            Self::Theirs => formatter.write_str("the other side has closed it"),
            Self::Io(error) => write!(formatter, "its byte stream failed: {error}"),
            Self::Rules(error) => write!(formatter, "its rules were broken: {error}"),
        }
    }
}

impl From<yamux::ConnectionError> for LinkEnd {
    fn from(error: yamux::ConnectionError) -> Self {
        match error {
            yamux::ConnectionError::Io(error) => Self::Io(error.into()),
            yamux::ConnectionError::Closed => Self::Theirs,
            error => Self::Rules(error.into()),
        }
    }
}

/// The streams that the other side opens.
pub struct IncomingStreams {
    streams: mpsc::Receiver<MessageStream>,
}

impl IncomingStreams {
    /// The next stream, or `None` when the link has ended.
    pub async fn next(&mut self) -> Option<MessageStream> {
        self.streams.recv().await
    }
}

impl Link {
    /// Starts a link on a byte stream, with a task on the current runtime.
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
        let (close, close_wish) = watch::channel(false);
        let (gathered, rest) = Gathered::new(stream, BUFFER_BYTES);
        let buffered = BufReader::with_capacity(BUFFER_BYTES, gathered);
        let driver = Driver {
            connection: yamux::Connection::new(buffered, config, mode),
            rest,
            commands: command_queue,
            waiting: None,
            incoming,
        };
        tokio::spawn(async move {
            let end = driver.run(close_wish).await;
            let _ = end_sender.send(Some(end));
        });
        (Self { commands, end, close: Arc::new(close) }, IncomingStreams { streams })
    }

    /// Opens a stream.
    ///
    /// # Errors
    /// The link has ended.
    pub async fn open(&self) -> Result<MessageStream, ProtocolError> {
        let (reply, stream) = oneshot::channel();
        self.commands.send(reply).await.map_err(|_| ProtocolError::Closed)?;
        stream.await.map_err(|_| ProtocolError::Closed)
    }

    /// Waits until the link has ended.
    pub async fn closed(&self) -> LinkEnd {
        let mut end = self.end.clone();
        // A runtime that ends takes the link with it.
        end.wait_for(Option::is_some).await.ok().and_then(|end| end.clone()).unwrap_or(LinkEnd::Ours)
    }

    /// Whether the link has ended.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.end.borrow().is_some() || self.end.has_changed().is_err()
    }

    /// Ends the link; open streams break.
    pub fn close(&self) {
        let _ = self.close.send(true);
    }
}

struct Driver<T> {
    connection: yamux::Connection<BufReader<Gathered<T>>>,
    /// What yamux has written and nobody has sent yet.
    rest: Rest<T>,
    commands: mpsc::Receiver<oneshot::Sender<MessageStream>>,
    waiting: Option<oneshot::Sender<MessageStream>>,
    incoming: mpsc::Sender<MessageStream>,
}

impl<T: ByteStream> Driver<T> {
    async fn run(mut self, mut close_wish: watch::Receiver<bool>) -> LinkEnd {
        tokio::select! {
            biased;
            // Polled first: what was said before the wish goes out as far as the other side takes it at once. A longer goodbye
            // would be yamux's own, which leaves whoever reads from a stream of ours waiting for ever.
            end = poll_fn(|cx| self.poll_and_send(cx)) => end,
            () = async { drop(close_wish.wait_for(|wish| *wish).await) } => LinkEnd::Ours,
        }
    }

    /// Ready when the connection has ended. Whatever there was to say goes out at once, and wakes the other side once.
    fn poll_and_send(&mut self, cx: &mut Context<'_>) -> Poll<LinkEnd> {
        // First what was left: a reader that uses up its whole turn must not delay it for ever.
        let before = self.rest.poll_send(cx);
        let polled = self.poll(cx);
        let error = match (before, self.rest.poll_send(cx)) {
            (Poll::Ready(Err(error)), _) | (_, Poll::Ready(Err(error))) => error,
            _ => return polled,
        };
        // The other side has closed. What it sent before that has arrived by now and is read first.
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
                // A full queue drops the stream, which resets it: the other side opens faster than we serve.
                Poll::Ready(Some(Ok(stream))) => drop(self.incoming.try_send(MessageStream::new(stream))),
                Poll::Ready(Some(Err(error))) => return Poll::Ready(error.into()),
                Poll::Ready(None) => return Poll::Ready(LinkEnd::Theirs),
                Poll::Pending => return Poll::Pending,
            }
        }
    }
}
