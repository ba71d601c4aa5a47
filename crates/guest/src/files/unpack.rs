//! Reads a tar stream piece by piece. The archive is untrusted: the unpacker checks every length, resolves every path
//! below the target, and refuses entries other than files, directories and links.

use protocol::{FileError, FileErrorCode};
use tar::{EntryType, Header, PaxExtensions};

use crate::files::errors::refusal;
use crate::files::pack::BLOCK_BYTES;
use crate::files::unpack_entry::{Member, Target, Unfinished};

const BLOCK: usize = BLOCK_BYTES as usize;
/// The longest name or block of extended headers.
const MAX_EXTENSION_BYTES: u64 = 64 * 1024;

/// What the next bytes of the archive are.
enum State {
    Header,
    Content(Unfinished),
    /// A long name, a long link target or extended headers.
    Extension(EntryType, Vec<u8>),
    Skip,
    End,
}

/// Metadata that a special entry provides for the next entry.
#[derive(Default)]
struct Extensions {
    path: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
    size: Option<u64>,
    mtime: Option<u64>,
}

/// An archive being unpacked.
pub(crate) struct Unpacker {
    target: Target,
    state: State,
    block: Vec<u8>,
    /// Remaining bytes of the current entry.
    left: u64,
    padding: u64,
    extensions: Extensions,
}

fn broken(why: &str) -> FileError {
    refusal(FileErrorCode::Other, format!("unpacking: the archive is broken: {why}"))
}

impl Unpacker {
    pub(crate) fn begin(target: Target) -> Self {
        Self {
            target,
            state: State::Header,
            block: Vec::with_capacity(BLOCK),
            left: 0,
            padding: 0,
            extensions: Extensions::default(),
        }
    }

    /// Processes the next bytes.
    pub(crate) fn feed(&mut self, mut bytes: &[u8]) -> Result<(), FileError> {
        while !bytes.is_empty() {
            if matches!(self.state, State::End) {
                return Ok(());
            }
            if matches!(self.state, State::Header) {
                let (part, rest) = bytes.split_at(bytes.len().min(BLOCK - self.block.len()));
                self.block.extend_from_slice(part);
                bytes = rest;
                if self.block.len() == BLOCK {
                    let block = std::mem::take(&mut self.block);
                    self.begin_entry(&block)?;
                }
                continue;
            }
            let (part, rest) =
                bytes.split_at(bytes.len().min(usize::try_from(self.left).unwrap_or(usize::MAX)));
            self.take_content(part)?;
            let (_, rest) = rest.split_at(self.take_padding(rest.len()));
            bytes = rest;
            self.end_entry_when_complete()?;
        }
        Ok(())
    }

    /// Checks that the archive is complete.
    pub(crate) fn finish(self) -> Result<(), FileError> {
        match self.state {
            State::End => Ok(()),
            State::Header if self.block.is_empty() => Ok(()),
            _ => Err(broken("it ends in the middle of an entry")),
        }
    }

    fn take_content(&mut self, part: &[u8]) -> Result<(), FileError> {
        match &mut self.state {
            State::Content(file) => file.write(part)?,
            State::Extension(_, text) => text.extend_from_slice(part),
            State::Header | State::Skip | State::End => {}
        }
        self.left -= part.len() as u64;
        Ok(())
    }

    /// Consumes up to `available` bytes of padding. Returns how many.
    fn take_padding(&mut self, available: usize) -> usize {
        if self.left > 0 {
            return 0;
        }
        let count = usize::try_from(self.padding).unwrap_or(0).min(available);
        self.padding -= count as u64;
        count
    }

    fn end_entry_when_complete(&mut self) -> Result<(), FileError> {
        if self.left > 0 || self.padding > 0 {
            return Ok(());
        }
        match std::mem::replace(&mut self.state, State::Header) {
            State::Content(file) => file.finish(),
            State::Extension(kind, text) => self.take_extension(kind, text),
            State::Header | State::Skip | State::End => Ok(()),
        }
    }

