//! Messages about files.
//!
//! Every path is relative to the workspace and stays inside it: the guest resolves it so that neither `..` nor a
//! symbolic link leads out, also while something swaps them.

use serde::{Deserialize, Serialize};

/// What to do with files. One message is the whole operation, so it can be journalled and done once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "operation")]
pub enum FileOperation {
    /// Reads a text or binary file; the answer carries at most `limit_bytes`, as base64 where it is not UTF-8.
    Read {
        /// The file.
        path: String,
        /// First byte.
        offset: u64,
        /// Most bytes to return, at most 8 MiB.
        limit_bytes: u64,
    },
    /// Replaces a file as a whole, atomically, making parent directories.
    Write {
        /// The file.
        path: String,
        /// Its new content.
        content: String,
        /// Permission bits, 0o644 when absent or those of the file that is replaced.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        mode: Option<u32>,
    },
    /// Replaces one occurrence of a text, refused when there is none or more than one.
    Edit {
        /// The file.
        path: String,
        /// The text to find.
        old: String,
        /// What to put in its place.
        new: String,
    },
    /// Describes one path without following a final link.
    Stat {
        /// The path.
        path: String,
    },
    /// Lists a directory, or a tree.
    List {
        /// The directory.
        path: String,
        /// How many levels, 1 for the directory alone.
        depth: u32,
        /// Most entries to return.
        limit: u32,
        /// Names of directories that are listed and not entered, wherever they are.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        skip: Vec<String>,
    },
    /// Moves a file or directory; refused when the target exists.
    Move {
        /// From.
        from: String,
        /// To.
        to: String,
    },
    /// Removes a file, or a directory with all that is in it.
    Remove {
        /// The path.
        path: String,
        /// Directories that are not empty need this.
        recursive: bool,
    },
    /// Makes a directory and its parents.
    MakeDirectory {
        /// The path.
        path: String,
    },
}

/// What kind of thing a path is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FileKind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A device, socket or pipe.
    Other,
}

/// Facts about one path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileStat {
    /// Kind.
    pub kind: FileKind,
    /// Size in bytes.
    pub size: u64,
    /// Permission bits.
    pub mode: u32,
    /// Last change, milliseconds since 1970.
    pub modified_ms: i64,
    /// Where a link points.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link_target: Option<String>,
}

/// An entry of a listing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileEntry {
    /// Path relative to the workspace; bytes that are not UTF-8 are replaced.
    pub path: String,
    /// Facts.
    #[serde(flatten)]
    pub stat: FileStat,
}

/// What a file operation gives back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "reply")]
pub enum FileReply {
    /// Content of a file.
    Content {
        /// Text, or base64 where `base64` says so.
        content: String,
        /// Whether `content` is base64.
        base64: bool,
        /// Size of the whole file.
        size: u64,
    },
    /// Done; so many bytes are in the file now.
    Written {
        /// Size.
        size: u64,
    },
    /// Facts about a path.
    Stat(FileStat),
    /// A listing.
    Entries {
        /// Sorted by path.
        entries: Vec<FileEntry>,
        /// Whether there were more than the limit.
        truncated: bool,
    },
    /// All is packed, but for these, which could not be read or are too large; at most 1,000 names.
    Packed {
        /// Paths relative to what was packed.
        left_out: Vec<String>,
    },
    /// Done.
    Done,
}

/// Why a file operation was refused; stable words for programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FileErrorCode {
    /// The path leads out of the workspace, is absolute, or is empty.
    OutsideWorkspace,
    /// The path has a NUL byte, or it or one of its names is too long.
    BadPath,
    /// There is nothing there.
    NotFound,
    /// Something is there already.
    Exists,
    /// A directory where a file was expected.
    IsDirectory,
    /// Something else where a directory was expected.
    NotDirectory,
    /// A pipe, socket or device where a file was expected.
    NotFile,
    /// Symbolic links that lead to each other, or too many of them.
    LinkLoop,
    /// A directory with content and no `recursive`.
    NotEmpty,
    /// The text to replace is not in the file.
    NoMatch,
    /// The text to replace is in the file more than once.
    ManyMatches,
    /// A file that is not UTF-8 where text was needed.
    NotText,
    /// Permission denied.
    Denied,
    /// No space left.
    DiskFull,
    /// Larger than the operation allows.
    TooLarge,
    /// Anything else.
    Other,
}

/// A refused file operation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct FileError {
    /// For programs.
    pub code: FileErrorCode,
    /// For people: what was being done to which path, and why not.
    pub message: String,
}

/// Done or refused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "result")]
pub enum FileResult {
    /// Done.
    Ok(FileReply),
    /// Refused.
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
    /// Path relative to the workspace.
    pub path: String,
    /// What happened: `created`, `modified`, `removed`, or `overflow` when changes were lost.
    pub change: String,
}
