//! Writes output: first to the segments of the head, then to those of the tail in turn.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::{self, IoSlice};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use bytes::Bytes;
use protocol::OutputStream;
use protocol::frame::MAX_OUTPUT_BYTES;

use super::cursor::{Cursor, Next, Position, Reach};
use super::in_memory::{MemoryBudget, MemoryBuffer};

/// Stream (one byte) and length (two bytes), which precede the bytes of a record.
pub(super) const RECORD_HEADER_BYTES: usize = 3;

/// The most pieces that wait for disk space. When a reader stops waiting and the queue is full, further output is
/// dropped.
pub(super) const MAX_WAITING: usize = 16;

/// The sizes of a store. Tests use smaller ones.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StoreLimits {
    /// Output bytes per segment.
    pub(crate) segment_bytes: usize,
    /// Bytes for record headers per segment. Bounds the file if a process prints byte by byte.
    pub(crate) header_bytes: usize,
    /// Number of segments of the head.
    pub(crate) head_segments: usize,
    /// Number of segments of the tail. The file has one more, because a whole segment is dropped at a time.
    pub(crate) tail_segments: usize,
}

/// 8 MiB of head and 8 MiB of tail. Chunks are never split, so each segment has room for one more chunk.
pub(crate) const DEFAULT_LIMITS: StoreLimits = StoreLimits {
    segment_bytes: 1024 * 1024 + MAX_OUTPUT_BYTES,
    header_bytes: 128 * 1024,
    head_segments: 8,
    tail_segments: 8,
};

impl StoreLimits {
    pub(super) fn slot_bytes(&self) -> u64 {
        (self.segment_bytes + self.header_bytes) as u64
    }

    fn tail_bytes(&self) -> u64 {
        (self.segment_bytes * self.tail_segments) as u64
    }
}

/// The result of storing a piece of output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stored {
    /// The piece was written, or counted as dropped.
    Handled,
    /// The host's disk is full.
    NoSpace,
}

/// The file that contains a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Region {
    Head,
    Tail,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Segment {
    /// Sequence number among all segments of the store.
    pub(super) number: u64,
    pub(super) region: Region,
    /// Offset of the segment's slot in the file.
    pub(super) slot: u64,
    /// Offset of the first valid record in the slot.
    pub(super) start: u64,
    /// Offset of the next record in the slot.
    pub(super) end: u64,
    records: usize,
    pub(super) first_sequence: u64,
    pub(super) next_sequence: u64,
    /// Output bytes before the first record.
    pub(super) first_byte: u64,
    pub(super) data_bytes: u64,
}

#[derive(Debug)]
pub(crate) struct OutputStore {
    limits: StoreLimits,
    directory: PathBuf,
    /// The output before the `head` file exists. Creating the file moves it there.
    pub(super) in_memory: MemoryBuffer,
    pub(super) head: Option<File>,
    pub(super) tail: Option<File>,
    pub(super) segments: VecDeque<Segment>,
    /// Whether the last segment accepts more records.
    is_open: bool,
    segments_made: u64,
    pub(super) total_bytes: u64,
    total_lines: u64,
    pub(super) next_sequence: u64,
    /// Output that did not fit on the host's disk and waits for space.
    waiting: VecDeque<(OutputStream, Bytes)>,
    /// Bytes that were dropped because too much was waiting. They are counted once the waiting output is, because they
    /// come after it.
    dropped_while_waiting: u64,
}

impl OutputStore {
    /// Creates an empty store. It creates its files in `directory` once the output exceeds the limit for memory.
    pub(crate) fn new(directory: PathBuf, limits: StoreLimits, memory_budget: MemoryBudget) -> Self {
        Self {
            limits,
            directory,
            in_memory: MemoryBuffer::new(memory_budget),
            head: None,
            tail: None,
            segments: VecDeque::new(),
            is_open: false,
            segments_made: 0,
            total_bytes: 0,
            total_lines: 0,
            next_sequence: 0,
            waiting: VecDeque::new(),
            dropped_while_waiting: 0,
        }
    }

    /// The current end of the output.
    pub(crate) fn end(&self) -> Position {
        Position { bytes: self.total_bytes, sequence: self.next_sequence }
    }

    /// Bytes of all streams so far.
    pub(crate) fn total_bytes(&self) -> u64 {
        self.total_bytes
    }

    /// Newlines of all streams so far.
    pub(crate) fn total_lines(&self) -> u64 {
        self.total_lines
    }

    pub(crate) fn next_sequence(&self) -> u64 {
        self.next_sequence
    }

    /// Bytes that are in neither the head nor the tail.
    pub(crate) fn dropped_bytes(&self) -> u64 {
        self.total_bytes - self.segments.iter().map(|segment| segment.data_bytes).sum::<u64>()
    }

    /// Appends output. Output that cannot be written is counted and dropped, unless the disk is full: then it waits
    /// in memory, and the caller must stop reading while [`OutputStore::is_waiting_for_space`].
    pub(crate) fn append(&mut self, stream: OutputStream, bytes: &[u8]) {
        self.total_lines += count_lines(bytes);
        if self.waiting.len() >= MAX_WAITING || self.dropped_while_waiting > 0 {
            self.dropped_while_waiting += bytes.len() as u64;
            return;
        }
        if !self.waiting.is_empty() {
            self.waiting.push_back((stream, Bytes::copy_from_slice(bytes)));
            return;
        }
        self.append_pieces(stream, bytes);
    }

