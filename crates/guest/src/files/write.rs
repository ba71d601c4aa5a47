//! Replaces files as a whole: what is new is written beside the old and takes its name at the end.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Write;
use std::os::fd::AsFd;

use protocol::{FileError, FileErrorCode, FileReply};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, fchmod, openat, renameat, statat, unlinkat};
use rustix::io::Errno;

use crate::files::refusal::{failed, refusal};
use crate::files::resolve::{Parents, Place, RelativePath, Root, Workspace};
use crate::sys;

/// How the names of unfinished files begin.
pub(crate) const UNFINISHED_PREFIX: &str = ".caisson-unfinished-";
/// Permission bits of a new file.
const DEFAULT_MODE: u32 = 0o644;
/// Set-user-id and the like are not given away.
const PERMISSION_BITS: u32 = 0o777;

/// A file that has no name of its own yet. Dropped before [`Replacement::commit`], it vanishes.
pub(crate) struct Replacement {
    path: RelativePath,
    place: Place,
    unfinished: OsString,
    file: File,
    mode: u32,
    size: u64,
    is_committed: bool,
}

impl Replacement {
    /// Starts to replace a file, or to make it with its parent directories.
    pub(crate) fn begin(workspace: &Workspace, path: &str, mode: Option<u32>) -> Result<Self, FileError> {
        let path = RelativePath::parse(path, Root::Refused)?;
        let place = workspace.place("writing", &path, Parents::Make)?;
        let replaced = existing_mode(&place, &path)?;
        let unfinished = OsString::from(format!("{UNFINISHED_PREFIX}{}", sys::random_hex()));
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = openat(&place.parent, &unfinished, flags, Mode::from_raw_mode(0o600));
        let file = file.map_err(failed("writing", &path))?.into();
        let mode = mode.or(replaced).unwrap_or(DEFAULT_MODE) & PERMISSION_BITS;
        Ok(Self { path, place, unfinished, file, mode, size: 0, is_committed: false })
    }

    /// Writes more.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<(), FileError> {
        self.file.write_all(bytes).map_err(failed("writing", &self.path))?;
        self.size += bytes.len() as u64;
        Ok(())
    }

    /// Gives the file its name; how many bytes it has.
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

/// The permission bits of a file that will be replaced.
fn existing_mode(place: &Place, path: &RelativePath) -> Result<Option<u32>, FileError> {
    match statat(&place.parent, &place.name, AtFlags::SYMLINK_NOFOLLOW) {
        Err(Errno::NOENT) => Ok(None),
        Err(error) => Err(failed("writing", path)(error)),
        Ok(stat) => match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => Ok(Some(stat.st_mode)),
            FileType::Directory => {
                let message = format!("writing `{path}`: it is a directory; name a file in it");
                Err(refusal(FileErrorCode::IsDirectory, message))
            }
            // A link, pipe or socket gives way to the file.
            _ => Ok(None),
        },
    }
}

/// Replaces a file.
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

/// Makes a new file for writing; whatever has its name is removed first, never written through.
pub(crate) fn create_anew(parent: impl AsFd, name: &OsStr) -> Result<File, Errno> {
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
