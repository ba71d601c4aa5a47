//! Removes files and trees without following symbolic links.

use std::ffi::CString;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;

use protocol::{FileError, FileErrorCode, FileReply};
use rustix::fs::{AtFlags, Dir, FileType, OFlags, statat, unlinkat};
use rustix::io::Errno;

use crate::files::errors::{failed, refusal};
use crate::files::resolve::{NameInDirectory, Parents, RelativePath, Root, Workspace, open_name};
use crate::files::walk::MAX_DEPTH;

/// What may be removed if the path is a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Extent {
    /// Only an empty directory.
    Empty,
    /// The directory with its contents.
    WithContent,
}

pub(crate) fn remove(workspace: &Workspace, path: &str, extent: Extent) -> Result<FileReply, FileError> {
    let path = RelativePath::parse(path, Root::Refused)?;
    let place = workspace.place("removing", &path, Parents::MustExist)?;
    let stat =
        statat(&place.parent, &place.name, AtFlags::SYMLINK_NOFOLLOW).map_err(failed("removing", &path))?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::Directory {
        unlinkat(&place.parent, &place.name, AtFlags::empty()).map_err(failed("removing", &path))?;
        return Ok(FileReply::Done);
    }
    match unlinkat(&place.parent, &place.name, AtFlags::REMOVEDIR) {
        Ok(()) => return Ok(FileReply::Done),
        Err(Errno::NOTEMPTY | Errno::EXIST) if extent == Extent::WithContent => {}
        Err(Errno::NOTEMPTY | Errno::EXIST) => {
            let message = format!(
                "removing `{path}`: the directory is not empty; say `recursive` to remove its content"
            );
            return Err(refusal(FileErrorCode::NotEmpty, message));
        }
        Err(error) => return Err(failed("removing", &path)(error)),
    }
    match remove_tree(&place) {
        Ok(()) => Ok(FileReply::Done),
        Err(Errno::TOOBIG) => {
            let message = format!(
                "removing `{path}`: it is nested more than {MAX_DEPTH} levels deep; use `rm -rf` instead"
            );
            Err(refusal(FileErrorCode::Other, message))
        }
        Err(error) => Err(failed("removing", &path)(error)),
    }
}

struct Level {
    directory: Dir,
    name: CString,
}

/// Removes directories from the bottom up. The directories of all parent levels stay open, so another process cannot
/// swap them.
fn remove_tree(place: &NameInDirectory) -> Result<(), Errno> {
    let name = CString::new(place.name.as_bytes()).map_err(|_| Errno::INVAL)?;
    let mut levels = vec![open_level(&place.parent, name)?];
    while let Some(level) = levels.last_mut() {
        let Some(entry) = level.directory.read() else {
            let Some(done) = levels.pop() else { break };
            match levels.last_mut() {
                Some(above) => {
                    ignore_gone(unlinkat(above.directory.fd()?, &done.name, AtFlags::REMOVEDIR))?;
                }
                None => ignore_gone(unlinkat(&place.parent, &done.name, AtFlags::REMOVEDIR))?,
            }
            continue;
        };
        let name = entry?.file_name().to_owned();
        if matches!(name.as_bytes(), b"." | b"..") {
            continue;
        }
        match unlinkat(level.directory.fd()?, &name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => continue,
            Err(Errno::ISDIR | Errno::PERM) => {}
            Err(error) => return Err(error),
        }
        if levels.len() >= MAX_DEPTH {
            return Err(Errno::TOOBIG);
        }
        let below = match levels.last() {
            Some(level) => open_level(level.directory.fd()?, name),
            None => break,
        };
        match below {
            Ok(below) => levels.push(below),
            Err(Errno::NOENT) => {}
            // The entry was not a directory after all, so report the original unlink error.
            Err(Errno::NOTDIR) => return Err(Errno::PERM),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn open_level(parent: impl AsFd, name: CString) -> Result<Level, Errno> {
    let directory = Dir::new(open_name(parent, &name, OFlags::RDONLY | OFlags::DIRECTORY)?)?;
    Ok(Level { directory, name })
}

fn ignore_gone(result: Result<(), Errno>) -> Result<(), Errno> {
    match result {
        Err(Errno::NOENT) => Ok(()),
        other => other,
    }
}
