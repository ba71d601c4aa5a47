//! A write buffer that ignores flushes until the link's driver sends everything at once.
//!
//! yamux flushes every frame before it looks for the next one. A reply and the end of its stream would take two
//! system calls and wake the other side twice.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use futures::io::{AsyncRead, AsyncWrite, BufWriter};
use tokio_util::compat::{Compat, TokioAsyncReadCompatExt};

use crate::stream::ByteStream;

type Shared<T> = Arc<Mutex<BufWriter<Compat<T>>>>;

/// A byte stream that buffers writes, up to the size of the buffer, until [`Flusher::poll_send`] sends them.
pub(crate) struct DeferredFlush<T> {
    stream: Shared<T>,
}

/// The other handle of a [`DeferredFlush`]. Sends the buffered bytes.
pub(crate) struct Flusher<T> {
    stream: Shared<T>,
}

impl<T: ByteStream> DeferredFlush<T> {
    pub(crate) fn new(stream: T, buffer_bytes: usize) -> (Self, Flusher<T>) {
        let stream = Arc::new(Mutex::new(BufWriter::with_capacity(buffer_bytes, stream.compat())));
        (Self { stream: Arc::clone(&stream) }, Flusher { stream })
    }
}

impl<T: ByteStream> Flusher<T> {
    /// Sends the buffered bytes. Pending while the other side accepts no more; wakes the caller when it does.
    pub(crate) fn poll_send(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *lock(&self.stream)).poll_flush(cx)
    }
}

/// One task owns both handles, so the lock is never contended.
fn lock<T>(stream: &Shared<T>) -> MutexGuard<'_, BufWriter<Compat<T>>> {
    stream.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<T: ByteStream> AsyncRead for DeferredFlush<T> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut *lock(&self.stream)).poll_read(cx, buffer)
    }
}

impl<T: ByteStream> AsyncWrite for DeferredFlush<T> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut *lock(&self.stream)).poll_write(cx, bytes)
    }

    /// Does nothing: more writes may follow before [`Flusher::poll_send`].
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_close(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *lock(&self.stream)).poll_close(cx)
    }
}

#[cfg(test)]
mod tests {
    use futures::io::AsyncWriteExt;
    use tokio::io::AsyncReadExt;

    use super::*;

    #[tokio::test]
    async fn writes_are_buffered_until_poll_send() {
        let (ours, mut theirs) = tokio::io::duplex(64);
        let (mut deferred_flush, flusher) = DeferredFlush::new(ours, 16);
        for part in [&b"one "[..], b"two"] {
            deferred_flush.write_all(part).await.unwrap();
            deferred_flush.flush().await.unwrap();
        }
        let mut context = Context::from_waker(std::task::Waker::noop());
        let mut buffer = [0; 64];
        assert!(Box::pin(theirs.read(&mut buffer)).as_mut().poll(&mut context).is_pending());
        assert!(flusher.poll_send(&mut context).is_ready());
        assert_eq!(theirs.read(&mut buffer).await.unwrap(), 7);
        assert_eq!(&buffer[..7], b"one two");
        // A write larger than the buffer goes out immediately.
        deferred_flush.write_all(&[b'x'; 40]).await.unwrap();
        assert_eq!(theirs.read(&mut buffer).await.unwrap(), 40);
    }

    #[tokio::test]
    async fn poll_send_completes_once_the_peer_reads() {
        let (ours, mut theirs) = tokio::io::duplex(8);
        let (mut deferred_flush, flusher) = DeferredFlush::new(ours, 16);
        deferred_flush.write_all(b"twelve bytes").await.unwrap();
        let sent = tokio::spawn(std::future::poll_fn(move |cx| flusher.poll_send(cx)));
        let mut buffer = [0; 12];
        theirs.read_exact(&mut buffer).await.unwrap();
        assert_eq!(&buffer, b"twelve bytes");
        sent.await.unwrap().unwrap();
    }
}
