//! The error type of stores.

use job::JobId;

/// An error of a store.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error("no job {0}")]
    NoJob(JobId),
    /// Another server owns the job now; this one must stop writing to it.
    #[error("another server now owns job {0}")]
    Fenced(JobId),
    /// Reading from or writing to the store failed.
    #[error("{what}")]
    Failed {
        /// What was being stored or read.
        what: String,
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// Stored data cannot be decoded: it is damaged, or was written by a different version.
    #[error("the database contains {what} that cannot be read")]
    Unreadable {
        /// What the data should be.
        what: String,
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// Another process has locked the database.
    #[error("the database is locked by another program; try again in a moment")]
    Busy,
    /// The database or its folder cannot be written, or the disk fails.
    #[error("cannot write to the data folder ({why}); nothing is lost, and the server keeps retrying")]
    Unavailable { why: String },
    /// The disk with the data folder is full.
    #[error("the disk with the data folder is full; nothing is lost, free some space")]
    DiskFull,
    /// The store accepts no more work.
    #[error("the server is shutting down")]
    Closed,
    /// The audit log cannot be read as requested.
    #[error("{0}")]
    Audit(String),
    /// A copy of a database is not intact.
    #[error("the database in it is damaged: {found}")]
    DamagedCopy { found: String },
    /// A file beside the database could not be read or written.
    #[error("{doing}")]
    Io {
        /// The operation and its object.
        doing: String,
        #[source]
        source: std::io::Error,
    },
}

impl StoreError {
    /// Whether the same call may succeed later without any change.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        matches!(
            self,
            Self::Failed { .. } | Self::Busy | Self::Unavailable { .. } | Self::DiskFull | Self::Closed
        )
    }

    /// Returns a copy of an error that goes away once the operator frees disk space or makes the database writable.
    #[must_use]
    pub fn passing(&self) -> Option<Self> {
        match self {
            Self::DiskFull => Some(Self::DiskFull),
            Self::Busy => Some(Self::Busy),
            Self::Unavailable { why } => Some(Self::Unavailable { why: why.clone() }),
            _ => None,
        }
    }

    /// Converts an error of a file operation in the data folder.
    pub fn io(doing: impl Into<String>) -> impl FnOnce(std::io::Error) -> Self {
        let doing = doing.into();
        move |source| match source.kind() {
            std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => Self::DiskFull,
            std::io::ErrorKind::ReadOnlyFilesystem => Self::Unavailable { why: format!("{doing}: {source}") },
            _ => Self::Io { doing, source },
        }
    }
}
