//! Path resolution: from a path in a request to a file descriptor below the workspace.
//!
//! The kernel resolves paths (`openat2` with `RESOLVE_BENEATH`), so that neither `..` nor a symbolic link leads
//! outside, even if another process swaps path components meanwhile. The checks on the text only improve error
//! messages.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

use protocol::{FileError, FileErrorCode};
use rustix::fs::{Mode, OFlags, ResolveFlags, openat, openat2};
use rustix::io::Errno;

use crate::error::GuestError;
use crate::files::errors::{failed, refusal};

/// The longest path in bytes.
pub(crate) const MAX_PATH_BYTES: usize = 4096;
/// Retry limit: `openat2` returns `EAGAIN` if something was renamed meanwhile.
const MAX_TRIES: u32 = 1000;

/// Whether a path may be the workspace itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Root {
    /// An empty path or `.` means the workspace.
    Allowed,
    /// The path must name something inside the workspace.
    Refused,
}

/// What to do about missing parent directories.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Parents {
    Make,
    MustExist,
}

/// A path relative to the workspace: no `..`, no empty components, no NUL byte. Empty for the workspace itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RelativePath {
    bytes: Vec<u8>,
}

impl fmt::Display for RelativePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_root() { f.write_str(".") } else { f.write_str(&String::from_utf8_lossy(&self.bytes)) }
    }
}

impl RelativePath {
    /// Validates a path.
    pub(crate) fn parse(path: impl AsRef<[u8]>, root: Root) -> Result<Self, FileError> {
        let path = path.as_ref();
        let shown = String::from_utf8_lossy(path.get(..200.min(path.len())).unwrap_or_default());
        if path.len() > MAX_PATH_BYTES {
            return Err(refusal(
                FileErrorCode::InvalidPath,
                format!(
                    "the path `{shown}...` has {} bytes; at most {MAX_PATH_BYTES} are possible",
                    path.len()
                ),
            ));
        }
        if path.contains(&0) {
            return Err(refusal(
                FileErrorCode::InvalidPath,
                format!("the path `{}` has a NUL byte; remove it", shown.escape_debug()),
            ));
        }
        if path.starts_with(b"/") {
            let message = format!(
                "the path `{shown}` is absolute; use one relative to the workspace, such as `src/main.rs`"
            );
            return Err(refusal(FileErrorCode::OutsideWorkspace, message));
        }
        let parts = path.split(|byte| *byte == b'/').filter(|part| !part.is_empty() && *part != b".");
        let parts: Vec<&[u8]> = parts.collect();
        if parts.contains(&b"..".as_slice()) {
            let message =
                format!("the path `{shown}` has a `..`; use a path inside the workspace without it");
            return Err(refusal(FileErrorCode::OutsideWorkspace, message));
        }
        if parts.is_empty() && root == Root::Refused {
            let message = "the path is empty; name something inside the workspace".to_owned();
            return Err(refusal(FileErrorCode::OutsideWorkspace, message));
        }
        Ok(Self { bytes: parts.join(&b'/') })
    }

    /// Whether this is the workspace itself.
    pub(crate) fn is_root(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Appends a relative path.
    pub(crate) fn join(&self, below: &[u8]) -> Self {
        let separator: &[u8] = if self.is_root() || below.is_empty() { b"" } else { b"/" };
        Self { bytes: [&self.bytes, separator, below].concat() }
    }

    /// As text. Bytes that are not UTF-8 are replaced.
    pub(crate) fn to_text(&self) -> String {
        String::from_utf8_lossy(&self.bytes).into_owned()
    }

    pub(crate) fn to_bytes(&self) -> &[u8] {
        &self.bytes
    }

    fn as_os_str(&self) -> &OsStr {
        if self.is_root() { OsStr::new(".") } else { OsStr::from_bytes(&self.bytes) }
    }

    /// Splits the path into parent directory and last component.
    fn split(&self) -> (Self, OsString) {
        match self.bytes.iter().rposition(|byte| *byte == b'/') {
            None => (Self { bytes: Vec::new() }, OsString::from_vec(self.bytes.clone())),
            Some(slash) => {
                let (parent, name) = self.bytes.split_at(slash);
                (
                    Self { bytes: parent.to_vec() },
                    OsString::from_vec(name.get(1..).unwrap_or_default().to_vec()),
                )
            }
        }
    }
}

/// An open parent directory and a name in it, as needed by system calls that create, rename or remove entries.
#[derive(Debug)]
pub(crate) struct NameInDirectory {
    pub(crate) parent: OwnedFd,
    /// A single path component.
    pub(crate) name: OsString,
}

/// The directory that all paths are relative to, opened once.
#[derive(Debug)]
pub(crate) struct Workspace {
    root: OwnedFd,
}

impl AsFd for Workspace {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.root.as_fd()
    }
}

