//! An immutable part of the index on disk: documents, sorted words, and where each word occurs.
//!
//! ```text
//! magic, postings of all words one after another, blocks of words, documents, index of blocks, footer
//! ```
//!
//! Documents and the index of blocks are kept in memory (about 20 bytes per event and 1 per word). Blocks and
//! postings are read on demand.

use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use sha2::{Digest as _, Sha256};

use super::memory::{Document, Posting};
use super::varint;
use crate::error::ContextError;
use crate::event_id::EventId;

const MAGIC: &[u8; 8] = b"csnidx01";
/// Words per block.
const BLOCK: usize = 32;
/// Three offsets, a checksum of the parts kept in memory, and the magic again.
const FOOTER: usize = 8 * 4 + 8 + 8;

/// A segment that is open for reading.
#[derive(Debug)]
pub(super) struct Segment {
    file: File,
    pub(super) path: PathBuf,
    pub(super) documents: Vec<Document>,
    /// The sum of the documents' lengths.
    pub(super) length: u64,
    blocks: Vec<Block>,
    pub(super) bytes: u64,
}

#[derive(Debug)]
struct Block {
    first: Box<str>,
    /// File offset of its words.
    at: u64,
    bytes: u32,
    /// File offset of the postings of its first word.
    postings: u64,
}

/// A word and the location of its postings.
#[derive(Debug)]
pub(super) struct WordEntry {
    pub(super) text: String,
    /// The number of documents that contain it.
    pub(super) documents: u32,
    at: u64,
    bytes: u64,
}

fn failed(action: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> ContextError {
    let path = path.to_owned();
    move |source| ContextError::File { action, path, source }
}

impl Segment {
    pub(super) fn open(path: &Path) -> Result<Self, ContextError> {
        let damaged = |what| ContextError::Damaged { path: path.to_owned(), what };
        let file = File::open(path).map_err(failed("open the index file", path))?;
        let bytes = file.metadata().map_err(failed("examine the index file", path))?.len();
        let footer_at = bytes.checked_sub(FOOTER as u64).ok_or_else(|| damaged("too short"))?;
        let footer = read_at(&file, path, footer_at, FOOTER)?;
        let number = |at: usize| u64::from_le_bytes(footer[at..at + 8].try_into().unwrap_or_default());
        let (documents_at, blocks_at, length) = (number(0), number(8), number(24));
        if &footer[40..48] != MAGIC
            || documents_at > blocks_at
            || blocks_at > footer_at
            || number(16) != footer_at
        {
            return Err(damaged("no footer"));
        }
        let size = usize::try_from(footer_at - documents_at).map_err(|_| damaged("too long"))?;
        let kept = read_at(&file, path, documents_at, size)?;
        if Sha256::digest(&kept)[..8] != footer[32..40] {
            return Err(damaged("checksum"));
        }
        let split = usize::try_from(blocks_at - documents_at).map_err(|_| damaged("too long"))?;
        let documents = read_documents(&kept[..split]).ok_or_else(|| damaged("documents"))?;
        let blocks = read_blocks(&kept[split..]).ok_or_else(|| damaged("blocks"))?;
        Ok(Self { file, path: path.to_owned(), documents, length, blocks, bytes })
    }

    /// A word, if the segment contains it.
    pub(super) fn find(&self, word: &str) -> Result<Option<WordEntry>, ContextError> {
        let after = self.blocks.partition_point(|block| &*block.first <= word);
        let Some(block) = after.checked_sub(1).and_then(|at| self.blocks.get(at)) else { return Ok(None) };
        let bytes = read_at(&self.file, &self.path, block.at, block.bytes as usize)?;
        find_in_block(&bytes, block.postings, word)
            .ok_or_else(|| ContextError::Damaged { path: self.path.clone(), what: "words" })
    }

    /// All words in order, one block at a time.
    pub(super) fn words(&self) -> impl Iterator<Item = Result<Vec<WordEntry>, ContextError>> + '_ {
        self.blocks.iter().map(|block| self.read_block(block))
    }

    pub(super) fn read_postings(&self, word: &WordEntry) -> Result<Vec<Posting>, ContextError> {
        let mut postings = Vec::with_capacity((word.documents as usize).min(self.documents.len()));
        self.each_posting(word, |posting| postings.push(posting))?;
        Ok(postings)
    }

    /// Calls `take` with every posting of a word. The document number is always valid in this segment.
    pub(super) fn each_posting(
        &self,
        word: &WordEntry,
        mut take: impl FnMut(Posting),
    ) -> Result<(), ContextError> {
        let damaged = || ContextError::Damaged { path: self.path.clone(), what: "postings" };
        let size = usize::try_from(word.bytes).map_err(|_| damaged())?;
        if word.at.saturating_add(word.bytes) > self.bytes || word.documents as usize > self.documents.len() {
            return Err(damaged());
        }
        let bytes = read_at(&self.file, &self.path, word.at, size)?;
        let mut rest = bytes.as_slice();
        let mut document = 0_u64;
        for _ in 0..word.documents {
            let coded = varint::read(&mut rest).ok_or_else(damaged)?;
            document = document.saturating_add(coded >> 1);
            let count = if coded & 1 == 1 { 1 } else { varint::read(&mut rest).ok_or_else(damaged)? };
            if document as usize >= self.documents.len() {
                return Err(damaged());
            }
            take(Posting { document: document as u32, count: u32::try_from(count).unwrap_or(u32::MAX) });
        }
        Ok(())
    }

    fn read_block(&self, block: &Block) -> Result<Vec<WordEntry>, ContextError> {
        let bytes = read_at(&self.file, &self.path, block.at, block.bytes as usize)?;
        decode_block(&bytes, block.postings)
            .ok_or_else(|| ContextError::Damaged { path: self.path.clone(), what: "words" })
    }
}

