//! Limits on what a draft may still take: bytes of its disk, and files and directories in the server's own file
//! system.
//!
//! Everything in the folder of a draft is created here, one path component after another, so that all of it is
//! counted: an empty file and each parent directory use an inode of the server just like a large file.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use protocol::FileErrorCode;

use crate::error::OrchestratorError;
use crate::error::file_error;

/// Maximum number of files and directories of a draft, and of entries of one archive.
pub(crate) const MAX_FILES: u64 = 200_000;
/// Maximum number of components in a path of a draft.
pub(crate) const MAX_DEPTH: usize = 128;
/// Maximum length of a file name on common file systems.
const MAX_NAME_BYTES: usize = 255;
/// Number of characters of a long name that an error message repeats.
const SHOWN_CHARACTERS: usize = 80;

/// What a draft already uses.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Used {
    pub(crate) bytes: u64,
    /// Files and directories.
    pub(crate) entries: u64,
}

impl Used {
    /// Counts everything in a folder.
    pub(crate) fn of(folder: &Path) -> Self {
        let mut used = Self::default();
        used.add_tree(folder);
        used
    }

    fn add_tree(&mut self, folder: &Path) {
        let Ok(entries) = fs::read_dir(folder) else { return };
        for entry in entries.flatten() {
            self.entries += 1;
            match entry.metadata() {
                Ok(metadata) if metadata.is_dir() => self.add_tree(&entry.path()),
                Ok(metadata) => self.bytes = self.bytes.saturating_add(metadata.len()),
                Err(_) => {}
            }
        }
    }
}

/// What a draft may still use.
pub(crate) struct Room {
    pub(crate) bytes: u64,
    /// Files and directories.
    pub(crate) entries: u64,
}

impl Room {
    /// What remains on a disk of this size after subtracting what is used.
    pub(crate) fn beside(used: Used, disk_bytes: u64) -> Self {
        Self { bytes: disk_bytes.saturating_sub(used.bytes), entries: MAX_FILES.saturating_sub(used.entries) }
    }

    /// Creates a directory and its parents.
    pub(crate) fn make_directory(&mut self, folder: &Path, path: &str) -> Result<(), OrchestratorError> {
        check_depth(path)?;
        self.make_directories(folder, path.split('/'), path)
    }

    /// Creates a file and its parent directories, or truncates the existing file.
    pub(crate) fn make_file(
        &mut self,
        folder: &Path,
        path: &str,
        mode: u32,
    ) -> Result<File, OrchestratorError> {
        let target = self.prepare_file(folder, path)?;
        create(&target, mode).map_err(|error| path_error(path, error))
    }

    /// Creates the parent directories of a file, counts the file if it does not exist, and returns its path.
    pub(crate) fn prepare_file(&mut self, folder: &Path, path: &str) -> Result<PathBuf, OrchestratorError> {
        check_depth(path)?;
        let parents = path.rsplit_once('/').map(|(parents, _)| parents);
        self.make_directories(folder, parents.into_iter().flat_map(|parents| parents.split('/')), path)?;
        let target = folder.join(path);
        if fs::symlink_metadata(&target).is_err() {
            self.take_entry()?;
        }
        Ok(target)
    }

    fn make_directories<'a>(
        &mut self,
        folder: &Path,
        names: impl Iterator<Item = &'a str>,
        path: &str,
    ) -> Result<(), OrchestratorError> {
        fs::create_dir_all(folder).map_err(|error| path_error(path, error))?;
        let mut directory = folder.to_path_buf();
        for name in names {
            directory.push(name);
            if directory.is_dir() {
                continue;
            }
            self.take_entry()?;
            fs::create_dir(&directory).map_err(|error| path_error(path, error))?;
        }
        Ok(())
    }

    fn take_entry(&mut self) -> Result<(), OrchestratorError> {
        self.entries = self.entries.checked_sub(1).ok_or_else(|| {
            let problem =
                format!("a job brings at most {MAX_FILES} files and directories, and these are more");
            file_error(FileErrorCode::TooLarge, problem)
        })?;
        Ok(())
    }
}

fn check_depth(path: &str) -> Result<(), OrchestratorError> {
    let depth = path.split('/').count();
    if depth <= MAX_DEPTH {
        return Ok(());
    }
    let shown: String = path.chars().take(SHOWN_CHARACTERS).collect();
    let problem = format!("`{shown}...` is {depth} names deep, at most {MAX_DEPTH} are allowed");
    Err(file_error(FileErrorCode::TooLarge, problem))
}

/// Creates a file, or truncates the existing one.
pub(crate) fn create(target: &Path, mode: u32) -> io::Result<File> {
    OpenOptions::new().write(true).create(true).truncate(true).mode(mode & 0o777).open(target)
}

/// The error for files that exceed the remaining space.
pub(crate) fn too_large(left: u64) -> OrchestratorError {
    file_error(
        FileErrorCode::TooLarge,
        format!("the files take more than the {left} bytes that the job's disk has left"),
    )
}

/// Converts an error from creating or removing something in a draft.
pub(crate) fn path_error(path: &str, error: io::Error) -> OrchestratorError {
    let code = match error.kind() {
        io::ErrorKind::InvalidFilename => {
            let shown: String = path.chars().take(SHOWN_CHARACTERS).collect();
            let problem =
                format!("`{shown}...`: a name is too long; at most {MAX_NAME_BYTES} bytes are possible");
            return file_error(FileErrorCode::InvalidPath, problem);
        }
        io::ErrorKind::NotFound => FileErrorCode::NotFound,
        io::ErrorKind::IsADirectory => FileErrorCode::IsDirectory,
        io::ErrorKind::NotADirectory | io::ErrorKind::AlreadyExists => FileErrorCode::NotDirectory,
        _ => return OrchestratorError::io(format!("writing {path}"))(error),
    };
    file_error(code, format!("`{path}`: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_long_file_name_is_a_bad_path() {
        let folder = tempfile::tempdir().unwrap();
        let room = || Room { bytes: 10, entries: 10 };
        for path in ["n".repeat(256), format!("{}/file", "n".repeat(256)), "ä".repeat(128)] {
            let error = room().make_file(folder.path(), &path, 0o644).unwrap_err();
            assert_eq!(error.code(), "invalid_path", "{error}");
            assert!(
                error.to_string().contains("at most 255 bytes") && error.to_string().len() < 300,
                "{error}"
            );
        }
        room().make_file(folder.path(), &"n".repeat(255), 0o644).unwrap();
    }
}
