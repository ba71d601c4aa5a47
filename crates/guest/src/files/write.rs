//! Atomic file replacement: new content goes to a temporary file in the same directory, which is then renamed.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Write;
use std::os::fd::AsFd;

use protocol::{FileError, FileErrorCode, FileReply};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, fchmod, openat, renameat, statat, unlinkat};
use rustix::io::Errno;

use crate::files::errors::{failed, refusal};
use crate::files::resolve::{NameInDirectory, Parents, RelativePath, Root, Workspace};
use crate::random::random_hex;

/// Name prefix of temporary files.
pub(crate) const UNFINISHED_PREFIX: &str = ".caisson-unfinished-";
/// Permission bits of a new file.
const DEFAULT_MODE: u32 = 0o644;
/// Drops set-user-ID and similar bits.
const PERMISSION_BITS: u32 = 0o777;

/// A temporary file that becomes the target at [`Replacement::commit`]. Dropping it earlier removes it.
pub(crate) struct Replacement {
    path: RelativePath,
    place: NameInDirectory,
    unfinished: OsString,
    file: File,
    mode: u32,
    size: u64,
    is_committed: bool,
}

impl Replacement {
    /// Starts to replace or create a file. Creates parent directories.
    pub(crate) fn begin(workspace: &Workspace, path: &str, mode: Option<u32>) -> Result<Self, FileError> {
        let path = RelativePath::parse(path, Root::Refused)?;
        let place = workspace.place("writing", &path, Parents::Make)?;
        let replaced = existing_mode(&place, &path)?;
        let random = random_hex().map_err(failed("writing", &path))?;
        let unfinished = OsString::from(format!("{UNFINISHED_PREFIX}{random}"));
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = openat(&place.parent, &unfinished, flags, Mode::from_raw_mode(0o600));
        let file = file.map_err(failed("writing", &path))?.into();
        let mode = mode.or(replaced).unwrap_or(DEFAULT_MODE) & PERMISSION_BITS;
        Ok(Self { path, place, unfinished, file, mode, size: 0, is_committed: false })
    }

    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<(), FileError> {
        self.file.write_all(bytes).map_err(failed("writing", &self.path))?;
        self.size += bytes.len() as u64;
        Ok(())
    }

    /// Renames the file to its final name. Returns its size.
    pub(crate) fn commit(mut self) -> Result<u64, FileError> {
        fchmod(&self.file, Mode::from_raw_mode(self.mode)).map_err(failed("writing", &self.path))?;
        let renamed = renameat(&self.place.parent, &self.unfinished, &self.place.parent, &self.place.name);
        renamed.map_err(failed("writing", &self.path))?;
        self.is_committed = true;
        Ok(self.size)
    }
}

impl Drop for Replacement {
    fn drop(&mut self) {
        if !self.is_committed {
            let _ = unlinkat(&self.place.parent, &self.unfinished, AtFlags::empty());
        }
    }
}

/// The permission bits of the file to replace, if it is a regular file.
fn existing_mode(place: &NameInDirectory, path: &RelativePath) -> Result<Option<u32>, FileError> {
    match statat(&place.parent, &place.name, AtFlags::SYMLINK_NOFOLLOW) {
        Err(Errno::NOENT) => Ok(None),
        Err(error) => Err(failed("writing", path)(error)),
        Ok(stat) => match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => Ok(Some(stat.st_mode)),
            FileType::Directory => {
                let message = format!("writing `{path}`: it is a directory; name a file in it");
                Err(refusal(FileErrorCode::IsDirectory, message))
            }
            // The file replaces a link, pipe or socket.
            _ => Ok(None),
        },
    }
}

pub(crate) fn write(
    workspace: &Workspace,
    path: &str,
    content: &[u8],
    mode: Option<u32>,
) -> Result<FileReply, FileError> {
    let mut replacement = Replacement::begin(workspace, path, mode)?;
    replacement.write(content)?;
    Ok(FileReply::Written { size: replacement.commit()? })
}

/// Creates a new file for writing. Removes an existing entry with this name first, so that the write does not go
/// through a link.
pub(crate) fn create_replacing(parent: impl AsFd, name: &OsStr) -> Result<File, Errno> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let open = || openat(&parent, name, flags, Mode::from_raw_mode(0o600)).map(File::from);
    match open() {
        Err(Errno::EXIST) => {
            unlinkat(&parent, name, AtFlags::empty())?;
            open()
        }
        other => other,
    }
}
