//! A minimal client of ZMTP 3.0, ZeroMQ's wire protocol: one connection, no security mechanism, no reconnects.
//!
//! A kernel's frame can have any size. The guest keeps only the beginning and the end of a frame larger than
//! [`MAX_FRAME_BYTES`], so that a cell that prints 200 MB costs no more memory than that.

use std::io;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// The largest frame that is kept whole.
pub(crate) const MAX_FRAME_BYTES: u64 = 12 * 1024 * 1024;
/// How much of the beginning and of the end of a larger frame is kept.
const KEPT_BYTES: usize = 5 * 1024 * 1024;
/// How many frames of a message are kept. Binary buffers after the content are not needed.
const MAX_FRAMES: usize = 32;
const PIECE_BYTES: usize = 64 * 1024;

const GREETING_BYTES: usize = 64;
const MORE: u8 = 1;
const LONG: u8 = 2;
const COMMAND: u8 = 4;

/// A frame, or the parts kept of a large one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Frame {
    Whole(Vec<u8>),
    /// The frame was larger than [`MAX_FRAME_BYTES`].
    Cut {
        head: Vec<u8>,
        /// Number of bytes between `head` and `tail`.
        left_out: u64,
        tail: Vec<u8>,
    },
}

impl Frame {
    /// The bytes of a whole frame; empty if the frame was cut.
    pub(crate) fn bytes(&self) -> &[u8] {
        match self {
            Self::Whole(bytes) => bytes,
            Self::Cut { .. } => &[],
        }
    }
}

/// The socket type of the guest's end of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SocketType {
    /// Sends requests and receives replies asynchronously.
    Dealer,
    /// Receives all published messages.
    Subscriber,
}

impl SocketType {
    fn name(self) -> &'static [u8] {
        match self {
            Self::Dealer => b"DEALER",
            Self::Subscriber => b"SUB",
        }
    }
}

/// Performs the handshake. A subscriber also subscribes to everything. `identity` identifies the guest to the other
/// side.
pub(crate) async fn handshake<S: AsyncRead + AsyncWrite + Unpin>(
    stream: &mut S,
    socket: SocketType,
    identity: &[u8],
) -> io::Result<()> {
    let mut greeting = [0u8; GREETING_BYTES];
    greeting[0] = 0xff;
    greeting[9] = 0x7f;
    greeting[10] = 3;
    greeting[12..16].copy_from_slice(b"NULL");
    stream.write_all(&greeting).await?;
    let mut theirs = [0u8; GREETING_BYTES];
    stream.read_exact(&mut theirs).await?;
    if theirs[0] != 0xff || theirs[9] & 1 != 1 || theirs[10] < 3 || !theirs[12..].starts_with(b"NULL\0") {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "the other side does not speak ZMTP 3"));
    }
    let mut ready = b"\x05READY".to_vec();
    for (name, value) in [(&b"Socket-Type"[..], socket.name()), (b"Identity", identity)] {
        ready.push(u8::try_from(name.len()).unwrap_or(u8::MAX));
        ready.extend_from_slice(name);
        ready.extend_from_slice(&u32::try_from(value.len()).unwrap_or(u32::MAX).to_be_bytes());
        ready.extend_from_slice(value);
    }
    let mut out = Vec::new();
    encode_frame(COMMAND, &ready, &mut out);
    stream.write_all(&out).await?;
    let (flags, answer) = read_frame(stream).await?;
    if flags & COMMAND == 0 || !answer.bytes().starts_with(b"\x05READY") {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "the other side refuses the connection"));
    }
    if socket == SocketType::Subscriber {
        out.clear();
        // The byte 1 subscribes; the empty prefix matches everything.
        encode_frame(0, &[1], &mut out);
        stream.write_all(&out).await?;
    }
    stream.flush().await
}

/// Encodes a message for the wire.
pub(crate) fn encode_message(frames: &[&[u8]]) -> Vec<u8> {
    let mut out = Vec::with_capacity(frames.iter().map(|frame| frame.len() + 9).sum());
    for (index, frame) in frames.iter().enumerate() {
        encode_frame(if index + 1 < frames.len() { MORE } else { 0 }, frame, &mut out);
    }
    out
}

fn encode_frame(flags: u8, body: &[u8], out: &mut Vec<u8>) {
    match u8::try_from(body.len()) {
        Ok(length) => out.extend_from_slice(&[flags, length]),
        Err(_) => {
            out.push(flags | LONG);
            out.extend_from_slice(&(body.len() as u64).to_be_bytes());
        }
    }
    out.extend_from_slice(body);
}

