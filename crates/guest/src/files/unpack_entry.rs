//! Writes the entries of an archive to the workspace.

use std::fs::File;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use protocol::{FileError, FileErrorCode};
use rustix::fs::{
    AtFlags, FileType, Mode, Timespec, Timestamps, fchmod, futimens, linkat, statat, symlinkat, unlinkat,
};
use rustix::io::Errno;

use crate::files::errors::{failed, refusal};
use crate::files::resolve::{Parents, RelativePath, Root, Workspace};
use crate::files::write::create_replacing;

/// The directory that an archive is unpacked into.
pub(crate) struct Target {
    workspace: Arc<Workspace>,
    directory: RelativePath,
}

/// The metadata of an entry.
pub(crate) struct Member {
    /// As stored in the archive.
    pub(crate) path: Vec<u8>,
    /// The target of a link.
    pub(crate) link: Option<Vec<u8>>,
    /// Permission bits.
    pub(crate) mode: u32,
    /// Modification time in seconds since the Unix epoch.
    pub(crate) mtime: u64,
}

impl Member {
    /// Creates the error that refuses this entry.
    pub(crate) fn refuse(&self, why: &str) -> FileError {
        let path = String::from_utf8_lossy(&self.path);
        refusal(FileErrorCode::OutsideWorkspace, format!("unpacking `{path}`: the entry {why}"))
    }
}

/// A file whose content has not fully arrived.
pub(crate) struct Unfinished {
    path: RelativePath,
    file: File,
    mode: u32,
    mtime: u64,
}

impl Unfinished {
    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<(), FileError> {
        self.file.write_all(bytes).map_err(failed("unpacking", &self.path))
    }

    /// Sets permission bits and modification time.
    pub(crate) fn finish(self) -> Result<(), FileError> {
        let changed = Timespec { tv_sec: i64::try_from(self.mtime).unwrap_or(0), tv_nsec: 0 };
        let times = Timestamps { last_access: changed, last_modification: changed };
        futimens(&self.file, &times).map_err(failed("unpacking", &self.path))?;
        fchmod(&self.file, Mode::from_raw_mode(self.mode & 0o777)).map_err(failed("unpacking", &self.path))
    }
}

impl Target {
    /// Opens a directory of the workspace. Creates it if it is missing.
    pub(crate) fn open(workspace: Arc<Workspace>, path: &str) -> Result<Self, FileError> {
        let directory = RelativePath::parse(path, Root::Allowed)?;
        if !directory.is_root() {
            workspace.make_directories(&directory).map_err(failed("unpacking into", &directory))?;
        }
        workspace.open_directory("unpacking into", &directory)?;
        Ok(Self { workspace, directory })
    }

    fn resolve(&self, path: &[u8]) -> Result<RelativePath, FileError> {
        let below = RelativePath::parse(path, Root::Refused)
            .map_err(|error| refusal(error.code, format!("unpacking: {}", error.message)))?;
        Ok(self.directory.join(below.to_bytes()))
    }

    /// Creates a directory. Keeps an existing one.
    pub(crate) fn make_directory(&self, member: &Member) -> Result<(), FileError> {
        if RelativePath::parse(&member.path, Root::Allowed)?.is_root() {
            return Ok(());
        }
        let path = self.resolve(&member.path)?;
        self.workspace.make_directories(&path).map_err(failed("unpacking", &path))?;
        let directory = self.workspace.open_directory("unpacking", &path)?;
        // Later entries must be able to be created inside.
        fchmod(&directory, Mode::from_raw_mode(member.mode & 0o777 | 0o700))
            .map_err(failed("unpacking", &path))
    }

    /// Creates a file that receives content.
    pub(crate) fn create_file(&self, member: &Member) -> Result<Unfinished, FileError> {
        let path = self.resolve(&member.path)?;
        let place = self.workspace.place("unpacking", &path, Parents::Make)?;
        let file = create_replacing(&place.parent, &place.name).map_err(failed("unpacking", &path))?;
        Ok(Unfinished { path, file, mode: member.mode, mtime: member.mtime })
    }

    /// Creates a symbolic link with any target: a virtual environment has one to `/usr/bin/python3`. This is safe
    /// because every path is resolved beneath the workspace, so the guest never writes through the link.
    pub(crate) fn make_symlink(&self, member: &Member) -> Result<(), FileError> {
        let path = self.resolve(&member.path)?;
        let target = member.link.as_deref().filter(|target| !target.is_empty() && !target.contains(&0));
        let target = target.ok_or_else(|| member.refuse("is a link that points nowhere"))?;
        let place = self.workspace.place("unpacking", &path, Parents::Make)?;
        let target = std::ffi::OsStr::from_bytes(target);
        let link = || symlinkat(target, &place.parent, &place.name);
        match link() {
            Err(Errno::EXIST) => unlinkat(&place.parent, &place.name, AtFlags::empty()).and_then(|()| link()),
            other => other,
        }
        .map_err(failed("unpacking", &path))
    }

    /// Creates a hard link to a file below the target directory.
    pub(crate) fn make_hard_link(&self, member: &Member) -> Result<(), FileError> {
        let path = self.resolve(&member.path)?;
        let target = member.link.as_deref().ok_or_else(|| member.refuse("is a link that points nowhere"))?;
        let source = self.workspace.place("unpacking", &self.resolve(target)?, Parents::MustExist)?;
        let stat = statat(&source.parent, &source.name, AtFlags::SYMLINK_NOFOLLOW)
            .map_err(failed("unpacking", &path))?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(member.refuse("is a hard link to something that is not a file"));
        }
        let place = self.workspace.place("unpacking", &path, Parents::Make)?;
        let link = || linkat(&source.parent, &source.name, &place.parent, &place.name, AtFlags::empty());
        match link() {
            Err(Errno::EXIST) => unlinkat(&place.parent, &place.name, AtFlags::empty()).and_then(|()| link()),
            other => other,
        }
        .map_err(failed("unpacking", &path))
    }
}
