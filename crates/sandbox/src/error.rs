//! Errors of sandbox backends.

use std::io::{self, ErrorKind};
use std::path::Path;

use crate::spec::{Isolation, LimitKind, SandboxId};

/// A failure of a backend.
#[derive(Debug, thiserror::Error)]
pub enum SandboxError {
    /// The host lacks something that every sandbox needs.
    #[error("{what}; {remedy}")]
    HostUnsupported {
        what: String,
        /// What the operator can do.
        remedy: String,
    },
    /// The engine or host service behind the backend does not answer. Its sandboxes may still be running, and the
    /// same call succeeds once it answers again.
    #[error("{what}; {remedy}")]
    Unavailable {
        /// What does not answer.
        what: String,
        /// What the operator can do.
        remedy: String,
    },
    /// A required limit that this host cannot enforce.
    #[error("this host cannot enforce the requested {limit} limit: {why}")]
    LimitUnenforceable { limit: LimitKind, why: String },
    /// A limit outside the allowed range.
    #[error("the {limit} limit {value} is out of range: {allowed}")]
    LimitOutOfRange {
        limit: LimitKind,
        /// The requested value.
        value: u64,
        /// The allowed range.
        allowed: String,
    },
    /// The spec requires more isolation than this backend provides.
    #[error("the request needs {asked:?} isolation, but this backend provides only {given:?}")]
    InsufficientIsolation { asked: Isolation, given: Isolation },
    /// The disks of all sandboxes together could take more room than the host has, and the operator does not allow
    /// that.
    #[error(
        "sandbox disks may grow by {committed_mib} MiB, the host's disk has only {free_mib} MiB free, and `namespace.disk_overcommit` is off"
    )]
    Overcommitted {
        /// How much more the disks could take, including the new one.
        committed_mib: u64,
        /// The free space of the host, without the reserve.
        free_mib: u64,
    },
    /// There is no such image.
    #[error("no image {0}")]
    NoImage(String),
    /// The sandbox does not exist or has ended.
    #[error("sandbox {id} is not running: {why}")]
    NotRunning { id: SandboxId, why: String },
    /// Setting up a sandbox failed at a step.
    #[error("setting up sandbox {id}: {step}")]
    Setup {
        id: SandboxId,
        /// What was being done.
        step: String,
        #[source]
        source: Option<std::io::Error>,
    },
    /// Something outside the sandbox failed.
    #[error("{doing}")]
    Io {
        /// The operation and its object.
        doing: String,
        #[source]
        source: std::io::Error,
    },
}

impl SandboxError {
    /// Whether the cause is a full host disk. Programs that the backend runs report that only as text.
    #[must_use]
    pub fn is_disk_full(&self) -> bool {
        if matches!(self, Self::Overcommitted { .. }) {
            return true;
        }
        let (Self::Io { source, .. } | Self::Setup { source: Some(source), .. }) = self else { return false };
        matches!(source.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded)
            || source.to_string().to_lowercase().contains("no space left on device")
    }

    /// Whether the engine or host service behind the backend does not answer at the moment.
    #[must_use]
    pub fn is_unavailable(&self) -> bool {
        matches!(self, Self::Unavailable { .. })
    }

    /// Whether the same call may succeed later without anyone changing anything.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Io { .. } | Self::Setup { .. } | Self::Unavailable { .. } | Self::Overcommitted { .. } => {
                true
            }
            Self::HostUnsupported { .. }
            | Self::LimitUnenforceable { .. }
            | Self::LimitOutOfRange { .. }
            | Self::InsufficientIsolation { .. }
            | Self::NoImage(_)
            | Self::NotRunning { .. } => false,
        }
    }
}

/// An error that names the operation and the path.
pub(crate) fn failed(doing: &str, path: &Path, source: io::Error) -> SandboxError {
    SandboxError::Io { doing: format!("{doing} {}", path.display()), source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_disk_is_detected_by_errno_and_by_message() {
        let failed = |source: io::Error| SandboxError::Io { doing: "making a disk".into(), source };
        assert!(failed(ErrorKind::StorageFull.into()).is_disk_full());
        assert!(failed(io::Error::from_raw_os_error(rustix::io::Errno::NOSPC.raw_os_error())).is_disk_full());
        assert!(failed(io::Error::other("mkfs.ext4: No space left on device")).is_disk_full());
        assert!(!failed(ErrorKind::NotFound.into()).is_disk_full());
        assert!(SandboxError::Overcommitted { committed_mib: 2, free_mib: 1 }.is_disk_full());
        assert!(!SandboxError::NoImage("missing".into()).is_disk_full());
    }
}