/// Reads one message. Skips commands.
pub(crate) async fn read_message<R: AsyncRead + Unpin>(reader: &mut R) -> io::Result<Vec<Frame>> {
    let mut frames = Vec::new();
    loop {
        let (flags, frame) = read_frame(reader).await?;
        if flags & COMMAND != 0 {
            continue;
        }
        if frames.len() < MAX_FRAMES {
            frames.push(frame);
        }
        if flags & MORE == 0 {
            return Ok(frames);
        }
    }
}

async fn read_frame<R: AsyncRead + Unpin>(reader: &mut R) -> io::Result<(u8, Frame)> {
    let flags = reader.read_u8().await?;
    let length = if flags & LONG != 0 { reader.read_u64().await? } else { reader.read_u8().await?.into() };
    if length > MAX_FRAME_BYTES {
        return Ok((flags, read_cut(reader, length).await?));
    }
    let mut body = Vec::new();
    read_into(reader, length, &mut body).await?;
    Ok((flags, Frame::Whole(body)))
}

/// Reads without trusting the announced length: memory grows only with the bytes received.
async fn read_into<R: AsyncRead + Unpin>(reader: &mut R, length: u64, body: &mut Vec<u8>) -> io::Result<()> {
    let read = reader.take(length).read_to_end(body).await?;
    if read as u64 == length { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}

async fn read_cut<R: AsyncRead + Unpin>(reader: &mut R, length: u64) -> io::Result<Frame> {
    let mut head = Vec::new();
    read_into(reader, KEPT_BYTES as u64, &mut head).await?;
    let left_out = length - 2 * KEPT_BYTES as u64;
    let mut left = left_out;
    let mut piece = vec![0; PIECE_BYTES];
    while left > 0 {
        let most = usize::try_from(left).unwrap_or(PIECE_BYTES).min(PIECE_BYTES);
        let count = reader.read(piece.get_mut(..most).unwrap_or_default()).await?;
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        left -= count as u64;
    }
    let mut tail = Vec::new();
    read_into(reader, KEPT_BYTES as u64, &mut tail).await?;
    Ok(Frame::Cut { head, left_out, tail })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn run<T>(future: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
    }

    proptest! {
        #[test]
        fn a_message_survives_the_wire(frames in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..600), 1..6)) {
            let wire = encode_message(&frames.iter().map(Vec::as_slice).collect::<Vec<_>>());
            let read = run(read_message(&mut wire.as_slice())).unwrap();
            prop_assert_eq!(read, frames.into_iter().map(Frame::Whole).collect::<Vec<_>>());
        }

        #[test]
        fn garbage_is_an_error_without_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = run(read_message(&mut bytes.as_slice()));
        }
    }

    #[test]
    fn false_frame_length_allocates_no_memory() {
        let mut wire: &[u8] = &[LONG, 0, 0, 0, 0, 0, 0xbf, 0, 0, 1, 2, 3];
        assert_eq!(run(read_message(&mut wire)).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn huge_frame_keeps_its_beginning_and_end() {
        let mut body = vec![b'a'; 20 * 1024 * 1024];
        *body.last_mut().unwrap() = b'z';
        let wire = encode_message(&[&body]);
        let frames = run(read_message(&mut wire.as_slice())).unwrap();
        let [Frame::Cut { head, left_out, tail }] = frames.as_slice() else { panic!("not cut") };
        assert_eq!(head.len() as u64 + left_out + tail.len() as u64, body.len() as u64);
        assert_eq!((head.first(), tail.last()), (Some(&b'a'), Some(&b'z')));
    }

    #[test]
    fn handshake_and_subscription_succeed() {
        run(async {
            let (mut ours, mut theirs) = tokio::io::duplex(1024);
            let server = async {
                let mut greeting = [0u8; GREETING_BYTES];
                theirs.read_exact(&mut greeting).await.unwrap();
                theirs.write_all(&greeting).await.unwrap();
                let (flags, ready) = read_frame(&mut theirs).await.unwrap();
                assert_eq!(flags, COMMAND);
                let mut out = Vec::new();
                encode_frame(COMMAND, ready.bytes(), &mut out);
                theirs.write_all(&out).await.unwrap();
                read_frame(&mut theirs).await.unwrap().1
            };
            let (greeted, subscribed) =
                tokio::join!(handshake(&mut ours, SocketType::Subscriber, b"me"), server);
            greeted.unwrap();
            assert_eq!(subscribed, Frame::Whole(vec![1]));
        });
    }
}
