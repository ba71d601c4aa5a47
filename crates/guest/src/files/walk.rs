//! Walks a tree by descriptors, without following links, in the order of names.
//!
//! Bounded whatever the tree looks like: directories are read in batches (each sorted), and very deep ones are not
//! entered.

use std::ffi::CString;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, Dir, FileType, OFlags, Stat, statat};
use rustix::io::Errno;

use crate::files::resolve::open_name;

/// Directories below this depth are not entered.
pub(crate) const MAX_DEPTH: usize = 256;
/// Names held at once over all levels; a directory with more is sorted in parts.
const MAX_NAMES: usize = 100_000;
/// Names that each level may hold even so.
const FEWEST_NAMES: usize = 128;

/// Something in the tree.
pub(crate) struct Entry {
    /// Relative to where the walk started.
    pub(crate) path: Vec<u8>,
    /// The last part of the path.
    pub(crate) name: CString,
    /// Facts, of a link itself.
    pub(crate) stat: Stat,
    /// Levels below the start, from 1.
    pub(crate) depth: usize,
}

impl Entry {
    /// What kind of thing it is.
    pub(crate) fn kind(&self) -> FileType {
        FileType::from_raw_mode(self.stat.st_mode)
    }
}

struct Level {
    directory: Dir,
    path: Vec<u8>,
    /// Sorted backwards, so that the next one is the last.
    names: Vec<CString>,
    is_read: bool,
}

/// A walk that is under way.
pub(crate) struct Walker {
    levels: Vec<Level>,
    /// The directory that was just handed out and is entered next.
    entering: Option<(CString, Vec<u8>)>,
}

impl Walker {
    /// Starts in a directory opened for reading.
    pub(crate) fn start(directory: OwnedFd) -> Result<Self, Errno> {
        let level =
            Level { directory: Dir::new(directory)?, path: Vec::new(), names: Vec::new(), is_read: false };
        Ok(Self { levels: vec![level], entering: None })
    }

    /// The directory of the entry that was handed out last.
    pub(crate) fn parent(&self) -> Option<BorrowedFd<'_>> {
        self.levels.last()?.directory.fd().ok()
    }

    /// Leaves out what is below the directory that was handed out last.
    pub(crate) fn do_not_enter(&mut self) {
        self.entering = None;
    }

    /// The next entry. What vanishes meanwhile is left out.
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
                    level.read_names(MAX_NAMES.saturating_sub(held).max(FEWEST_NAMES));
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

    /// A directory that cannot be read is left as if it were empty.
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
