//! A directory tree as a tar stream, produced step by step.
//!
//! The archive stays valid even if the tree changes meanwhile: a file that shrinks is padded, one that grows is cut,
//! and one that vanishes is left out. Symbolic links stay links. Sockets, pipes and devices are left out.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use protocol::FileError;
use rustix::fs::{FileType, OFlags, Stat, fstat, readlinkat};
use tar::{Builder, EntryType, Header};

use crate::files::errors::failed;
use crate::files::resolve::{MAX_PATH_BYTES, RelativePath, Root, Workspace, open_name};
use crate::files::walk::{Entry, Walker};
use crate::files::write::UNFINISHED_PREFIX;

/// A step stops after producing this many bytes.
const STEP_BYTES: usize = 256 * 1024;
/// Size of a tar block.
pub(crate) const BLOCK_BYTES: u64 = 512;

/// The most paths to report as left out.
const MAX_LEFT_OUT: usize = 1000;
/// Reported paths are shortened to this length.
const MAX_REPORTED_PATH_BYTES: usize = 300;

/// The parameters of a pack request.
pub(crate) struct PackRequest {
    /// The directory.
    pub(crate) path: String,
    /// Paths to leave out.
    pub(crate) exclude: Vec<String>,
    /// Larger files are left out.
    pub(crate) max_file_bytes: Option<u64>,
}

/// An archive in progress.
pub(crate) struct Packer {
    walker: Walker,
    exclude: Vec<Vec<u8>>,
    max_file_bytes: u64,
    left_out: Vec<String>,
    builder: Builder<Vec<u8>>,
    current: Option<Content>,
    is_done: bool,
}

/// The rest of a file whose header has already been written.
struct Content {
    file: File,
    left: u64,
    padding: u64,
}

impl Packer {
    /// Starts to pack a directory without the excluded paths.
    pub(crate) fn begin(workspace: &Workspace, order: PackRequest) -> Result<Self, FileError> {
        let PackRequest { path, exclude, max_file_bytes } = order;
        let path = RelativePath::parse(&path, Root::Allowed)?;
        let directory = workspace.open_directory("packing", &path)?;
        let walker = Walker::start(directory).map_err(failed("packing", &path))?;
        let exclude = exclude.into_iter().map(|prefix| prefix.trim_matches('/').as_bytes().to_vec());
        let exclude = exclude.filter(|prefix| !prefix.is_empty()).collect();
        Ok(Self {
            walker,
            exclude,
            max_file_bytes: max_file_bytes.unwrap_or(u64::MAX),
            left_out: Vec::new(),
            builder: Builder::new(Vec::new()),
            current: None,
            is_done: false,
        })
    }

    /// The paths that could not be packed.
    pub(crate) fn left_out(self) -> Vec<String> {
        self.left_out
    }

    fn leave_out(&mut self, entry: &Entry) {
        if self.left_out.len() < MAX_LEFT_OUT {
            let shown = entry.path.get(..MAX_REPORTED_PATH_BYTES);
            let dots = if shown.is_some_and(|shown| shown.len() < entry.path.len()) { "..." } else { "" };
            let shown = String::from_utf8_lossy(shown.unwrap_or(&entry.path));
            self.left_out.push(format!("{shown}{dots}"));
        }
    }

    /// Returns the next bytes of the archive, or `None` after its end.
    pub(crate) fn step(&mut self) -> Option<Vec<u8>> {
        while !self.is_done && self.builder.get_ref().len() < STEP_BYTES {
            if let Some(content) = &mut self.current {
                if content.copy(self.builder.get_mut()) {
                    self.current = None;
                }
            } else if let Some(entry) = self.walker.next() {
                self.add_or_skip(&entry);
            } else {
                self.is_done = true;
                // Two empty blocks end an archive.
                self.builder.get_mut().extend_from_slice(&[0; 2 * BLOCK_BYTES as usize]);
            }
        }
        let bytes = std::mem::take(self.builder.get_mut());
        (!bytes.is_empty()).then_some(bytes)
    }

