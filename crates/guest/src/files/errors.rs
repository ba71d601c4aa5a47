//! Error messages of refused file operations.

use std::fmt::Display;

use protocol::{FileError, FileErrorCode};
use rustix::io::Errno;

/// Creates an error with a message for the user.
pub(crate) fn refusal(code: FileErrorCode, message: impl Into<String>) -> FileError {
    FileError { code, message: message.into() }
}

/// Converts an I/O error. The message names the operation and the path.
pub(crate) fn failed<E: Into<std::io::Error>>(
    doing: &str,
    path: impl Display,
) -> impl FnOnce(E) -> FileError {
    move |error| {
        let error = error.into();
        let (code, why) = explain(&error);
        refusal(code, format!("{doing} `{path}`: {why}"))
    }
}

fn explain(error: &std::io::Error) -> (FileErrorCode, String) {
    use FileErrorCode as Code;
    let (code, why) = match Errno::from_io_error(error) {
        Some(Errno::NOENT) => (Code::NotFound, "there is nothing there"),
        Some(Errno::EXIST) => (Code::Exists, "something is there already"),
        Some(Errno::ISDIR) => (Code::IsDirectory, "it is a directory"),
        Some(Errno::NOTDIR) => (Code::NotDirectory, "a part of the path is not a directory"),
        Some(Errno::NOTEMPTY) => (Code::NotEmpty, "the directory is not empty"),
        Some(Errno::ACCESS | Errno::PERM | Errno::ROFS) => (Code::Denied, "permission denied"),
        Some(Errno::NOSPC) => (Code::DiskFull, "no space is left on the sandbox's disk"),
        Some(Errno::DQUOT) => (Code::DiskFull, "the sandbox's disk quota is used up"),
        Some(Errno::XDEV) => (
            Code::OutsideWorkspace,
            "it leads out of the workspace; use a path that stays inside, without absolute links",
        ),
        Some(Errno::LOOP) => {
            (Code::LinkLoop, "it is a symbolic link that leads to itself, or there are too many on the way")
        }
        // Returned for opening a socket or a device without a driver.
        Some(Errno::NXIO | Errno::NODEV) => (Code::NotFile, "it is a pipe, socket or device, not a file"),
        Some(Errno::NAMETOOLONG) => (Code::InvalidPath, "a name is too long; at most 255 bytes are possible"),
        Some(Errno::FBIG) => (Code::TooLarge, "the file would be too large"),
        Some(Errno::AGAIN) => (Code::Other, "it is being changed all the time; try again"),
        Some(Errno::MFILE | Errno::NFILE) => (Code::Other, "too many files are open in the sandbox"),
        _ => return (Code::Other, error.to_string()),
    };
    (code, why.to_owned())
}
