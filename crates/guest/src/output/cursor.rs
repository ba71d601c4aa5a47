//! Reads stored output: a follower's position, and the next chunk or gap for it.

use std::io::{self, Read};
use std::os::unix::fs::FileExt;

use bytes::Bytes;
use protocol::frame::MAX_OUTPUT_BYTES;
use protocol::{OutputChunk, OutputStream};

use super::store::{OutputStore, RECORD_HEADER_BYTES, Region, Segment};

/// Which chunks a follower may read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reach {
    /// Only those of the head.
    Head,
    /// All that are stored.
    All,
}

/// The next item for a follower.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Next {
    Chunk(OutputChunk),
    /// Chunks that are no longer available.
    Gap {
        /// First missing number.
        from_sequence: u64,
        /// First number after the gap.
        to_sequence: u64,
        /// Number of missing bytes.
        bytes: u64,
    },
    /// Nothing within reach for now.
    Nothing,
}

/// A position in the output of a call.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Position {
    /// Number of bytes before it.
    pub(crate) bytes: u64,
    /// Number of chunks before it.
    pub(crate) sequence: u64,
}

/// The position of a follower.
#[derive(Debug, Default)]
pub(crate) struct Cursor {
    sequence: u64,
    /// Output bytes before `sequence`, once known.
    byte: Option<u64>,
    reading: Option<Reading>,
}

/// Records read ahead from one segment.
#[derive(Debug)]
struct Reading {
    segment: u64,
    /// Offset of `block` in the slot.
    offset: u64,
    /// Number of the first record in `block`.
    sequence: u64,
    /// Output bytes before that record.
    byte: u64,
    block: Bytes,
}

impl Cursor {
    /// A cursor whose next chunk is `sequence`.
    pub(crate) fn at(sequence: u64) -> Self {
        Self { sequence, ..Self::default() }
    }

    /// The number of the next chunk.
    pub(crate) fn sequence(&self) -> u64 {
        self.sequence
    }

    /// The position in bytes and chunks. The bytes are 0 while unknown.
    pub(crate) fn position(&self) -> Position {
        Position { bytes: self.byte.unwrap_or(0), sequence: self.sequence }
    }
}

impl OutputStore {
    /// Returns the next item and advances the cursor.
    pub(crate) fn next(&self, cursor: &mut Cursor, reach: Reach) -> Next {
        if cursor.sequence >= self.next_sequence {
            return Next::Nothing;
        }
        let Some(segment) = self.segments.iter().find(|segment| segment.next_sequence > cursor.sequence)
        else {
            // The remaining chunks could not be written or were forgotten.
            return if reach == Reach::All {
                self.skip(cursor, self.next_sequence, self.total_bytes)
            } else {
                Next::Nothing
            };
        };
        if reach == Reach::Head && segment.region == Region::Tail {
            return Next::Nothing;
        }
        if segment.first_sequence > cursor.sequence {
            return self.skip(cursor, segment.first_sequence, segment.first_byte);
        }
        match self.read(segment, cursor) {
            Ok(chunk) => {
                cursor.sequence += 1;
                Next::Chunk(chunk)
            }
            Err(_) => self.skip(cursor, segment.next_sequence, segment.first_byte + segment.data_bytes),
        }
    }

    fn skip(&self, cursor: &mut Cursor, to_sequence: u64, to_byte: u64) -> Next {
        // A follower that starts inside a gap is sent the byte count of the whole gap.
        let from_byte = cursor.byte.unwrap_or_else(|| {
            let before = self.segments.iter().rev().find(|segment| segment.next_sequence <= cursor.sequence);
            before.map_or(0, |segment| segment.first_byte + segment.data_bytes)
        });
        let gap = Next::Gap {
            from_sequence: cursor.sequence,
            to_sequence,
            bytes: to_byte.saturating_sub(from_byte),
        };
        *cursor = Cursor { sequence: to_sequence, byte: Some(to_byte), reading: None };
        gap
    }

    /// Reads the record at the cursor from the segment that contains it.
    fn read(&self, segment: &Segment, cursor: &mut Cursor) -> io::Result<OutputChunk> {
        let mut reading = match cursor.reading.take() {
            Some(reading) if reading.segment == segment.number => reading,
            _ => Reading {
                segment: segment.number,
                offset: segment.start,
                sequence: segment.first_sequence,
                byte: segment.first_byte,
                block: Bytes::new(),
            },
        };
        loop {
            let Some((stream, bytes)) = take_record(&mut reading)? else {
                reading.block = self.read_block(segment, reading.offset)?;
                continue;
            };
            let sequence = reading.sequence;
            reading.sequence += 1;
            reading.byte += bytes.len() as u64;
            if sequence == cursor.sequence {
                cursor.byte = Some(reading.byte);
                cursor.reading = Some(reading);
                return Ok(OutputChunk { sequence, stream, bytes });
            }
        }
    }

    fn read_block(&self, segment: &Segment, offset: u64) -> io::Result<Bytes> {
        let left = usize::try_from(segment.end.saturating_sub(offset)).unwrap_or(0);
        let mut block = vec![0; left.min(RECORD_HEADER_BYTES + MAX_OUTPUT_BYTES)];
        if block.is_empty() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let at = segment.slot + offset;
        match (segment.region, &self.head, &self.tail) {
            (Region::Head, Some(file), _) | (Region::Tail, _, Some(file)) => {
                file.read_exact_at(&mut block, at)?
            }
            (Region::Head, None, _) => {
                let in_memory = usize::try_from(at).ok().and_then(|at| self.in_memory.bytes().get(at..));
                in_memory.ok_or(io::ErrorKind::NotFound)?.read_exact(&mut block)?;
            }
            (Region::Tail, _, None) => return Err(io::ErrorKind::NotFound.into()),
        }
        Ok(block.into())
    }
}

/// Takes the first record of the block. Returns `None` if it is incomplete.
fn take_record(reading: &mut Reading) -> io::Result<Option<(OutputStream, Bytes)>> {
    let [stream, high, low, ..] = reading.block[..] else { return Ok(None) };
    let end = RECORD_HEADER_BYTES + usize::from(u16::from_be_bytes([high, low]));
    if reading.block.len() < end {
        return Ok(None);
    }
    let stream = match stream {
        1 => OutputStream::Stdout,
        2 => OutputStream::Stderr,
        3 => OutputStream::Terminal,
        4 => OutputStream::Display,
        _ => return Err(io::ErrorKind::InvalidData.into()),
    };
    let record = reading.block.split_to(end);
    reading.offset += end as u64;
    Ok(Some((stream, record.slice(RECORD_HEADER_BYTES..))))
}
