//! A connection with time limits.
//!
//! A client that neither reads its response nor sends anything is disconnected after a while. A client that still
//! sends when the response is complete is read from for a moment: closing at once would make its TCP stack discard
//! the response.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};
use tokio_util::sync::CancellationToken;

use super::admission::Slot;

/// How long to keep reading after the last response.
const LINGER: Duration = Duration::from_secs(1);
/// How much to read and discard. Many clients read the response only after they have sent everything.
const LINGER_BYTES: usize = 128 * 1024 * 1024;

/// A stream whose writes fail if the peer neither reads nor sends anything for `stall`. A peer that is slow to read
/// shows by sending something that it is still there.
pub(crate) struct BoundedStream<T> {
    inner: T,
    stall: Duration,
    /// Runs while a write is blocked.
    stalled: Option<Pin<Box<Sleep>>>,
    closing: Option<Lingering>,
    /// Cancelled when the server shuts down. Then the stream does not linger.
    shutdown: CancellationToken,
    /// Records whether a write is blocked.
    slot: Option<Arc<Slot>>,
}

struct Lingering {
    until: Pin<Box<Sleep>>,
    bytes_left: usize,
}

impl<T> BoundedStream<T> {
    pub(crate) fn new(inner: T, stall: Duration, shutdown: CancellationToken) -> Self {
        Self { inner, stall, stalled: None, closing: None, shutdown, slot: None }
    }

    /// Reports blocked writes to the slot of the connection.
    pub(crate) fn with_slot(self, slot: Arc<Slot>) -> Self {
        Self { slot: Some(slot), ..self }
    }

    fn watch<R>(&mut self, context: &mut Context<'_>, outcome: Poll<io::Result<R>>) -> Poll<io::Result<R>> {
        if let Some(slot) = &self.slot {
            slot.set_writing(outcome.is_pending());
        }
        if outcome.is_ready() {
            self.stalled = None;
            return outcome;
        }
        let stall = self.stall;
        let timer = self.stalled.get_or_insert_with(|| Box::pin(tokio::time::sleep(stall)));
        ready!(timer.as_mut().poll(context));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client takes nothing of its answer")))
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for BoundedStream<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let outcome = Pin::new(&mut self.inner).poll_read(context, buffer);
        let stall = self.stall;
        if let Some(stalled) = self.stalled.as_mut().filter(|_| buffer.filled().len() > before) {
            // The reset timer still wakes the task that waits to write.
            stalled.as_mut().reset(Instant::now() + stall);
        }
        outcome
    }
}

impl<T: AsyncRead + AsyncWrite + Unpin> AsyncWrite for BoundedStream<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let outcome = Pin::new(&mut self.inner).poll_write(context, bytes);
        self.watch(context, outcome)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let outcome = Pin::new(&mut self.inner).poll_write_vectored(context, pieces);
        self.watch(context, outcome)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let outcome = Pin::new(&mut self.inner).poll_flush(context);
        self.watch(context, outcome)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if this.closing.is_none() {
            ready!(Pin::new(&mut this.inner).poll_shutdown(context))?;
        }
        if this.shutdown.is_cancelled() {
            return Poll::Ready(Ok(()));
        }
        let closing = this.closing.get_or_insert_with(|| Lingering {
            until: Box::pin(tokio::time::sleep_until(Instant::now() + LINGER)),
            bytes_left: LINGER_BYTES,
        });
        let mut scratch = [0; 16 * 1024];
        loop {
            if closing.until.as_mut().poll(context).is_ready() {
                return Poll::Ready(Ok(()));
            }
            let mut buffer = ReadBuf::new(&mut scratch);
            let outcome = ready!(Pin::new(&mut this.inner).poll_read(context, &mut buffer));
            let read = buffer.filled().len();
            if outcome.is_err() || read == 0 || read >= closing.bytes_left {
                return Poll::Ready(Ok(()));
            }
            closing.bytes_left -= read;
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn stalled_client_is_disconnected() {
        let (ours, _theirs) = duplex(16);
        let mut stream = BoundedStream::new(ours, Duration::from_secs(60), CancellationToken::new());
        let error = stream.write_all(&[0; 64]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }

    #[tokio::test(start_paused = true)]
    async fn stalled_client_that_sends_data_is_kept() {
        let (ours, mut theirs) = duplex(16);
        let stream = BoundedStream::new(ours, Duration::from_secs(60), CancellationToken::new());
        let (mut reader, mut writer) = tokio::io::split(stream);
        let begun = Instant::now();
        let sender = tokio::spawn(async move {
            for _ in 0..10 {
                tokio::time::sleep(Duration::from_secs(50)).await;
                theirs.write_all(b"here").await.unwrap();
            }
            theirs
        });
        let receiver =
            tokio::spawn(async move { tokio::io::copy(&mut reader, &mut tokio::io::sink()).await });
        let error = writer.write_all(&[0; 64]).await.unwrap_err();
        assert_eq!((error.kind(), begun.elapsed().as_secs()), (io::ErrorKind::TimedOut, 560));
        drop(sender.await.unwrap());
        receiver.abort();
    }

    #[tokio::test(start_paused = true)]
    async fn slow_client_is_kept() {
        let (ours, mut theirs) = duplex(16);
        let mut stream = BoundedStream::new(ours, Duration::from_secs(60), CancellationToken::new());
        let reader = tokio::spawn(async move {
            let mut piece = [0; 16];
            for _ in 0..4 {
                tokio::time::sleep(Duration::from_secs(50)).await;
                theirs.read_exact(&mut piece).await.unwrap();
            }
        });
        stream.write_all(&[0; 64]).await.unwrap();
        reader.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn client_that_still_sends_can_read_the_response() {
        let (ours, mut theirs) = duplex(16);
        let mut stream = BoundedStream::new(ours, Duration::from_secs(60), CancellationToken::new());
        let client = tokio::spawn(async move {
            theirs.write_all(&[1; 4096]).await.unwrap();
            let mut answer = String::new();
            theirs.read_to_string(&mut answer).await.unwrap();
            answer
        });
        stream.write_all(b"no").await.unwrap();
        stream.shutdown().await.unwrap();
        assert_eq!(client.await.unwrap(), "no");
    }

    #[tokio::test(start_paused = true)]
    async fn lingering_ends_after_a_time_limit() {
        let (ours, _theirs) = duplex(16);
        let mut stream = BoundedStream::new(ours, Duration::from_secs(60), CancellationToken::new());
        stream.shutdown().await.unwrap();
    }
}
