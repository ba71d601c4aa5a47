//! Messages about files.
//!
//! Every path is relative to the workspace. The guest resolves paths so that neither `..` nor a symbolic link can
//! lead outside, even if another process swaps path components meanwhile.

use serde::{Deserialize, Serialize};

/// A file operation. One message holds the whole operation, so that the guest can journal it and perform it only
/// once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "operation")]
pub enum FileOperation {
    /// Reads a text or binary file. The reply contains at most `limit_bytes`, as base64 if they are not UTF-8.
    Read {
        path: String,
        /// The offset of the first byte.
        offset: u64,
        /// Most bytes to return, at most 8 MiB.
        limit_bytes: u64,
    },
    /// Replaces the whole file atomically. Creates parent directories.
    Write {
        path: String,
        content: String,
        /// Permission bits. If absent, the mode of the replaced file, or 0o644 for a new one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        mode: Option<u32>,
    },
    /// Replaces one occurrence of a text. Refused unless the text occurs exactly once.
    Edit {
        path: String,
        /// The text to find.
        old: String,
        /// The replacement.
        new: String,
    },
    /// Returns metadata of one path. Does not follow a final symbolic link.
    Stat { path: String },
    /// Lists a directory or a tree.
    List {
        path: String,
        /// How many levels; 1 for the directory alone.
        depth: u32,
        /// Most entries to return.
        limit: u32,
        /// Names of directories to list but not to enter, at any depth.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        skip: Vec<String>,
    },
    /// Moves a file or directory. Refused if the target exists.
    Move { from: String, to: String },
    /// Removes a file, or a directory with its contents.
    Remove {
        path: String,
        /// Required to remove a directory that is not empty.
        recursive: bool,
    },
    /// Creates a directory and its parents.
    MakeDirectory { path: String },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FileKind {
    File,
    Directory,
    Symlink,
    /// A device, socket or pipe.
    Other,
}

/// Metadata of one path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileStat {
    pub kind: FileKind,
    /// In bytes.
    pub size: u64,
    /// Permission bits.
    pub mode: u32,
    /// Modification time in milliseconds since the Unix epoch.
    pub modified_ms: i64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link_target: Option<String>,
}

/// An entry of a listing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileEntry {
    /// Relative to the workspace. Bytes that are not UTF-8 are replaced.
    pub path: String,
    #[serde(flatten)]
    pub stat: FileStat,
}

/// The result of a successful file operation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "reply")]
pub enum FileReply {
    Content {
        /// Text, or base64 if `base64` is set.
        content: String,
        base64: bool,
        /// Size of the whole file in bytes.
        size: u64,
    },
    /// The file was written.
    Written {
        /// The new size of the file in bytes.
        size: u64,
    },
    Stat(FileStat),
    Entries {
        /// Sorted by path.
        entries: Vec<FileEntry>,
        /// Whether there were more entries than the limit.
        truncated: bool,
    },
    /// The archive is complete except for `left_out`.
    Packed {
        /// At most 1,000 paths that could not be read or were too large, relative to the packed directory.
        left_out: Vec<String>,
    },
    Done,
}

/// Error code of a file operation. The names are stable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FileErrorCode {
    /// The path leads outside the workspace, is absolute, or is empty.
    OutsideWorkspace,
    /// The path contains a NUL byte, or the path or one of its components is too long.
    InvalidPath,
    NotFound,
    /// The target already exists.
    Exists,
    /// The path is a directory where a file is required.
    IsDirectory,
    /// The path is not a directory where one is required.
    NotDirectory,
    /// The path is a pipe, socket or device where a file is required.
    NotFile,
    /// A loop of symbolic links, or too many of them.
    LinkLoop,
    /// The directory is not empty and `recursive` is not set.
    NotEmpty,
    /// The text to replace does not occur in the file.
    NoMatch,
    /// The text to replace occurs more than once in the file.
    ManyMatches,
    /// The file is not UTF-8 where text is required.
    NotText,
    /// Permission denied.
    Denied,
    /// No space left on the disk.
    DiskFull,
    /// Larger than the operation allows.
    TooLarge,
    Other,
}

/// A failed file operation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct FileError {
    pub code: FileErrorCode,
    /// Names the operation, the path and the reason.
    pub message: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "result")]
pub enum FileResult {
    Ok(FileReply),
    Error(FileError),
}

impl From<FileResult> for Result<FileReply, FileError> {
    fn from(result: FileResult) -> Self {
        match result {
            FileResult::Ok(reply) => Ok(reply),
            FileResult::Error(error) => Err(error),
        }
    }
}

impl From<Result<FileReply, FileError>> for FileResult {
    fn from(result: Result<FileReply, FileError>) -> Self {
        match result {
            Ok(reply) => Self::Ok(reply),
            Err(error) => Self::Error(error),
        }
    }
}

/// A change in a watched directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WatchChange {
    /// Relative to the workspace.
    pub path: String,
    /// `created`, `modified`, `removed`, or `overflow` if changes were lost.
    pub change: String,
}
