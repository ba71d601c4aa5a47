//! Counts a connection's bytes, throttles them to the job's rate limit and detects idle connections.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

use super::ledger::Ledger;

pub(crate) struct Meter {
    up: AtomicU64,
    down: AtomicU64,
    started: Instant,
    last_ms: AtomicU64,
}

impl Meter {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            up: AtomicU64::new(0),
            down: AtomicU64::new(0),
            started: Instant::now(),
            last_ms: AtomicU64::new(0),
        })
    }

    /// Bytes sent to the server and received from it.
    pub(crate) fn bytes(&self) -> (u64, u64) {
        (self.up.load(Ordering::Relaxed), self.down.load(Ordering::Relaxed))
    }

    /// Returns once no byte has passed for `limit`.
    pub(crate) async fn idle(&self, limit: Duration) {
        while !self.is_idle(limit) {
            tokio::time::sleep_until(self.last() + limit).await;
        }
    }

    /// Whether no byte has passed for `limit`.
    pub(crate) fn is_idle(&self, limit: Duration) -> bool {
        self.last() + limit <= Instant::now()
    }

    fn last(&self) -> Instant {
        self.started + Duration::from_millis(self.last_ms.load(Ordering::Relaxed))
    }

    fn count(&self, counter: &AtomicU64, bytes: usize) {
        if bytes == 0 {
            return;
        }
        counter.fetch_add(bytes as u64, Ordering::Relaxed);
        let now = u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.last_ms.store(now, Ordering::Relaxed);
    }
}

/// A stream to a server whose bytes are counted.
pub(crate) struct Metered<S> {
    stream: S,
    meter: Arc<Meter>,
    ledger: Arc<Ledger>,
    waiting: Option<Pin<Box<Sleep>>>,
}

impl<S> Metered<S> {
    pub(crate) fn new(stream: S, meter: Arc<Meter>, ledger: Arc<Ledger>) -> Self {
        Self { stream, meter, ledger, waiting: None }
    }

    /// Ready when the rate limit permits another byte.
    fn poll_rate(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            if let Some(waiting) = &mut self.waiting {
                ready!(waiting.as_mut().poll(cx));
                self.waiting = None;
            }
            match self.ledger.wait_until() {
                Some(until) => self.waiting = Some(Box::pin(tokio::time::sleep_until(until))),
                None => return Poll::Ready(()),
            }
        }
    }

    fn count(&self, counter: &AtomicU64, bytes: usize) {
        self.meter.count(counter, bytes);
        self.ledger.count(bytes);
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Metered<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        ready!(self.poll_rate(cx));
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(cx, buffer))?;
        self.count(&self.meter.down, buffer.filled().len() - before);
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Metered<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        ready!(self.poll_rate(cx));
        let written = ready!(Pin::new(&mut self.stream).poll_write(cx, data))?;
        self.count(&self.meter.up, written);
        Poll::Ready(Ok(written))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_rate(cx));
        let written = ready!(Pin::new(&mut self.stream).poll_write_vectored(cx, parts))?;
        self.count(&self.meter.up, written);
        Poll::Ready(Ok(written))
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