fn decode_block(bytes: &[u8], at: u64) -> Option<Vec<WordEntry>> {
    let mut words = Vec::with_capacity(BLOCK);
    each_word(bytes, at, |text, documents, at, bytes| {
        words.push(WordEntry { text: std::str::from_utf8(text).ok()?.to_owned(), documents, at, bytes });
        Some(WalkControl::On)
    })?;
    Some(words)
}

/// Finds a word in a block. The outer `None` means that the block is damaged.
fn find_in_block(bytes: &[u8], at: u64, wanted: &str) -> Option<Option<WordEntry>> {
    let mut found = None;
    each_word(bytes, at, |text, documents, at, bytes| {
        match text.cmp(wanted.as_bytes()) {
            std::cmp::Ordering::Less => return Some(WalkControl::On),
            std::cmp::Ordering::Equal => {
                found = Some(WordEntry { text: wanted.to_owned(), documents, at, bytes });
            }
            std::cmp::Ordering::Greater => {}
        }
        Some(WalkControl::Stop)
    })?;
    Some(found)
}

/// Whether an iteration continues.
enum WalkControl {
    On,
    Stop,
}

/// Iterates over the words of a block: the text, the number of documents, and offset and size of its postings.
fn each_word(
    bytes: &[u8],
    mut at: u64,
    mut take: impl FnMut(&[u8], u32, u64, u64) -> Option<WalkControl>,
) -> Option<()> {
    let mut rest = bytes;
    let mut text: Vec<u8> = Vec::with_capacity(64);
    while !rest.is_empty() {
        let shared = usize::try_from(varint::read(&mut rest)?).ok()?;
        let size = usize::try_from(varint::read(&mut rest)?).ok()?;
        let suffix = rest.get(..size)?;
        rest = &rest[size..];
        text.truncate(shared);
        text.extend_from_slice(suffix);
        let documents = u32::try_from(varint::read(&mut rest)?).ok()?;
        let bytes = varint::read(&mut rest)?;
        if let WalkControl::Stop = take(&text, documents, at, bytes)? {
            break;
        }
        at = at.checked_add(bytes)?;
    }
    Some(())
}

fn read_documents(bytes: &[u8]) -> Option<Vec<Document>> {
    let mut rest = bytes;
    let count = usize::try_from(varint::read(&mut rest)?).ok()?;
    let mut documents = Vec::with_capacity(count.min(bytes.len()));
    let (mut id, mut time_ms) = (0_u64, 0_i64);
    for _ in 0..count {
        id = id.checked_add(varint::read(&mut rest)?)?;
        time_ms = time_ms.wrapping_add(varint::unzigzag(varint::read(&mut rest)?));
        let length = u32::try_from(varint::read(&mut rest)?).ok()?;
        documents.push(Document { id: EventId(id), time_ms, length });
    }
    Some(documents)
}

fn read_blocks(bytes: &[u8]) -> Option<Vec<Block>> {
    let mut rest = bytes;
    let mut blocks = Vec::new();
    let (mut at, mut postings) = (0_u64, 0_u64);
    while !rest.is_empty() {
        let size = usize::try_from(varint::read(&mut rest)?).ok()?;
        let first = std::str::from_utf8(rest.get(..size)?).ok()?.into();
        rest = &rest[size..];
        at = at.checked_add(varint::read(&mut rest)?)?;
        let bytes = u32::try_from(varint::read(&mut rest)?).ok()?;
        postings = postings.checked_add(varint::read(&mut rest)?)?;
        blocks.push(Block { first, at, bytes, postings });
    }
    Some(blocks)
}

fn read_at(file: &File, path: &Path, at: u64, size: usize) -> Result<Vec<u8>, ContextError> {
    let mut bytes = vec![0; size];
    file.read_exact_at(&mut bytes, at).map_err(failed("read the index file", path))?;
    Ok(bytes)
}