    fn begin_entry(&mut self, block: &[u8]) -> Result<(), FileError> {
        if block.iter().all(|byte| *byte == 0) {
            self.state = State::End;
            return Ok(());
        }
        let header = Header::from_byte_slice(block);
        if !is_checksum_right(block, header) {
            return Err(broken("a header has a wrong checksum"));
        }
        let kind = header.entry_type();
        let size = header.entry_size().map_err(|_| broken("a header has no size"))?;
        if kind.is_gnu_longname() || kind.is_gnu_longlink() || kind.is_pax_local_extensions() {
            if size > MAX_EXTENSION_BYTES {
                return Err(broken("a name is too long"));
            }
            return self.enter(State::Extension(kind, Vec::new()), size);
        }
        if kind.is_pax_global_extensions() {
            return self.enter(State::Skip, size);
        }
        self.begin_member(header, kind, size)
    }

    fn begin_member(&mut self, header: &Header, kind: EntryType, size: u64) -> Result<(), FileError> {
        let extensions = std::mem::take(&mut self.extensions);
        let path = extensions.path.unwrap_or_else(|| header.path_bytes().into_owned());
        let link = extensions.link.or_else(|| header.link_name_bytes().map(std::borrow::Cow::into_owned));
        let member = Member {
            path,
            link,
            mode: header.mode().unwrap_or(0o644),
            mtime: extensions.mtime.or_else(|| header.mtime().ok()).unwrap_or(0),
        };
        match kind {
            EntryType::Regular | EntryType::Continuous => {
                // Old archives mark a directory with a trailing slash.
                if member.path.ends_with(b"/") {
                    self.target.make_directory(&member)?;
                    return self.enter(State::Skip, size);
                }
                let file = self.target.create_file(&member)?;
                self.enter(State::Content(file), extensions.size.unwrap_or(size))
            }
            EntryType::Directory => {
                self.target.make_directory(&member)?;
                self.enter(State::Skip, size)
            }
            EntryType::Symlink => {
                self.target.make_symlink(&member)?;
                self.enter(State::Skip, size)
            }
            EntryType::Link => {
                self.target.make_hard_link(&member)?;
                // Some archives repeat the content size here without the content.
                self.enter(State::Skip, 0)
            }
            _ => Err(member.refuse("is neither a file nor a directory nor a link")),
        }
    }

    fn enter(&mut self, state: State, size: u64) -> Result<(), FileError> {
        self.state = state;
        self.left = size;
        self.padding =
            size.checked_next_multiple_of(BLOCK_BYTES).ok_or_else(|| broken("a size is absurd"))? - size;
        self.end_entry_when_complete()
    }

    fn take_extension(&mut self, kind: EntryType, mut text: Vec<u8>) -> Result<(), FileError> {
        if kind.is_pax_local_extensions() {
            return self.take_pax(&text);
        }
        if text.last() == Some(&0) {
            text.pop();
        }
        if kind.is_gnu_longname() {
            self.extensions.path = Some(text);
        } else {
            self.extensions.link = Some(text);
        }
        Ok(())
    }

    fn take_pax(&mut self, text: &[u8]) -> Result<(), FileError> {
        for extension in PaxExtensions::new(text) {
            let extension = extension.map_err(|_| broken("an extended header cannot be read"))?;
            let value = extension.value_bytes();
            let number =
                || std::str::from_utf8(value).ok().and_then(|text| text.split('.').next()?.parse().ok());
            match extension.key_bytes() {
                b"path" => self.extensions.path = Some(value.to_vec()),
                b"linkpath" => self.extensions.link = Some(value.to_vec()),
                b"size" => {
                    self.extensions.size = Some(number().ok_or_else(|| broken("a size is no number"))?)
                }
                b"mtime" => self.extensions.mtime = number(),
                _ => {}
            }
        }
        Ok(())
    }
}

fn is_checksum_right(block: &[u8], header: &Header) -> bool {
    // The checksum treats its own field as spaces.
    let sum: u32 =
        (0..).zip(block).map(|(at, byte)| if (148..156).contains(&at) { 32 } else { u32::from(*byte) }).sum();
    header.cksum().is_ok_and(|wanted| wanted == sum)
}
