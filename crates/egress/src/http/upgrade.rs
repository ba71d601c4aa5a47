//! A connection that was upgraded to another protocol such as WebSocket: forwards bytes in both directions and masks
//! secret values in what the server sends.

use bytes::{Bytes, BytesMut};
use hyper::header::HeaderValue;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, copy, split};

use crate::refusal::ReasonCode;
use crate::secrets::RedactedStream;

/// The size of one read.
const PIECE_BYTES: usize = 16 * 1024;

/// The two ends of an upgraded connection.
pub(crate) struct Upgrade {
    pub(crate) client: OnUpgrade,
    pub(crate) server: OnUpgrade,
    pub(crate) is_web_socket: bool,
}

/// Whether the requested protocol is WebSocket.
pub(crate) fn is_web_socket(protocol: &HeaderValue) -> bool {
    protocol.as_bytes().eq_ignore_ascii_case(b"websocket")
}

impl Upgrade {
    /// Forwards bytes until both ends have closed or one fails. Returns how it ended.
    pub(crate) async fn run(self, redactor: RedactedStream) -> (Option<ReasonCode>, String) {
        let (client, server) = match (self.client.await, self.server.await) {
            (Ok(client), Ok(server)) => (TokioIo::new(client), TokioIo::new(server)),
            (Err(error), _) | (_, Err(error)) => return (None, format!("broken: {error}")),
        };
        let (mut from_client, mut to_client) = split(client);
        let (mut from_server, mut to_server) = split(server);
        let frames = self.is_web_socket.then(Frames::default);
        let up = async {
            copy(&mut from_client, &mut to_server).await?;
            to_server.shutdown().await
        };
        let down = async {
            forward_redacted(&mut from_server, &mut to_client, redactor, frames).await?;
            to_client.shutdown().await
        };
        match tokio::try_join!(up, down) {
            Ok(_) => (None, "closed by both ends".into()),
            Err(error) => (None, format!("broken: {error}")),
        }
    }
}

/// Forwards bytes with values masked. Bytes that may begin a value are held back only until the end of the frame:
/// the next frame may take a while, and the client waits for this one.
async fn forward_redacted(
    from: &mut (impl AsyncRead + Unpin),
    to: &mut (impl AsyncWrite + Unpin),
    mut redactor: RedactedStream,
    mut frames: Option<Frames>,
) -> std::io::Result<()> {
    let mut piece = BytesMut::with_capacity(PIECE_BYTES);
    while from.read_buf(&mut piece).await? > 0 {
        let data: Bytes = piece.split().freeze();
        let is_whole = frames.as_mut().is_none_or(|frames| frames.pass(&data));
        to.write_all(&redactor.push(data)).await?;
        if is_whole {
            to.write_all(&redactor.finish()).await?;
        }
        to.flush().await?;
        piece.reserve(PIECE_BYTES);
    }
    to.write_all(&redactor.finish()).await
}

/// Tracks frame boundaries of a WebSocket. A server's frames are not masked.
#[derive(Debug, Default)]
struct Frames {
    /// The part of the frame header received so far.
    head: Vec<u8>,
    /// How many bytes of the frame's payload still follow.
    left: u64,
}

impl Frames {
    /// Processes the next bytes. Returns whether a frame ends with them.
    fn pass(&mut self, mut data: &[u8]) -> bool {
        while !data.is_empty() {
            if self.left > 0 {
                let taken = usize::try_from(self.left).unwrap_or(usize::MAX).min(data.len());
                self.left -= taken as u64;
                data = &data[taken..];
                continue;
            }
            self.head.push(data[0]);
            data = &data[1..];
            if let Some(length) = length_of(&self.head) {
                self.left = length;
                self.head.clear();
            }
        }
        self.left == 0 && self.head.is_empty()
    }
}

/// The number of bytes after a complete frame header: the payload, and the mask if a server sends one anyway.
fn length_of(head: &[u8]) -> Option<u64> {
    let second = *head.get(1)?;
    let mask = if second & 0x80 == 0 { 0 } else { 4 };
    let length = match second & 0x7f {
        126 => u64::from(u16::from_be_bytes(head.get(2..4)?.try_into().ok()?)),
        127 => u64::from_be_bytes(head.get(2..10)?.try_into().ok()?),
        short => u64::from(short),
    };
    Some(length.saturating_add(mask))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn frame(length: usize) -> Vec<u8> {
        let mut bytes = vec![0x81];
        match length {
            0..126 => bytes.push(u8::try_from(length).unwrap()),
            126..65_536 => {
                bytes.push(126);
                bytes.extend(u16::try_from(length).unwrap().to_be_bytes());
            }
            _ => {
                bytes.push(127);
                bytes.extend((length as u64).to_be_bytes());
            }
        }
        bytes.extend(vec![b'x'; length]);
        bytes
    }

    proptest! {
        #[test]
        fn frame_ends_are_found_in_any_fragmentation(
            lengths in proptest::collection::vec(prop_oneof![0usize..200, 60_000usize..70_000], 1..5), cut in any::<prop::sample::Index>(),
        ) {
            let frames: Vec<Vec<u8>> = lengths.iter().map(|length| frame(*length)).collect();
            let whole = frames.concat();
            let cut = cut.index(whole.len());
            let ends: Vec<usize> = frames.iter().scan(0, |at, frame| { *at += frame.len(); Some(*at) }).collect();
            let mut reader = Frames::default();
            prop_assert_eq!(reader.pass(&whole[..cut]), cut == 0 || ends.contains(&cut));
            prop_assert!(reader.pass(&whole[cut..]));
        }
    }
}