    fn is_excluded(&self, entry: &Entry) -> bool {
        let is_below = |prefix: &Vec<u8>| {
            entry
                .path
                .strip_prefix(prefix.as_slice())
                .is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/"))
        };
        self.exclude.iter().any(is_below) || entry.name.to_bytes().starts_with(UNFINISHED_PREFIX.as_bytes())
    }

    /// If an entry cannot be packed, removes its partial output and reports it as left out.
    fn add_or_skip(&mut self, entry: &Entry) {
        let before = self.builder.get_ref().len();
        if self.add(entry).is_err() {
            self.builder.get_mut().truncate(before);
            self.leave_out(entry);
        }
    }

    fn add(&mut self, entry: &Entry) -> std::io::Result<()> {
        if self.is_excluded(entry) {
            self.walker.skip_contents();
            return Ok(());
        }
        // The path is too long to be requested, and paths of tens of kilobytes could be used to exhaust the host's
        // memory.
        if entry.path.len() > MAX_PATH_BYTES {
            self.walker.skip_contents();
            return Err(rustix::io::Errno::NAMETOOLONG.into());
        }
        let path = Path::new(OsStr::from_bytes(&entry.path));
        match entry.kind() {
            FileType::Directory => self.builder.append_data(
                &mut header(&entry.stat, EntryType::Directory, 0),
                path,
                std::io::empty(),
            ),
            FileType::Symlink => {
                let Some(parent) = self.walker.parent() else { return Ok(()) };
                let Ok(target) = readlinkat(parent, &entry.name, Vec::new()) else { return Ok(()) };
                let target = Path::new(OsStr::from_bytes(target.as_bytes()));
                self.builder.append_link(&mut header(&entry.stat, EntryType::Symlink, 0), path, target)
            }
            FileType::RegularFile => self.add_file(entry, path),
            _ => {
                self.leave_out(entry);
                Ok(())
            }
        }
    }

    fn add_file(&mut self, entry: &Entry, path: &Path) -> std::io::Result<()> {
        let Some(parent) = self.walker.parent() else { return Ok(()) };
        let file = match open_name(parent, &entry.name, OFlags::RDONLY) {
            Ok(file) => file,
            // The file vanished meanwhile.
            Err(rustix::io::Errno::NOENT) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        // The opened file may differ from the one that the walk saw.
        let stat = fstat(&file)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Ok(());
        }
        let size = u64::try_from(stat.st_size).unwrap_or(0);
        if size > self.max_file_bytes {
            return Err(std::io::Error::from(std::io::ErrorKind::FileTooLarge));
        }
        // Write only the header now. The content follows in later steps.
        self.builder.append_data(&mut header(&stat, EntryType::Regular, size), path, std::io::empty())?;
        let padding = size.next_multiple_of(BLOCK_BYTES) - size;
        self.current = Some(Content { file: file.into(), left: size, padding });
        Ok(())
    }
}

impl Content {
    /// Appends the next part of the content. Returns whether it was the last.
    fn copy(&mut self, out: &mut Vec<u8>) -> bool {
        let wanted = usize::try_from(self.left).unwrap_or(usize::MAX).min(STEP_BYTES);
        let start = out.len();
        out.resize(start + wanted, 0);
        let mut filled = 0;
        while let Some(room) = out.get_mut(start + filled..).filter(|room| !room.is_empty()) {
            match self.file.read(room) {
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                // Leave the missing bytes zero.
                Ok(0) | Err(_) => break,
                Ok(count) => filled += count,
            }
        }
        self.left -= wanted as u64;
        if self.left == 0 {
            out.resize(out.len() + usize::try_from(self.padding).unwrap_or(0), 0);
        }
        self.left == 0
    }
}

fn header(stat: &Stat, kind: EntryType, size: u64) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_size(size);
    header.set_mode(stat.st_mode & 0o7777);
    header.set_mtime(u64::try_from(stat.st_mtime).unwrap_or(0));
    header.set_uid(0);
    header.set_gid(0);
    header
}
