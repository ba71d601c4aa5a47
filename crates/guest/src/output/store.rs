//! Takes output in: segments of the head, then segments of the tail in turn.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::{self, IoSlice};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use bytes::Bytes;
use protocol::OutputStream;
use protocol::frame::MAX_OUTPUT_BYTES;

use crate::pace::Position;

use super::cursor::{Cursor, Next, Reach};
use super::early::{Allowance, Early};

/// Stream (one byte) and length (two bytes) before the bytes of a record.
pub(super) const RECORD_HEADER_BYTES: usize = 3;

/// The most pieces that wait for space; a reader that has lost its patience drops what comes then.
const MAX_WAITING: usize = 16;

/// Sizes of a store; smaller ones serve tests.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shape {
    /// Output bytes in one segment.
    pub(crate) segment_bytes: usize,
    /// Bytes for record headers in one segment: bounds the file when a process prints byte by byte.
    pub(crate) header_bytes: usize,
    /// Segments of the head.
    pub(crate) head_segments: usize,
    /// Segments of the tail; one more is in use, since a whole segment is given up at a time.
    pub(crate) tail_segments: usize,
}

/// 8 MiB of head and 8 MiB of tail. A chunk is never cut, so each segment has room for one more.
pub(crate) const FULL_SHAPE: Shape = Shape {
    segment_bytes: 1024 * 1024 + MAX_OUTPUT_BYTES,
    header_bytes: 128 * 1024,
    head_segments: 8,
    tail_segments: 8,
};

impl Shape {
    pub(super) fn slot_bytes(&self) -> u64 {
        (self.segment_bytes + self.header_bytes) as u64
    }

    fn tail_bytes(&self) -> u64 {
        (self.segment_bytes * self.tail_segments) as u64
    }
}

/// What became of a piece of output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stored {
    /// It is written, or counted as dropped.
    Settled,
    /// The host's disk is full.
    NoSpace,
}

/// Which file a segment is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    Head,
    Tail,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Segment {
    /// Counts all segments of the store.
    pub(super) number: u64,
    pub(super) place: Place,
    /// Where its slot starts in the file.
    pub(super) slot: u64,
    /// Where the first wanted record starts in the slot.
    pub(super) start: u64,
    /// Where the next record goes in the slot.
    pub(super) end: u64,
    records: usize,
    pub(super) first_sequence: u64,
    pub(super) next_sequence: u64,
    /// Output bytes before its first record.
    pub(super) first_byte: u64,
    pub(super) data_bytes: u64,
}

/// The output of one call.
#[derive(Debug)]
pub(crate) struct OutputStore {
    shape: Shape,
    directory: PathBuf,
    /// What comes before `head` is made, and is written to it then.
    pub(super) early: Early,
    pub(super) head: Option<File>,
    pub(super) tail: Option<File>,
    pub(super) segments: VecDeque<Segment>,
    /// Whether the last segment takes more records.
    is_open: bool,
    segments_made: u64,
    pub(super) total_bytes: u64,
    total_lines: u64,
    pub(super) next_sequence: u64,
    /// What did not fit the host's disk and waits for space.
    waiting: VecDeque<(OutputStream, Bytes)>,
}

impl OutputStore {
    /// An empty store with its files in a directory; they are made when more is printed than there may be in memory.
    pub(crate) fn new(directory: PathBuf, shape: Shape, allowance: Allowance) -> Self {
        Self {
            shape,
            directory,
            early: Early::new(allowance),
            head: None,
            tail: None,
            segments: VecDeque::new(),
            is_open: false,
            segments_made: 0,
            total_bytes: 0,
            total_lines: 0,
            next_sequence: 0,
            waiting: VecDeque::new(),
        }
    }

    /// Where the output ends for now.
    pub(crate) fn end(&self) -> Position {
        Position { bytes: self.total_bytes, sequence: self.next_sequence }
    }

    /// Bytes of all streams so far.
    pub(crate) fn total_bytes(&self) -> u64 {
        self.total_bytes
    }

    /// Line ends of all streams so far.
    pub(crate) fn total_lines(&self) -> u64 {
        self.total_lines
    }

    /// The number after the newest chunk.
    pub(crate) fn next_sequence(&self) -> u64 {
        self.next_sequence
    }