/// Writes a segment word by word, in order.
pub(super) struct Writer {
    out: BufWriter<File>,
    path: PathBuf,
    /// The number of bytes written so far: the postings.
    written: u64,
    words: Vec<u8>,
    blocks: Vec<u8>,
    block_words: usize,
    block_start: usize,
    block_first: String,
    block_postings: u64,
    last: String,
    previous_block: (u64, u64),
    /// The offset of the word blocks is known only at the end. Until then, offsets are relative to their start.
    index: Vec<(String, u64, u32, u64)>,
}

impl Writer {
    pub(super) fn create(path: &Path) -> Result<Self, ContextError> {
        let file = File::create(path).map_err(failed("create the index file", path))?;
        let mut out = BufWriter::with_capacity(256 * 1024, file);
        out.write_all(MAGIC).map_err(failed("write the index file", path))?;
        Ok(Self {
            out,
            path: path.to_owned(),
            written: MAGIC.len() as u64,
            words: Vec::new(),
            blocks: Vec::new(),
            block_words: 0,
            block_start: 0,
            block_first: String::new(),
            block_postings: 0,
            last: String::new(),
            previous_block: (0, 0),
            index: Vec::new(),
        })
    }

    pub(super) fn word(&mut self, text: &str, postings: &[Posting]) -> Result<(), ContextError> {
        let mut bytes = Vec::with_capacity(postings.len() * 2);
        let mut before = 0_u64;
        for posting in postings {
            let delta = u64::from(posting.document) - before;
            before = u64::from(posting.document);
            varint::write(&mut bytes, (delta << 1) | u64::from(posting.count == 1));
            if posting.count != 1 {
                varint::write(&mut bytes, u64::from(posting.count));
            }
        }
        if self.block_words == 0 {
            self.block_first = text.to_owned();
            self.block_postings = self.written;
            self.last.clear();
        }
        let shared = self.last.bytes().zip(text.bytes()).take_while(|(a, b)| a == b).count();
        varint::write(&mut self.words, shared as u64);
        varint::write(&mut self.words, (text.len() - shared) as u64);
        self.words.extend_from_slice(&text.as_bytes()[shared..]);
        varint::write(&mut self.words, postings.len() as u64);
        varint::write(&mut self.words, bytes.len() as u64);
        text.clone_into(&mut self.last);
        self.out.write_all(&bytes).map_err(failed("write the index file", &self.path))?;
        self.written += bytes.len() as u64;
        self.block_words += 1;
        if self.block_words == BLOCK {
            self.end_block();
        }
        Ok(())
    }

    fn end_block(&mut self) {
        if self.block_words > 0 {
            let size = u32::try_from(self.words.len() - self.block_start).unwrap_or(u32::MAX);
            self.index.push((
                std::mem::take(&mut self.block_first),
                self.block_start as u64,
                size,
                self.block_postings,
            ));
            self.block_start = self.words.len();
            self.block_words = 0;
        }
    }

    /// Writes the remaining sections and syncs the file.
    pub(super) fn finish(mut self, documents: &[Document]) -> Result<(), ContextError> {
        self.end_block();
        let words_at = self.written;
        let documents_at = words_at + self.words.len() as u64;
        let mut kept = Vec::new();
        varint::write(&mut kept, documents.len() as u64);
        let (mut id, mut time_ms, mut length) = (0, 0, 0_u64);
        for document in documents {
            varint::write(&mut kept, document.id.0.saturating_sub(id));
            varint::write(&mut kept, varint::zigzag(document.time_ms.wrapping_sub(time_ms)));
            varint::write(&mut kept, u64::from(document.length));
            (id, time_ms) = (document.id.0, document.time_ms);
            length += u64::from(document.length);
        }
        let blocks_at = documents_at + kept.len() as u64;
        for (first, start, size, postings) in &self.index {
            varint::write(&mut self.blocks, first.len() as u64);
            self.blocks.extend_from_slice(first.as_bytes());
            let at = words_at + start;
            varint::write(&mut self.blocks, at - self.previous_block.0);
            varint::write(&mut self.blocks, u64::from(*size));
            varint::write(&mut self.blocks, postings - self.previous_block.1);
            self.previous_block = (at, *postings);
        }
        kept.extend_from_slice(&self.blocks);
        let footer_at = documents_at + kept.len() as u64;
        let mut footer = Vec::with_capacity(FOOTER);
        for number in [documents_at, blocks_at, footer_at, length] {
            footer.extend_from_slice(&number.to_le_bytes());
        }
        footer.extend_from_slice(&Sha256::digest(&kept)[..8]);
        footer.extend_from_slice(MAGIC);
        let write = |out: &mut BufWriter<File>| {
            out.write_all(&self.words)?;
            out.write_all(&kept)?;
            out.write_all(&footer)?;
            out.flush()?;
            out.get_ref().sync_data()
        };
        write(&mut self.out).map_err(failed("write the index file", &self.path))
    }
}
