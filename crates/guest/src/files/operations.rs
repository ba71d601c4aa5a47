//! The file operations that are one message each: reading, stat, listing and moving. Neighboring modules implement
//! the others.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use protocol::{FileEntry, FileError, FileErrorCode, FileKind, FileOperation, FileReply, FileStat};
use rustix::fs::{AtFlags, FileType, OFlags, RenameFlags, Stat, fstat, readlinkat, renameat_with, statat};
use rustix::io::Errno;

use crate::files::errors::{failed, refusal};
use crate::files::resolve::{Parents, RelativePath, Root, Workspace};
use crate::files::walk::Walker;
use crate::files::{edit, remove, write};

/// The most bytes of a file in one reply.
const MAX_READ_BYTES: u64 = 8 * 1024 * 1024;
/// The most bytes of text encoded as JSON, with room for the rest of the message.
const MAX_JSON_BYTES: usize = 20 * 1024 * 1024;
/// The most entries in one listing.
const MAX_ENTRIES: u32 = 50_000;
/// The most bytes of paths in one listing.
const MAX_LISTING_BYTES: usize = 4 * 1024 * 1024;

pub(crate) fn operate(workspace: &Workspace, operation: FileOperation) -> Result<FileReply, FileError> {
    match operation {
        FileOperation::Read { path, offset, limit_bytes } => read(workspace, &path, offset, limit_bytes),
        FileOperation::Write { path, content, mode } => {
            write::write(workspace, &path, content.as_bytes(), mode)
        }
        FileOperation::Edit { path, old, new } => edit::edit(workspace, &path, &old, &new),
        FileOperation::Stat { path } => stat(workspace, &path).map(FileReply::Stat),
        FileOperation::List { path, depth, limit, skip } => list(workspace, &path, depth, limit, &skip),
        FileOperation::Move { from, to } => rename(workspace, &from, &to),
        FileOperation::Remove { path, recursive } => {
            let extent = if recursive { remove::Extent::WithContent } else { remove::Extent::Empty };
            remove::remove(workspace, &path, extent)
        }
        FileOperation::MakeDirectory { path } => make_directory(workspace, &path),
    }
}

/// Opens a regular file for reading. Follows symbolic links inside the workspace.
pub(crate) fn open_file(
    workspace: &Workspace,
    path: &RelativePath,
) -> Result<(std::fs::File, Stat), FileError> {
    let file = workspace.open_existing(path, OFlags::RDONLY).map_err(failed("reading", path))?;
    let stat = fstat(&file).map_err(failed("reading", path))?;
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => Ok((file.into(), stat)),
        FileType::Directory => Err(refusal(
            FileErrorCode::IsDirectory,
            format!("reading `{path}`: it is a directory; list it instead"),
        )),
        _ => Err(refusal(
            FileErrorCode::NotFile,
            format!("reading `{path}`: it is a pipe, socket or device, not a file"),
        )),
    }
}

