//! Frames, the unit of transfer on a stream of the link.
//!
//! A frame has a kind (one byte), a length (four bytes, big endian) and a payload of at most 64 KiB. A longer JSON
//! message is split into several frames. Decoding does no I/O and checks the length before it allocates memory.

use bytes::{Buf, BufMut, Bytes, BytesMut};

use crate::error::ProtocolError;
use crate::exec::{OutputChunk, OutputStream};

/// Size of the frame header.
pub const HEADER_BYTES: usize = 5;
/// The longest payload of one frame.
pub const MAX_PAYLOAD_BYTES: usize = 64 * 1024;
/// The longest JSON message, in all its frames together.
pub const MAX_MESSAGE_BYTES: usize = 24 * 1024 * 1024;
/// Stream and sequence number, which precede the bytes of an output frame.
const OUTPUT_HEADER_BYTES: usize = 9;
/// The most output bytes that fit in one frame.
pub const MAX_OUTPUT_BYTES: usize = MAX_PAYLOAD_BYTES - OUTPUT_HEADER_BYTES;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum FrameKind {
    /// A part of a JSON message. More parts follow.
    MessagePart = 1,
    /// The last or only part of a JSON message.
    MessageEnd = 2,
    /// Raw bytes: file contents or standard input.
    Data = 3,
    /// The end of raw bytes.
    DataEnd = 4,
    /// Output of a process, with its stream and sequence number.
    Output = 5,
}

impl FrameKind {
    fn from_byte(byte: u8) -> Option<Self> {
        Some(match byte {
            1 => Self::MessagePart,
            2 => Self::MessageEnd,
            3 => Self::Data,
            4 => Self::DataEnd,
            5 => Self::Output,
            _ => return None,
        })
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    pub kind: FrameKind,
    /// At most [`MAX_PAYLOAD_BYTES`].
    pub payload: Bytes,
}

impl Frame {
    /// Appends a frame to `out`.
    pub fn encode(kind: FrameKind, payload: &[u8], out: &mut BytesMut) {
        debug_assert!(payload.len() <= MAX_PAYLOAD_BYTES);
        out.reserve(HEADER_BYTES + payload.len());
        out.put_u8(kind as u8);
        out.put_u32(u32::try_from(payload.len()).unwrap_or(u32::MAX));
        out.put_slice(payload);
    }

    /// Takes one frame from the front of `input`. Returns `None` if it is not complete yet.
    ///
    /// # Errors
    /// An unknown kind, or a length over the limit. The stream is then unusable.
    pub fn decode(input: &mut BytesMut) -> Result<Option<Self>, ProtocolError> {
        if input.len() < HEADER_BYTES {
            return Ok(None);
        }
        let kind = FrameKind::from_byte(input[0])
            .ok_or_else(|| ProtocolError::Unexpected(format!("a frame of unknown kind {}", input[0])))?;
        let length = u32::from_be_bytes([input[1], input[2], input[3], input[4]]) as usize;
        if length > MAX_PAYLOAD_BYTES {
            return Err(ProtocolError::TooLarge { what: "frame", size: length, limit: MAX_PAYLOAD_BYTES });
        }
        if input.len() < HEADER_BYTES + length {
            return Ok(None);
        }
        input.advance(HEADER_BYTES);
        Ok(Some(Self { kind, payload: input.split_to(length).freeze() }))
    }
}

/// Appends a chunk of output as one frame. `chunk.bytes` must not exceed [`MAX_OUTPUT_BYTES`].
pub fn encode_output(chunk: &OutputChunk, out: &mut BytesMut) {
    let mut payload = BytesMut::with_capacity(OUTPUT_HEADER_BYTES + chunk.bytes.len());
    payload.put_u8(chunk.stream as u8);
    payload.put_u64(chunk.sequence);
    payload.put_slice(&chunk.bytes);
    Frame::encode(FrameKind::Output, &payload, out);
}

/// Decodes the payload of an output frame.
///
/// # Errors
/// The payload is too short or names an unknown stream.
pub fn decode_output(mut payload: Bytes) -> Result<OutputChunk, ProtocolError> {
    if payload.len() < OUTPUT_HEADER_BYTES {
        return Err(ProtocolError::Unexpected(format!("an output frame of {} bytes", payload.len())));
    }
    let stream = match payload.get_u8() {
        1 => OutputStream::Stdout,
        2 => OutputStream::Stderr,
        3 => OutputStream::Terminal,
        4 => OutputStream::Display,
        other => return Err(ProtocolError::Unexpected(format!("output of unknown stream {other}"))),
    };
    let sequence = payload.get_u64();
    Ok(OutputChunk { sequence, stream, bytes: payload })
}

#[cfg(test)]
mod tests {
    use bytes::{Bytes, BytesMut};
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_length_over_the_limit_is_refused_before_its_bytes_arrive() {
        let mut input = BytesMut::from(&[3u8, 0xff, 0xff, 0xff, 0xff][..]);
        assert!(matches!(Frame::decode(&mut input), Err(ProtocolError::TooLarge { .. })));
    }

    #[test]
    fn an_unknown_kind_is_refused() {
        let mut input = BytesMut::from(&[9u8, 0, 0, 0, 0][..]);
        assert!(Frame::decode(&mut input).is_err());
    }

    proptest! {
        #[test]
        fn frames_are_decoded_from_arbitrary_pieces(payload in prop::collection::vec(any::<u8>(), 0..2000), cut in 0usize..2005) {
            let mut encoded = BytesMut::new();
            Frame::encode(FrameKind::Data, &payload, &mut encoded);
            let cut = cut.min(encoded.len());
            let tail = encoded.split_off(cut);
            let mut input = encoded;
            let early = Frame::decode(&mut input).unwrap();
            let frame = early.unwrap_or_else(|| {
                input.extend_from_slice(&tail);
                Frame::decode(&mut input).unwrap().unwrap()
            });
            prop_assert_eq!(frame.payload.as_ref(), payload.as_slice());
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let mut input = BytesMut::from(bytes.as_slice());
            while let Ok(Some(frame)) = Frame::decode(&mut input) {
                let _ = decode_output(frame.payload);
            }
        }

        #[test]
        fn output_round_trips(sequence in any::<u64>(), bytes in prop::collection::vec(any::<u8>(), 0..500)) {
            let chunk = OutputChunk { sequence, stream: OutputStream::Stderr, bytes: Bytes::from(bytes) };
            let mut encoded = BytesMut::new();
            encode_output(&chunk, &mut encoded);
            let frame = Frame::decode(&mut encoded).unwrap().unwrap();
            prop_assert_eq!(decode_output(frame.payload).unwrap(), chunk);
        }
    }
}
