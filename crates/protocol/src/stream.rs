//! One stream of the link: messages, raw data and output in frames, or plain bytes after [`MessageStream::into_raw`].

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Bytes, BytesMut};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio_util::compat::{Compat, FuturesAsyncReadCompatExt};

use crate::error::ProtocolError;
use crate::exec::OutputChunk;
use crate::frame::{self, Frame, FrameKind, MAX_MESSAGE_BYTES, MAX_PAYLOAD_BYTES};

/// A byte stream that can carry a link, or one that a link carries.
pub trait ByteStream: AsyncRead + AsyncWrite + Send + Unpin + 'static {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin + 'static> ByteStream for T {}

/// What arrived on a stream.
#[derive(Debug)]
pub enum Incoming {
    /// A complete JSON message.
    Message(Bytes),
    /// Raw data.
    Data(Bytes),
    /// The end of raw data.
    DataEnd,
    Output(OutputChunk),
    /// The other side has closed the stream.
    Closed,
}

/// One stream of a link, for frames.
pub struct MessageStream {
    inner: Compat<yamux::Stream>,
    received: BytesMut,
    parts: BytesMut,
    outgoing: BytesMut,
}

impl MessageStream {
    pub(crate) fn new(stream: yamux::Stream) -> Self {
        Self {
            inner: stream.compat(),
            received: BytesMut::new(),
            parts: BytesMut::new(),
            outgoing: BytesMut::new(),
        }
    }

    /// Sends a message.
    ///
    /// # Errors
    /// The message is too large, or the link is broken.
    pub async fn send<T: Serialize + Sync>(&mut self, message: &T) -> Result<(), ProtocolError> {
        let json = serde_json::to_vec(message).map_err(ProtocolError::Encode)?;
        if json.len() > MAX_MESSAGE_BYTES {
            return Err(ProtocolError::TooLarge {
                what: "message",
                size: json.len(),
                limit: MAX_MESSAGE_BYTES,
            });
        }
        let mut chunks = json.chunks(MAX_PAYLOAD_BYTES).peekable();
        while let Some(chunk) = chunks.next() {
            let kind = if chunks.peek().is_some() { FrameKind::MessagePart } else { FrameKind::MessageEnd };
            Frame::encode(kind, chunk, &mut self.outgoing);
            self.flush_outgoing().await?;
        }
        Ok(())
    }

    /// Sends raw data, split into frames.
    pub async fn send_data(&mut self, data: &[u8]) -> Result<(), ProtocolError> {
        for chunk in data.chunks(MAX_PAYLOAD_BYTES) {
            Frame::encode(FrameKind::Data, chunk, &mut self.outgoing);
            self.flush_outgoing().await?;
        }
        Ok(())
    }

    /// Marks the end of raw data.
    pub async fn send_data_end(&mut self) -> Result<(), ProtocolError> {
        Frame::encode(FrameKind::DataEnd, &[], &mut self.outgoing);
        self.flush_outgoing().await
    }

    /// Sends output of a process.
    pub async fn send_output(&mut self, chunk: &OutputChunk) -> Result<(), ProtocolError> {
        frame::encode_output(chunk, &mut self.outgoing);
        self.flush_outgoing().await
    }

    async fn flush_outgoing(&mut self) -> Result<(), ProtocolError> {
        self.inner.write_all_buf(&mut self.outgoing).await?;
        self.inner.flush().await?;
        Ok(())
    }

    /// Waits for the next frame or message. Cancel safe: bytes already read stay buffered.
    ///
    /// # Errors
    /// The link is broken or the other side violated the protocol.
    pub async fn receive(&mut self) -> Result<Incoming, ProtocolError> {
        loop {
            while let Some(frame) = Frame::decode(&mut self.received)? {
                match frame.kind {
                    FrameKind::MessagePart | FrameKind::MessageEnd => {
                        let size = self.parts.len() + frame.payload.len();
                        if size > MAX_MESSAGE_BYTES {
                            return Err(ProtocolError::TooLarge {
                                what: "message",
                                size,
                                limit: MAX_MESSAGE_BYTES,
                            });
                        }
                        if frame.kind == FrameKind::MessageEnd && self.parts.is_empty() {
                            return Ok(Incoming::Message(frame.payload));
                        }
                        self.parts.extend_from_slice(&frame.payload);
                        if frame.kind == FrameKind::MessageEnd {
                            return Ok(Incoming::Message(std::mem::take(&mut self.parts).freeze()));
                        }
                    }
                    FrameKind::Data => return Ok(Incoming::Data(frame.payload)),
                    FrameKind::DataEnd => return Ok(Incoming::DataEnd),
                    FrameKind::Output => return Ok(Incoming::Output(frame::decode_output(frame.payload)?)),
                }
            }
            if self.inner.read_buf(&mut self.received).await? == 0 {
                return if self.received.is_empty() && self.parts.is_empty() {
                    Ok(Incoming::Closed)
                } else {
                    Err(ProtocolError::Closed)
                };
            }
        }
    }

    /// Waits for a message of type `T`.
    ///
    /// # Errors
    /// The link is broken, or something else arrived.
    pub async fn receive_message<T: DeserializeOwned>(&mut self) -> Result<T, ProtocolError> {
        match self.receive().await? {
            Incoming::Message(bytes) => decode(&bytes),
            Incoming::Closed => Err(ProtocolError::Closed),
            _ => Err(ProtocolError::Unexpected("data where a message was expected".into())),
        }
    }

    /// Closes this side's half of the stream. The other side reads everything sent before it sees the end.
    pub async fn close(&mut self) -> Result<(), ProtocolError> {
        self.inner.shutdown().await?;
        Ok(())
    }

    /// Turns the stream into plain bytes. Bytes that are already buffered come first.
    #[must_use]
    pub fn into_raw(self) -> RawStream {
        RawStream { inner: self.inner, ahead: self.received }
    }
}

pub(crate) fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, ProtocolError> {
    serde_json::from_slice(bytes).map_err(ProtocolError::Decode)
}

impl Incoming {
    /// Decodes a message of type `T`.
    ///
    /// # Errors
    /// `self` is not a message of that type.
    pub fn into_message<T: DeserializeOwned>(self) -> Result<T, ProtocolError> {
        match self {
            Self::Message(bytes) => decode(&bytes),
            Self::Closed => Err(ProtocolError::Closed),
            _ => Err(ProtocolError::Unexpected("data where a message was expected".into())),
        }
    }
}

/// A stream of a link, as plain bytes.
pub struct RawStream {
    inner: Compat<yamux::Stream>,
    ahead: BytesMut,
}

impl AsyncRead for RawStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if !self.ahead.is_empty() {
            let count = self.ahead.len().min(buf.remaining());
            buf.put_slice(&self.ahead.split_to(count));
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut self.inner).poll_read(cx, buf)
    }
}

impl AsyncWrite for RawStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}