    /// Bytes that are in neither head nor tail.
    pub(crate) fn dropped_bytes(&self) -> u64 {
        self.total_bytes - self.segments.iter().map(|segment| segment.data_bytes).sum::<u64>()
    }

    /// Takes output. What cannot be written is counted and dropped, but for lack of space: then it waits in memory, and
    /// whoever reads for this store stops while [`OutputStore::is_waiting_for_space`].
    pub(crate) fn append(&mut self, stream: OutputStream, bytes: &[u8]) {
        self.total_lines += count_lines(bytes);
        if self.waiting.len() >= MAX_WAITING {
            self.total_bytes += bytes.len() as u64;
            return;
        }
        if !self.waiting.is_empty() {
            self.waiting.push_back((stream, Bytes::copy_from_slice(bytes)));
            return;
        }
        self.append_pieces(stream, bytes);
    }

    /// Whether output waits for space on the host's disk; tries once more before it answers.
    pub(crate) fn is_waiting_for_space(&mut self) -> bool {
        for (stream, bytes) in std::mem::take(&mut self.waiting) {
            if self.waiting.is_empty() {
                self.append_pieces(stream, &bytes);
            } else {
                self.waiting.push_back((stream, bytes));
            }
        }
        !self.waiting.is_empty()
    }

    fn append_pieces(&mut self, stream: OutputStream, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let segment = self.segment_with_room();
            let room = self.shape.segment_bytes - usize::try_from(segment.data_bytes).unwrap_or(0);
            let (piece, rest) = bytes.split_at(bytes.len().min(room).min(MAX_OUTPUT_BYTES));
            if self.store(segment, stream, piece) == Stored::NoSpace {
                self.waiting.push_back((stream, Bytes::copy_from_slice(bytes)));
                return;
            }
            bytes = rest;
        }
    }

    fn store(&mut self, mut segment: Segment, stream: OutputStream, piece: &[u8]) -> Stored {
        let written = self.write(&segment, stream, piece);
        if written.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::StorageFull) {
            return Stored::NoSpace;
        }
        self.next_sequence += 1;
        self.total_bytes += piece.len() as u64;
        if written.is_err() {
            self.is_open = false;
            return Stored::Settled;
        }
        segment.end += (RECORD_HEADER_BYTES + piece.len()) as u64;
        segment.records += 1;
        segment.next_sequence = self.next_sequence;
        segment.data_bytes += piece.len() as u64;
        if self.is_open {
            self.segments.pop_back();
        }
        self.segments.push_back(segment);
        self.is_open = true;
        Stored::Settled
    }

    /// The last segment, or a new one; a new one is not in the list before it has a record.
    fn segment_with_room(&mut self) -> Segment {
        if self.is_open
            && let Some(last) = self.segments.back()
            && last.data_bytes < self.shape.segment_bytes as u64
            && (last.records + 1) * RECORD_HEADER_BYTES <= self.shape.header_bytes
        {
            return *last;
        }
        self.is_open = false;
        let place = self.next_place();
        let slot_number = match place {
            Place::Head => self.segments.len() as u64,
            Place::Tail => {
                self.make_room_in_tail();
                self.segments_made % (self.shape.tail_segments as u64 + 1)
            }
        };
        self.segments_made += 1;
        Segment {
            number: self.segments_made,
            place,
            slot: slot_number * self.shape.slot_bytes(),
            start: 0,
            end: 0,
            records: 0,
            first_sequence: self.next_sequence,
            next_sequence: self.next_sequence,
            first_byte: self.total_bytes,
            data_bytes: 0,
        }
    }

    fn next_place(&self) -> Place {
        let all_in_head = self.segments.back().is_none_or(|last| last.place == Place::Head);
        if all_in_head && self.segments.len() < self.shape.head_segments { Place::Head } else { Place::Tail }
    }

    fn tail_start(&self) -> usize {
        self.segments.iter().take_while(|segment| segment.place == Place::Head).count()
    }

    /// Gives up the oldest segment of the tail when the slot that comes next is still in use.
    fn make_room_in_tail(&mut self) {
        let start = self.tail_start();
        let slots = self.shape.tail_segments as u64 + 1;
        // Slots are used in turn, but a failed write may have skipped some: look at the slot itself.
        let slot = (self.segments_made % slots) * self.shape.slot_bytes();
        while self.segments.iter().skip(start).any(|segment| segment.slot == slot) {
            self.segments.remove(start);
        }
    }

    fn write(&mut self, segment: &Segment, stream: OutputStream, piece: &[u8]) -> io::Result<()> {
        let length = u16::try_from(piece.len()).map_err(io::Error::other)?.to_be_bytes();
        let header = [stream as u8, length[0], length[1]];
        let at = segment.slot + segment.end;
        let file = match segment.place {
            Place::Head if self.head.is_none() && self.early.add(at, &header, piece) => return Ok(()),
            Place::Head => self.head_file()?,
            Place::Tail => match &mut self.tail {
                Some(file) => file,
                tail => tail.insert(create(&self.directory, "tail")?),
            },
        };
        let parts = [IoSlice::new(&header), IoSlice::new(piece)];
        let written = rustix::io::pwritev(file, &parts, at)?;
        // A disk that fills up takes a part.
        if written == header.len() + piece.len() { Ok(()) } else { Err(io::ErrorKind::StorageFull.into()) }
    }

    /// The file of the head, with what was in memory before.
    fn head_file(&mut self) -> io::Result<&mut File> {
        match &mut self.head {
            Some(file) => Ok(file),
            head => {
                let file = create(&self.directory, "head")?;
                file.write_all_at(self.early.bytes(), 0)?;
                self.early.clear();
                Ok(head.insert(file))
            }
        }
    }

    /// Nothing more will come: gives up the oldest chunks beyond the size of the tail.
    pub(crate) fn seal(&mut self) {
        for (_, bytes) in std::mem::take(&mut self.waiting) {
            // The wait was in vain: counted as dropped.
            self.total_bytes += bytes.len() as u64;
            self.next_sequence += 1;
        }
        let start = self.tail_start();
        let mut kept: u64 = self.segments.iter().skip(start).map(|segment| segment.data_bytes).sum();
        while let Some(oldest) = self.segments.get(start).copied() {
            let excess = kept.saturating_sub(self.shape.tail_bytes());
            if excess == 0 {
                break;
            }
            kept -= oldest.data_bytes;
            if oldest.data_bytes <= excess {
                self.segments.remove(start);
                continue;
            }
            match self.without_front(oldest, excess) {
                Some(shorter) => self.segments[start] = shorter,
                None => drop(self.segments.remove(start)),
            }
            break;
        }
        self.is_open = false;
    }

    /// The segment without as many of its first records as hold the excess.
    fn without_front(&self, mut segment: Segment, excess: u64) -> Option<Segment> {
        let mut cursor = Cursor::at(segment.first_sequence);
        let enough = segment.first_byte + excess;
        while segment.first_byte < enough {
            let Next::Chunk(chunk) = self.next(&mut cursor, Reach::All) else { return None };
            let length = chunk.bytes.len() as u64;
            segment.start += RECORD_HEADER_BYTES as u64 + length;
            segment.first_sequence += 1;
            segment.first_byte += length;
            segment.data_bytes -= length;
        }
        (segment.data_bytes > 0).then_some(segment)
    }

    /// Drops all output but the counts.
    pub(crate) fn forget(&mut self) {
        self.segments.clear();
        self.is_open = false;
        self.early.clear();
        for (file, name) in [(self.head.take(), "head"), (self.tail.take(), "tail")] {
            if file.is_some() {
                let _ = std::fs::remove_file(self.directory.join(name));
            }
        }
    }
}

fn create(directory: &std::path::Path, name: &str) -> io::Result<File> {
    std::fs::create_dir_all(directory)?;
    OpenOptions::new().read(true).write(true).create(true).truncate(true).open(directory.join(name))
}

fn count_lines(bytes: &[u8]) -> u64 {
    // Sums of at most 255 bytes fit a byte, which the compiler turns into vector instructions.
    bytes
        .chunks(255)
        .map(|part| u64::from(part.iter().map(|byte| u8::from(*byte == b'\n')).sum::<u8>()))
        .sum()
}