/// Reads until the buffer is full or the file ends. Returns the number of bytes read.
pub(crate) fn read_at_most(file: &std::fs::File, buffer: &mut [u8], offset: u64) -> std::io::Result<usize> {
    let mut filled = 0;
    while let Some(room) = buffer.get_mut(filled..).filter(|room| !room.is_empty()) {
        match file.read_at(room, offset.saturating_add(filled as u64)) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

fn read(workspace: &Workspace, path: &str, offset: u64, limit: u64) -> Result<FileReply, FileError> {
    let path = RelativePath::parse(path, Root::Refused)?;
    let (file, stat) = open_file(workspace, &path)?;
    let size = size_of(&stat);
    let wanted = limit.min(MAX_READ_BYTES).min(size.saturating_sub(offset));
    let mut content = vec![0; usize::try_from(wanted).unwrap_or(0)];
    let count = read_at_most(&file, &mut content, offset).map_err(failed("reading", &path))?;
    content.truncate(count);
    let is_cut = offset.saturating_add(count as u64) < size;
    Ok(match as_text(content, is_cut) {
        Ok(content) => FileReply::Content { content, base64: false, size },
        Err(bytes) => FileReply::Content { content: STANDARD.encode(bytes), base64: true, size },
    })
}

/// Converts the bytes to text if they are text. A character cut off by the limit is left for the next read.
fn as_text(mut bytes: Vec<u8>, is_cut: bool) -> Result<String, Vec<u8>> {
    if let Err(error) = std::str::from_utf8(&bytes)
        && is_cut
        && error.error_len().is_none()
        && error.valid_up_to() > 0
    {
        bytes.truncate(error.valid_up_to());
    }
    // A NUL byte marks binary content. Control characters grow sixfold in JSON.
    if bytes.contains(&0) || json_bytes(&bytes) > MAX_JSON_BYTES {
        return Err(bytes);
    }
    String::from_utf8(bytes).map_err(std::string::FromUtf8Error::into_bytes)
}

fn json_bytes(bytes: &[u8]) -> usize {
    let escaped = |byte: &u8| match byte {
        b'"' | b'\\' | b'\n' | b'\r' | b'\t' => 2,
        0..=0x1f => 6,
        _ => 1,
    };
    bytes.iter().map(escaped).sum()
}

fn size_of(stat: &Stat) -> u64 {
    u64::try_from(stat.st_size).unwrap_or(0)
}

fn stat(workspace: &Workspace, path: &str) -> Result<FileStat, FileError> {
    let path = RelativePath::parse(path, Root::Allowed)?;
    if path.is_root() {
        let stat = fstat(workspace.as_fd()).map_err(failed("looking at", &path))?;
        return Ok(describe(&stat, None));
    }
    let place = workspace.place("looking at", &path, Parents::MustExist)?;
    let stat =
        statat(&place.parent, &place.name, AtFlags::SYMLINK_NOFOLLOW).map_err(failed("looking at", &path))?;
    Ok(describe(&stat, link_target(&stat, &place.parent, &place.name)))
}

/// Converts the metadata of a path for the reply.
pub(crate) fn describe(stat: &Stat, link_target: Option<String>) -> FileStat {
    let kind = match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => FileKind::File,
        FileType::Directory => FileKind::Directory,
        FileType::Symlink => FileKind::Symlink,
        _ => FileKind::Other,
    };
    let milliseconds = i64::try_from(stat.st_mtime_nsec).unwrap_or(0) / 1_000_000;
    let modified_ms = stat.st_mtime.saturating_mul(1000).saturating_add(milliseconds);
    FileStat { kind, size: size_of(stat), mode: stat.st_mode & 0o7777, modified_ms, link_target }
}

fn link_target(stat: &Stat, parent: impl AsFd, name: impl rustix::path::Arg) -> Option<String> {
    if FileType::from_raw_mode(stat.st_mode) != FileType::Symlink {
        return None;
    }
    let target = readlinkat(parent, name, Vec::new()).ok()?;
    Some(target.to_string_lossy().into_owned())
}

fn list(
    workspace: &Workspace,
    path: &str,
    depth: u32,
    limit: u32,
    skip: &[String],
) -> Result<FileReply, FileError> {
    let path = RelativePath::parse(path, Root::Allowed)?;
    let directory: OwnedFd = workspace.open_directory("listing", &path)?;
    let mut walker = Walker::start(directory).map_err(failed("listing", &path))?;
    let limit = limit.min(MAX_ENTRIES) as usize;
    let depth = usize::try_from(depth.max(1)).unwrap_or(usize::MAX);
    let mut entries: Vec<FileEntry> = Vec::new();
    let mut bytes = 0;
    let mut truncated = false;
    while let Some(entry) = walker.next() {
        if entry.depth >= depth || skip.iter().any(|name| name.as_bytes() == entry.name.as_bytes()) {
            walker.skip_contents();
        }
        let target = walker.parent().and_then(|parent| link_target(&entry.stat, parent, &entry.name));
        bytes += entry.path.len() + target.as_ref().map_or(0, String::len);
        if entries.len() >= limit || bytes > MAX_LISTING_BYTES {
            truncated = true;
            break;
        }
        entries
            .push(FileEntry { path: path.join(&entry.path).to_text(), stat: describe(&entry.stat, target) });
    }
    entries.sort_by(|one, other| one.path.cmp(&other.path));
    Ok(FileReply::Entries { entries, truncated })
}

fn rename(workspace: &Workspace, from: &str, to: &str) -> Result<FileReply, FileError> {
    let from = RelativePath::parse(from, Root::Refused)?;
    let to = RelativePath::parse(to, Root::Refused)?;
    let source = workspace.place("moving", &from, Parents::MustExist)?;
    statat(&source.parent, &source.name, AtFlags::SYMLINK_NOFOLLOW).map_err(failed("moving", &from))?;
    let target = workspace.place("moving to", &to, Parents::Make)?;
    let moved =
        renameat_with(&source.parent, &source.name, &target.parent, &target.name, RenameFlags::NOREPLACE);
    match moved {
        Ok(()) => Ok(FileReply::Done),
        Err(Errno::EXIST) => {
            let message = format!(
                "moving `{from}` to `{to}`: the target exists; remove it first or choose another name"
            );
            Err(refusal(FileErrorCode::Exists, message))
        }
        Err(Errno::XDEV) => {
            let message =
                format!("moving `{from}` to `{to}`: they are on different disks; copy and remove instead");
            Err(refusal(FileErrorCode::Other, message))
        }
        Err(Errno::INVAL) => Err(refusal(
            FileErrorCode::Other,
            format!("moving `{from}` to `{to}`: a directory cannot go into itself"),
        )),
        Err(error) => Err(failed("moving", &from)(error)),
    }
}

fn make_directory(workspace: &Workspace, path: &str) -> Result<FileReply, FileError> {
    let path = RelativePath::parse(path, Root::Allowed)?;
    if !path.is_root() {
        workspace.make_directories(&path).map_err(failed("making the directory", &path))?;
    }
    match workspace.open_existing(&path, OFlags::PATH | OFlags::DIRECTORY) {
        Ok(_) => Ok(FileReply::Done),
        Err(Errno::NOTDIR) => {
            let message = format!("making the directory `{path}`: something else is there already");
            Err(refusal(FileErrorCode::Exists, message))
        }
        Err(error) => Err(failed("making the directory", &path)(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn character_split_by_the_limit_is_left_for_the_next_read() {
        let cut = "hé".as_bytes()[..2].to_vec();
        assert_eq!(as_text(cut.clone(), true), Ok("h".to_owned()));
        assert!(as_text(cut, false).is_err());
    }

    #[test]
    fn text_too_large_as_json_is_sent_as_base64() {
        assert!(as_text(vec![1; 8 * 1024 * 1024], false).is_err());
        assert!(as_text(vec![b'"'; 8 * 1024 * 1024], false).is_ok());
    }
}