impl Workspace {
    pub(crate) fn open(path: &Path) -> Result<Self, GuestError> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::open(path, flags, Mode::empty());
        Ok(Self { root: root.map_err(GuestError::io(format!("opening the workspace {}", path.display())))? })
    }

    /// Opens an existing path. Follows symbolic links inside the workspace. Never blocks on a pipe.
    pub(crate) fn open_existing(&self, path: &RelativePath, flags: OFlags) -> Result<OwnedFd, Errno> {
        let flags = flags | OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK;
        self.open_beneath(path, flags, ResolveFlags::empty())
    }

    fn open_beneath(
        &self,
        path: &RelativePath,
        flags: OFlags,
        resolve: ResolveFlags,
    ) -> Result<OwnedFd, Errno> {
        let resolve = resolve | ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        // O_PATH can be combined with only a few flags.
        let flags = if flags.contains(OFlags::PATH) {
            flags & (OFlags::PATH | OFlags::CLOEXEC | OFlags::DIRECTORY | OFlags::NOFOLLOW)
        } else {
            flags
        };
        for _ in 0..MAX_TRIES {
            match openat2(&self.root, path.as_os_str(), flags, Mode::empty(), resolve) {
                Err(Errno::AGAIN | Errno::INTR) => {}
                other => return other,
            }
        }
        Err(Errno::AGAIN)
    }

    /// Opens a directory for reading its entries.
    pub(crate) fn open_directory(&self, doing: &str, path: &RelativePath) -> Result<OwnedFd, FileError> {
        self.open_existing(path, OFlags::RDONLY | OFlags::DIRECTORY).map_err(failed(doing, path))
    }

    /// Opens the parent directory of a path.
    pub(crate) fn place(
        &self,
        doing: &str,
        path: &RelativePath,
        parents: Parents,
    ) -> Result<NameInDirectory, FileError> {
        let (above, name) = path.split();
        let flags = OFlags::PATH | OFlags::DIRECTORY;
        let parent = match self.open_existing(&above, flags) {
            Err(Errno::NOENT) if parents == Parents::Make => {
                self.make_directories(&above).map_err(failed(doing, path))?;
                self.open_existing(&above, flags)
            }
            other => other,
        };
        Ok(NameInDirectory { parent: parent.map_err(failed(doing, path))?, name })
    }

    /// Creates a directory and its parents. Existing directories are not an error.
    pub(crate) fn make_directories(&self, path: &RelativePath) -> Result<(), Errno> {
        let ends = path.bytes.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(index, _)| index);
        for end in ends.chain([path.bytes.len()]) {
            let (above, name) =
                RelativePath { bytes: path.bytes.get(..end).unwrap_or_default().to_vec() }.split();
            let parent = self.open_existing(&above, OFlags::PATH | OFlags::DIRECTORY)?;
            match rustix::fs::mkdirat(&parent, &name, Mode::from_raw_mode(0o777)) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// Opens a name in a directory without following a symbolic link.
pub(crate) fn open_name(
    parent: impl AsFd,
    name: impl rustix::path::Arg,
    flags: OFlags,
) -> Result<OwnedFd, Errno> {
    let flags = flags | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NOCTTY | OFlags::NONBLOCK;
    openat(parent, name, flags, Mode::empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(path: &str) -> FileErrorCode {
        RelativePath::parse(path, Root::Refused).unwrap_err().code
    }

    #[test]
    fn absolute_and_parent_paths_are_refused() {
        for path in ["", ".", "/", "/etc/passwd", "..", "a/../b", "a/..", "./../x"] {
            assert_eq!(code(path), FileErrorCode::OutsideWorkspace, "{path}");
        }
    }

    #[test]
    fn nul_bytes_and_overlong_paths_are_refused() {
        assert_eq!(code("a\0b"), FileErrorCode::InvalidPath);
        assert_eq!(code(&"a/".repeat(3000)), FileErrorCode::InvalidPath);
    }

    #[test]
    fn path_is_normalized() {
        assert_eq!(RelativePath::parse("./a//b/./c/", Root::Refused).unwrap().to_text(), "a/b/c");
        assert!(RelativePath::parse(".", Root::Allowed).unwrap().is_root());
    }
}