    /// Retries to write the output that waits for space. Returns whether some is still waiting.
    pub(crate) fn is_waiting_for_space(&mut self) -> bool {
        for (stream, bytes) in std::mem::take(&mut self.waiting) {
            if self.waiting.is_empty() {
                self.append_pieces(stream, &bytes);
            } else {
                self.waiting.push_back((stream, bytes));
            }
        }
        if self.waiting.is_empty() {
            self.count_dropped();
        }
        !self.waiting.is_empty()
    }

    /// Counts what was dropped as one missing chunk after the output so far.
    fn count_dropped(&mut self) {
        let bytes = std::mem::take(&mut self.dropped_while_waiting);
        if bytes > 0 {
            self.total_bytes += bytes;
            self.next_sequence += 1;
            // The chunks of a segment have consecutive numbers.
            self.is_open = false;
        }
    }

    fn append_pieces(&mut self, stream: OutputStream, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let segment = self.segment_with_room();
            let room = self.limits.segment_bytes - usize::try_from(segment.data_bytes).unwrap_or(0);
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
            return Stored::Handled;
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
        Stored::Handled
    }

    /// Returns the last segment, or a new one. A new segment is added to the list with its first record.
    fn segment_with_room(&mut self) -> Segment {
        if self.is_open
            && let Some(last) = self.segments.back()
            && last.data_bytes < self.limits.segment_bytes as u64
            && (last.records + 1) * RECORD_HEADER_BYTES <= self.limits.header_bytes
        {
            return *last;
        }
        self.is_open = false;
        let region = self.next_region();
        let slot_number = match region {
            Region::Head => self.segments.len() as u64,
            Region::Tail => {
                self.make_room_in_tail();
                self.segments_made % (self.limits.tail_segments as u64 + 1)
            }
        };
        self.segments_made += 1;
        Segment {
            number: self.segments_made,
            region,
            slot: slot_number * self.limits.slot_bytes(),
            start: 0,
            end: 0,
            records: 0,
            first_sequence: self.next_sequence,
            next_sequence: self.next_sequence,
            first_byte: self.total_bytes,
            data_bytes: 0,
        }
    }

    fn next_region(&self) -> Region {
        let all_in_head = self.segments.back().is_none_or(|last| last.region == Region::Head);
        if all_in_head && self.segments.len() < self.limits.head_segments {
            Region::Head
        } else {
            Region::Tail
        }
    }

    fn tail_start(&self) -> usize {
        self.segments.iter().take_while(|segment| segment.region == Region::Head).count()
    }

    /// Drops the oldest segment of the tail if the next slot is still in use.
    fn make_room_in_tail(&mut self) {
        let start = self.tail_start();
        let slots = self.limits.tail_segments as u64 + 1;
        // Slots are used in turn, but a failed write may have skipped some, so check the slot itself.
        let slot = (self.segments_made % slots) * self.limits.slot_bytes();
        while self.segments.iter().skip(start).any(|segment| segment.slot == slot) {
            self.segments.remove(start);
        }
    }

    fn write(&mut self, segment: &Segment, stream: OutputStream, piece: &[u8]) -> io::Result<()> {
        let length = u16::try_from(piece.len()).map_err(io::Error::other)?.to_be_bytes();
        let header = [stream as u8, length[0], length[1]];
        let at = segment.slot + segment.end;
        let file = match segment.region {
            Region::Head if self.head.is_none() && self.in_memory.add(at, &header, piece) => return Ok(()),
            Region::Head => self.head_file()?,
            Region::Tail => match &mut self.tail {
                Some(file) => file,
                tail => tail.insert(create(&self.directory, "tail")?),
            },
        };
        let parts = [IoSlice::new(&header), IoSlice::new(piece)];
        let written = rustix::io::pwritev(file, &parts, at)?;
        // A disk that fills up causes a partial write.
        if written == header.len() + piece.len() { Ok(()) } else { Err(io::ErrorKind::StorageFull.into()) }
    }

    /// Returns the head file. Creates it with the output in memory if needed.
    fn head_file(&mut self) -> io::Result<&mut File> {
        match &mut self.head {
            Some(file) => Ok(file),
            head => {
                let file = create(&self.directory, "head")?;
                file.write_all_at(self.in_memory.bytes(), 0)?;
                self.in_memory.clear();
                Ok(head.insert(file))
            }
        }
    }

    /// Ends the output: drops the oldest chunks beyond the size of the tail.
    pub(crate) fn seal(&mut self) {
        for (_, bytes) in std::mem::take(&mut self.waiting) {
            // The wait for space was in vain: count the output as dropped.
            self.total_bytes += bytes.len() as u64;
            self.next_sequence += 1;
        }
        self.count_dropped();
        let start = self.tail_start();
        let mut kept: u64 = self.segments.iter().skip(start).map(|segment| segment.data_bytes).sum();
        while let Some(oldest) = self.segments.get(start).copied() {
            let excess = kept.saturating_sub(self.limits.tail_bytes());
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

    /// Removes just enough records from the front of a segment to drop `excess` bytes. Returns `None` if nothing
    /// remains.
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

    /// Drops all output except the counts.
    pub(crate) fn forget(&mut self) {
        self.segments.clear();
        self.is_open = false;
        self.in_memory.clear();
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
    // A sum over at most 255 bytes fits in a `u8`, so the compiler can vectorize it.
    bytes
        .chunks(255)
        .map(|part| u64::from(part.iter().map(|byte| u8::from(*byte == b'\n')).sum::<u8>()))
        .sum()
}
