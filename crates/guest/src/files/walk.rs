//! Walks a tree by file descriptors, sorted by name, without following symbolic links.
//!
//! Memory is bounded for any tree: directories are read in batches (each batch sorted), and directories at the
//! maximum depth are not entered.

use std::ffi::CString;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, Dir, FileType, OFlags, Stat, statat};
use rustix::io::Errno;

use crate::files::resolve::open_name;

/// The walk does not enter directories at this depth.
pub(crate) const MAX_DEPTH: usize = 256;
/// The most names held at once across all levels. A larger directory is sorted in batches.
const MAX_NAMES: usize = 100_000;
/// Each level may hold this many names even if the limit is reached.
const MIN_NAMES_PER_LEVEL: usize = 128;

/// An entry of the tree.
pub(crate) struct Entry {
    /// Relative to the start of the walk.
    pub(crate) path: Vec<u8>,
    /// The last component of the path.
    pub(crate) name: CString,
    /// Metadata; of the link itself for a symbolic link.
    pub(crate) stat: Stat,
    /// Levels below the start, from 1.
    pub(crate) depth: usize,
}

impl Entry {
    pub(crate) fn kind(&self) -> FileType {
        FileType::from_raw_mode(self.stat.st_mode)
    }
}

struct Level {
    directory: Dir,
    path: Vec<u8>,
    /// Sorted in reverse, so that `pop` returns the next one.
    names: Vec<CString>,
    is_read: bool,
}

/// A walk in progress.
pub(crate) struct Walker {
    levels: Vec<Level>,
    /// The directory returned last, which the walk enters next.
    entering: Option<(CString, Vec<u8>)>,
}

impl Walker {
    /// Starts at a directory opened for reading.
    pub(crate) fn start(directory: OwnedFd) -> Result<Self, Errno> {
        let level =
            Level { directory: Dir::new(directory)?, path: Vec::new(), names: Vec::new(), is_read: false };
        Ok(Self { levels: vec![level], entering: None })
    }

    /// The parent directory of the entry returned last.
    pub(crate) fn parent(&self) -> Option<BorrowedFd<'_>> {
        self.levels.last()?.directory.fd().ok()
    }

    /// Skips the contents of the directory returned last.
    pub(crate) fn skip_contents(&mut self) {
        self.entering = None;
    }

    /// Returns the next entry. Skips entries that vanish meanwhile.
    pub(crate) fn next(&mut self) -> Option<Entry> {
        if let Some((name, path)) = self.entering.take() {
            self.enter(&name, path);
        }
        loop {
            let held: usize = self.levels.iter().map(|level| level.names.len()).sum();
            let depth = self.levels.len();
            let level = self.levels.last_mut()?;
            let Some(name) = level.names.pop() else {
                if level.is_read {
                    self.levels.pop();
                } else {
                    level.read_names(MAX_NAMES.saturating_sub(held).max(MIN_NAMES_PER_LEVEL));
                }
                continue;
            };
            let Ok(stat) = level.directory.fd().and_then(|fd| statat(fd, &name, AtFlags::SYMLINK_NOFOLLOW))
            else {
                continue;
            };
            let mut path = level.path.clone();
            if !path.is_empty() {
                path.push(b'/');
            }
            path.extend_from_slice(name.as_bytes());
            let entry = Entry { path, name, stat, depth };
            if entry.kind() == FileType::Directory && depth < MAX_DEPTH {
                self.entering = Some((entry.name.clone(), entry.path.clone()));
            }
            return Some(entry);
        }
    }

    /// Enters a directory. Treats one that cannot be read as empty.
    fn enter(&mut self, name: &CString, path: Vec<u8>) {
        let Some(parent) = self.parent() else { return };
        let opened = open_name(parent, name, OFlags::RDONLY | OFlags::DIRECTORY).and_then(Dir::new);
        if let Ok(directory) = opened {
            self.levels.push(Level { directory, path, names: Vec::new(), is_read: false });
        }
    }
}

impl Level {
    fn read_names(&mut self, most: usize) {
        while self.names.len() < most {
            match self.directory.read() {
                Some(Ok(entry)) if matches!(entry.file_name().to_bytes(), b"." | b"..") => {}
                Some(Ok(entry)) => self.names.push(entry.file_name().to_owned()),
                Some(Err(_)) | None => {
                    self.is_read = true;
                    break;
                }
            }
        }
        self.names.sort_unstable_by(|one, other| other.cmp(one));
    }
}
