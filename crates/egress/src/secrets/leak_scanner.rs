//! Scans outgoing data for placeholders of secrets: the bytes of tunnels, which are otherwise not inspected, and
//! request bodies, in which placeholders are not replaced. A placeholder there can only leak.

use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::secret::Secrets;
use crate::refusal::Refusal;
use crate::target::Target;

/// Whether the connection to the server is encrypted, which decides whether a secret's host may receive its
/// placeholder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Transport {
    /// Anyone on the network path can read it, so no placeholder may be sent.
    Plain,
    /// A secret's host may receive its placeholder.
    Encrypted,
}

/// Finds placeholders in a stream of chunks.
struct LeakScanner {
    secrets: Arc<Secrets>,
    target: Target,
    transport: Transport,
    /// The last bytes that were sent.
    tail: Vec<u8>,
}

impl LeakScanner {
    fn new(secrets: Arc<Secrets>, target: Target, transport: Transport) -> Self {
        Self { secrets, target, transport, tail: Vec::new() }
    }

    /// Checks whether these bytes may follow the ones sent so far.
    fn check(&self, data: &[u8]) -> Result<(), Refusal> {
        if self.secrets.is_empty() {
            return Ok(());
        }
        let mut seen = self.tail.clone();
        seen.extend_from_slice(data);
        match self.transport {
            Transport::Plain => self.secrets.check_unencrypted(&seen, &self.target),
            Transport::Encrypted => self.secrets.check_text(&seen, &self.target),
        }
    }

    /// Records bytes that were sent.
    fn remember(&mut self, passed: &[u8]) {
        if self.secrets.is_empty() {
            return;
        }
        let longest = self.secrets.longest_placeholder();
        self.tail.extend_from_slice(passed);
        let excess = self.tail.len().saturating_sub(longest);
        self.tail.drain(..excess);
    }
}

/// The refusal for a placeholder in a request body; shared with the sender of the request.
#[derive(Debug, Clone, Default)]
pub(crate) struct Found(Arc<Mutex<Option<Refusal>>>);

impl Found {
    /// Why the body was aborted, if it was.
    pub(crate) fn refusal(&self) -> Option<Refusal> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// A request body that fails before a complete placeholder was sent.
pub(crate) struct LeakScanBody<B> {
    body: B,
    scanner: LeakScanner,
    found: Found,
}

impl<B> LeakScanBody<B> {
    pub(crate) fn new(body: B, secrets: Arc<Secrets>, target: Target, transport: Transport) -> Self {
        Self { body, scanner: LeakScanner::new(secrets, target, transport), found: Found::default() }
    }

    /// Holds the reason after the body was aborted.
    pub(crate) fn found(&self) -> Found {
        self.found.clone()
    }
}

impl<B> Body for LeakScanBody<B>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    type Data = Bytes;
    type Error = Box<dyn std::error::Error + Send + Sync>;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let Some(frame) = ready!(Pin::new(&mut self.body).poll_frame(cx)) else { return Poll::Ready(None) };
        let frame = frame.map_err(Into::into)?;
        if let Some(data) = frame.data_ref() {
            if let Err(refusal) = self.scanner.check(data) {
                let reason = refusal.reason.clone();
                *self.found.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(refusal);
                return Poll::Ready(Some(Err(reason.into())));
            }
            self.scanner.remember(data);
        }
        Poll::Ready(Some(Ok(frame)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A stream to a server that fails before a complete placeholder was sent.
pub(crate) struct LeakScanStream<S> {
    stream: S,
    scanner: LeakScanner,
    leaked: Arc<AtomicBool>,
}

impl<S> LeakScanStream<S> {
    pub(crate) fn new(stream: S, secrets: Arc<Secrets>, target: Target) -> Self {
        Self {
            stream,
            scanner: LeakScanner::new(secrets, target, Transport::Encrypted),
            leaked: Arc::default(),
        }
    }

    /// Set once a placeholder was found.
    pub(crate) fn leaked(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.leaked)
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for LeakScanStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for LeakScanStream<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        if let Err(refusal) = self.scanner.check(data) {
            self.leaked.store(true, Ordering::Relaxed);
            return Poll::Ready(Err(io::Error::other(refusal.reason)));
        }
        let written = ready!(Pin::new(&mut self.stream).poll_write(cx, data))?;
        self.scanner.remember(&data[..written]);
        Poll::Ready(Ok(written))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
