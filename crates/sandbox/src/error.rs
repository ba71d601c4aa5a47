//! What can go wrong with a sandbox.

use std::io::ErrorKind;

use crate::spec::{Isolation, LimitKind, SandboxId};

/// A failure of a backend.
#[derive(Debug, thiserror::Error)]
pub enum SandboxError {
    /// The host lacks something that every sandbox needs.
    #[error("{what}; {remedy}")]
    HostUnfit {
        /// What is missing.
        what: String,
        /// What the operator can do.
        remedy: String,
    },
    /// What runs the sandboxes does not answer now. Those that it runs may live on; the same call succeeds once it answers again.
    #[error("{what}; {remedy}")]
    Unavailable {
        /// What does not answer.
        what: String,
        /// What the operator can do.
        remedy: String,
    },
    /// A limit was asked for that this host cannot enforce.
    #[error("this host cannot enforce the {limit} limit that was asked for: {why}")]
    LimitUnenforceable {
        /// Which one.
        limit: LimitKind,
        /// Why not.
        why: String,
    },
    /// A limit is outside what is possible.
    #[error("the {limit} limit {value} is not possible: {allowed}")]
    LimitOutOfRange {
        /// Which one.
        limit: LimitKind,
        /// What was asked for.
        value: u64,
        /// What is allowed.
        allowed: String,
    },
    /// More isolation was asked for than this backend gives.
    #[error("{asked:?} isolation was asked for, this backend gives {given:?}")]
    TooWeak {
        /// Asked for.
        asked: Isolation,
        /// Given.
        given: Isolation,
    },
    /// The disks of all sandboxes together could take more room than the host has, and the operator does not allow that.
    #[error(
        "the disks of sandboxes could take {promised_mib} MiB more, the host's disk has {free_mib} MiB free, and `sandbox.disk_overcommit` is off"
    )]
    Overcommitted {
        /// What the disks could still take, the new one among them.
        promised_mib: u64,
        /// What the host has, without the reserve.
        free_mib: u64,
    },
    /// There is no such image.
    #[error("there is no image {0}")]
    NoImage(String),
    /// There is no such sandbox, or it has ended.
    #[error("sandbox {id} is not running: {why}")]
    NotRunning {
        /// Which.
        id: SandboxId,
        /// Why not.
        why: String,
    },
    /// Setting up a sandbox failed at a step.
    #[error("setting up sandbox {id}: {step}")]
    Setup {
        /// Which.
        id: SandboxId,
        /// What was being done.
        step: String,
        /// The cause, where there is one.
        #[source]
        source: Option<std::io::Error>,
    },
    /// Something outside the sandbox failed.
    #[error("{doing}")]
    Io {
        /// What was being done to what.
        doing: String,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
}

impl SandboxError {
    /// Whether it failed for want of room on the host's disk. Programs that the backend runs say it in words alone.
    #[must_use]
    pub fn is_disk_full(&self) -> bool {
        if matches!(self, Self::Overcommitted { .. }) {
            return true;
        }
        let (Self::Io { source, .. } | Self::Setup { source: Some(source), .. }) = self else { return false };
        matches!(source.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded)
            || source.to_string().to_lowercase().contains("no space left on device")
    }

    /// Whether what runs the sandboxes does not answer now.
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
            Self::HostUnfit { .. }
            | Self::LimitUnenforceable { .. }
            | Self::LimitOutOfRange { .. }
            | Self::TooWeak { .. }
            | Self::NoImage(_)
            | Self::NotRunning { .. } => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[test]
    fn a_full_disk_is_known_by_its_number_and_by_its_words() {
        let failed = |source: io::Error| SandboxError::Io { doing: "making a disk".into(), source };
        assert!(failed(ErrorKind::StorageFull.into()).is_disk_full());
        assert!(failed(io::Error::from_raw_os_error(rustix::io::Errno::NOSPC.raw_os_error())).is_disk_full());
        assert!(failed(io::Error::other("mkfs.ext4: No space left on device")).is_disk_full());
        assert!(!failed(ErrorKind::NotFound.into()).is_disk_full());
        assert!(SandboxError::Overcommitted { promised_mib: 2, free_mib: 1 }.is_disk_full());
        assert!(!SandboxError::NoImage("missing".into()).is_disk_full());
    }
}
