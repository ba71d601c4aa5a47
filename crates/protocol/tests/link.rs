//! How links end and how that affects pending reads.

use std::io::{Error, ErrorKind, Result};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::BytesMut;
use protocol::frame::{Frame, FrameKind};
use protocol::{Incoming, Link, Reply, Side};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// A generous limit: a regression would wait forever.
const TIMEOUT: Duration = Duration::from_secs(60);

#[tokio::test]
async fn closing_a_link_wakes_readers_on_both_sides() {
    let (ours, theirs) = tokio::io::duplex(64 * 1024);
    let (host, _host_streams) = Link::start(ours, Side::Host);
    let (guest, mut guest_streams) = Link::start(theirs, Side::Guest);
    let mut asking = host.open().await.unwrap();
    asking.send_data(b"the beginning").await.unwrap();
    let mut serving = guest_streams.next().await.unwrap();
    assert!(matches!(serving.receive().await, Ok(Incoming::Data(bytes)) if bytes == "the beginning"));
    let reading = tokio::spawn(async move { serving.receive().await });
    // Give the task a chance to wait for more data.
    tokio::task::yield_now().await;
    guest.close();
    let result = tokio::time::timeout(TIMEOUT, reading).await.expect("it waits for ever").unwrap();
    assert!(matches!(result, Ok(Incoming::Closed) | Err(_)), "{result:?}");
    let other = tokio::time::timeout(TIMEOUT, asking.receive()).await.expect("the other side waits for ever");
    assert!(matches!(other, Ok(Incoming::Closed) | Err(_)), "{other:?}");
    host.closed().await;
}

#[tokio::test]
async fn data_sent_before_close_arrives() {
    let (ours, theirs) = tokio::io::duplex(64 * 1024);
    let (host, _host_streams) = Link::start(ours, Side::Host);
    let (_guest, mut guest_streams) = Link::start(theirs, Side::Guest);
    let mut asking = host.open().await.unwrap();
    asking.send_data(b"the last words").await.unwrap();
    host.close();
    let mut serving = guest_streams.next().await.unwrap();
    assert!(matches!(serving.receive().await, Ok(Incoming::Data(bytes)) if bytes == "the last words"));
}

/// A peer that sent data and then closed the connection. The data becomes readable only after a write has failed.
struct ClosedPeer {
    sent: Vec<u8>,
    has_write_failed: bool,
}

impl AsyncRead for ClosedPeer {
    fn poll_read(mut self: Pin<&mut Self>, _: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<Result<()>> {
        if !self.has_write_failed {
            return Poll::Pending;
        }
        let count = self.sent.len().min(into.remaining());
        into.put_slice(&self.sent.drain(..count).collect::<Vec<_>>());
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for ClosedPeer {
    fn poll_write(mut self: Pin<&mut Self>, _: &mut Context<'_>, _: &[u8]) -> Poll<Result<usize>> {
        self.has_write_failed = true;
        Poll::Ready(Err(Error::from(ErrorKind::BrokenPipe)))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<()>> {
        Poll::Ready(Ok(()))
    }
}

#[tokio::test]
async fn refusal_is_read_after_the_peer_closed() {
    let refusal = serde_json::to_vec(&Reply::Refused { message: "too old".into() }).unwrap();
    let mut message = BytesMut::new();
    Frame::encode(FrameKind::MessageEnd, &refusal, &mut message);
    // A yamux header: version 0, type data, flags ACK and FIN, stream 1, then the length.
    let mut sent = vec![0, 0, 0, 6, 0, 0, 0, 1];
    sent.extend(u32::try_from(message.len()).unwrap().to_be_bytes());
    sent.extend_from_slice(&message);
    let (link, _incoming) = Link::start(ClosedPeer { sent, has_write_failed: false }, Side::Host);
    let mut stream = link.open().await.unwrap();
    let reply = stream.receive_message::<Reply>().await;
    assert!(matches!(&reply, Ok(Reply::Refused { message }) if message == "too old"), "{reply:?}");
}
