//! The error type of the orchestrator.

use job::{IllegalTransition, InvalidField, JobId, JobState};
use protocol::{FileError, FileErrorCode, ProtocolError};
use sandbox::SandboxError;
use store::StoreError;

/// The code of the event.
pub(crate) const HOST_DISK_FULL: &str = "host_disk_full";

/// An error that is returned to API callers.
#[derive(Debug, thiserror::Error)]
pub enum OrchestratorError {
    #[error("{0}")]
    Invalid(#[from] InvalidField),
    /// A secret that the job uses is not available.
    #[error("secret {secret}: {why}")]
    Secret {
        secret: String,
        /// What is wrong; never contains the value.
        why: String,
    },
    /// The job has not prepared a model call yet.
    #[error("{0} has not called a model yet")]
    NoContext(JobId),
    #[error("no event {at}; the events are 1 to {newest}")]
    NoEvent {
        /// The requested sequence.
        at: u64,
        /// The sequence of the newest event.
        newest: u64,
    },
    #[error("no sandbox {0}")]
    NoSandbox(JobId),
    /// The desktop cannot be started, or has stopped.
    #[error("{0}")]
    NoDesktop(String),
    /// The log of the job refers to no image with this digest.
    #[error("no screenshot with the digest `{0}`")]
    NoScreenshot(String),
    #[error("job {job} has no output.zip: {why}")]
    NoArtifact { job: JobId, why: String },
    /// The job has not left a file of this name.
    #[error("job {job} has no download `{name}`: {why}")]
    NoResultFile { job: JobId, name: String, why: String },
    /// The caller may only watch the sandbox.
    #[error("this caller may only view the sandbox {0}")]
    ViewOnly(JobId),
    /// A user has taken over the sandbox; others may only watch.
    #[error("{by} has taken over the sandbox {job}; it is read-only for others until it is handed back")]
    TakenOver {
        job: JobId,
        /// The user who holds the sandbox.
        by: String,
    },
    /// The operation is not possible in the job's current state.
    #[error("{job} is {state}: {problem}")]
    WrongState {
        job: JobId,
        state: JobState,
        /// What is not possible, and what is.
        problem: String,
    },
    #[error("the queue is full ({queued} jobs wait); try again in {retry_after_s} s")]
    QueueFull {
        /// Number of jobs in the queue.
        queued: usize,
        retry_after_s: u64,
    },
    /// The limit on bare sandboxes is reached.
    #[error("the limit of {count} sandboxes is reached; end one, or try again in {retry_after_s} s")]
    TooManySandboxes {
        /// Number of existing sandboxes.
        count: usize,
        retry_after_s: u64,
    },
    #[error("no API key `{0}`")]
    NoKey(String),
    #[error("no valid share link `{0}`; it may have expired")]
    NoShare(String),
    /// The limit on shared links of the job is reached.
    #[error("{job} has reached the limit of {most} share links; revoke one")]
    TooManyShares {
        job: JobId,
        /// Maximum number of links per job.
        most: usize,
    },
    /// The configuration names a model, so that none can be chosen over the API.
    #[error("{by} names the model of this server and has priority; remove it there to choose a model here")]
    ModelConfigured {
        /// The file or variable.
        by: String,
    },
    /// An API key has reached one of its limits.
    #[error("{what}; try again in {retry_after_s} s or later")]
    KeyQuotaExceeded {
        /// What was used up, with the limit.
        what: String,
        retry_after_s: u64,
    },
    /// The idempotency key was used before with a different request body.
    #[error("this idempotency key was used before with a different body")]
    IdempotencyMismatch,
    /// The first request with this idempotency key has not finished.
    #[error("the first request with this idempotency key is still in progress; try again in a moment")]
    IdempotencyPending,
    /// A running server uses the data folder.
    #[error("{folder} is in use by another caisson server; stop that server, or choose another data folder")]
    FolderInUse { folder: String },
    /// The list of files that the job touched does not exist (yet).
    #[error("{0} has no file list yet; on this host the list may only be written at the end")]
    NoFileList(JobId),
    /// The disk that holds the sandbox disks has less free space than the sandboxes may need.
    #[error(
        "the host's disk has {free_mib} MiB left; sandboxes are paused until {needed_mib} MiB are free, nothing is lost"
    )]
    HostDiskFull {
        free_mib: u64,
        /// Space that must be free before sandboxes continue.
        needed_mib: u64,
    },
    /// Making or restoring a backup failed.
    #[error("{0}")]
    Backup(String),
    /// The workspace that the job starts from could not be fetched.
    #[error("{why}")]
    WorkspaceSource { why: String },
    /// The agent cannot work.
    #[error("{why}")]
    Agent { why: String },
    /// The driver of a job hit a bug in the server.
    #[error("internal error ({what}); please report it")]
    Fault {
        /// The panic message.
        what: String,
    },
    /// There is no such input request, or it was already answered.
    #[error("job {job} has no open request {request}")]
    NoRequest { job: JobId, request: String },
    /// A file operation failed.
    #[error("{0}")]
    File(#[from] FileError),
    /// The connection to the guest failed.
    #[error("lost the connection to the sandbox")]
    Link(#[source] ProtocolError),
    /// The store failed, or has no such job.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The sandbox could not be created or found.
    #[error(transparent)]
    Sandbox(#[from] SandboxError),
    /// An illegal state transition. Always a bug.
    #[error(transparent)]
    IllegalTransition(#[from] IllegalTransition),
    /// A file in the data folder could not be read or written.
    #[error("{doing}")]
    Io {
        /// The operation and its object.
        doing: String,
        #[source]
        source: std::io::Error,
    },
}

impl From<ProtocolError> for OrchestratorError {
    fn from(error: ProtocolError) -> Self {
        match error {
            ProtocolError::File(error) => Self::File(error),
            other => Self::Link(other),
        }
    }
}

impl OrchestratorError {
    /// A stable machine-readable code.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::Invalid(_) => "invalid_field",
            Self::Secret { .. } => "secret_unavailable",
            Self::NoSandbox(_) => "sandbox_not_found",
            Self::NoDesktop(_) => "no_desktop",
            Self::NoScreenshot(_) => "screenshot_not_found",
            Self::NoArtifact { .. } => "no_artifact",
            Self::NoResultFile { .. } => "download_not_found",
            Self::NoContext(_) => "no_context",
            Self::NoEvent { .. } => "event_not_found",
            Self::WrongState { .. } => "wrong_state",
            Self::TakenOver { .. } => "taken_over",
            Self::ViewOnly(_) => "view_only",
            Self::QueueFull { .. } => "queue_full",
            Self::TooManySandboxes { .. } => "too_many_sandboxes",
            Self::NoKey(_) => "key_not_found",
            Self::NoShare(_) => "share_not_found",
            Self::TooManyShares { .. } => "too_many_shares",
            Self::ModelConfigured { .. } => "model_configured",
            Self::KeyQuotaExceeded { .. } => "key_quota_exceeded",
            Self::IdempotencyMismatch => "idempotency_mismatch",
            Self::IdempotencyPending => "idempotency_pending",
            Self::FolderInUse { .. } => "folder_in_use",
            Self::HostDiskFull { .. } => HOST_DISK_FULL,
            Self::Backup(_) => "backup_failed",
            Self::NoFileList(_) => "no_file_list",
            Self::WorkspaceSource { .. } => "workspace_source_failed",
            Self::Agent { .. } => "agent_failed",
            Self::Fault { .. } => "internal_error",
            Self::NoRequest { .. } => "request_not_found",
            Self::File(error) => match error.code {
                FileErrorCode::OutsideWorkspace => "path_outside_workspace",
                FileErrorCode::InvalidPath => "invalid_path",
                FileErrorCode::NotFound => "file_not_found",
                FileErrorCode::Exists => "file_exists",
                FileErrorCode::IsDirectory => "is_directory",
                FileErrorCode::NotDirectory => "not_directory",
                FileErrorCode::NotFile => "not_a_file",
                FileErrorCode::LinkLoop => "link_loop",
                FileErrorCode::NotEmpty => "directory_not_empty",
                FileErrorCode::NoMatch => "text_not_found",
                FileErrorCode::ManyMatches => "text_not_unique",
                FileErrorCode::NotText => "not_text",
                FileErrorCode::Denied => "permission_denied",
                FileErrorCode::DiskFull => "disk_full",
                FileErrorCode::TooLarge => "file_too_large",
                FileErrorCode::Other => "file_error",
            },
            Self::Link(_) => "sandbox_unreachable",
            Self::Store(error) => match error {
                StoreError::NoJob(_) => "job_not_found",
                StoreError::Fenced(_) => "fenced",
                StoreError::Failed { .. } => "store_failed",
                StoreError::Unreadable { .. } => "store_unreadable",
                StoreError::Busy => "store_busy",
                StoreError::Unavailable { .. } => "store_unavailable",
                StoreError::DiskFull => "server_disk_full",
                StoreError::Closed => "shutting_down",
                StoreError::Audit(_) => "audit_failed",
                StoreError::DamagedCopy { .. } => "backup_failed",
                StoreError::Io { .. } => "io_failed",
            },
            Self::Sandbox(error) => match error {
                SandboxError::LimitUnenforceable { .. } => "limit_unenforceable",
                SandboxError::LimitOutOfRange { .. } => "limit_out_of_range",
                SandboxError::InsufficientIsolation { .. } => "isolation_unavailable",
                SandboxError::NoImage(_) => "image_not_found",
                SandboxError::Overcommitted { .. } => "server_disk_full",
                SandboxError::HostUnsupported { .. } => "host_unsupported",
                SandboxError::Unavailable { .. } => "backend_unavailable",
                SandboxError::NotRunning { .. } => "sandbox_not_running",
                SandboxError::Setup { .. } | SandboxError::Io { .. } => "sandbox_failed",
            },
            Self::IllegalTransition(_) => "illegal_transition",
            Self::Io { .. } => "io_failed",
        }
    }

    /// Whether the same call may succeed later without any change.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::KeyQuotaExceeded { .. }
            | Self::QueueFull { .. }
            | Self::TooManySandboxes { .. }
            | Self::IdempotencyPending
            | Self::Link(_)
            | Self::HostDiskFull { .. } => true,
            Self::Store(error) => error.is_retryable(),
            Self::Sandbox(error) => error.is_retryable(),
            _ => false,
        }
    }

    /// Returns a copy of an error that goes away once the operator frees disk space, makes the database writable or
    /// starts the sandbox backend. Jobs wait for as long as such an error lasts, and never fail because of it.
    pub(crate) fn passing(&self) -> Option<Self> {
        match self {
            Self::Store(error) => error.passing().map(Self::Store),
            Self::HostDiskFull { free_mib, needed_mib } => {
                Some(Self::HostDiskFull { free_mib: *free_mib, needed_mib: *needed_mib })
            }
            Self::Sandbox(SandboxError::Unavailable { what, remedy }) => {
                let (what, remedy) = (what.clone(), remedy.clone());
                Some(Self::Sandbox(SandboxError::Unavailable { what, remedy }))
            }
            _ => None,
        }
    }

    /// Whether the sandbox backend does not answer.
    pub(crate) fn is_backend_unavailable(&self) -> bool {
        matches!(self, Self::Sandbox(error) if error.is_unavailable())
    }

    /// Whether the error goes away once the operator acts, see [`Self::passing`].
    pub(crate) fn needs_operator(&self) -> bool {
        self.passing().is_some()
    }

    /// Converts an error of a file operation in the data folder.
    pub(crate) fn io(doing: impl Into<String>) -> impl FnOnce(std::io::Error) -> Self {
        let convert = StoreError::io(doing);
        move |source| match convert(source) {
            StoreError::Io { doing, source } => Self::Io { doing, source },
            other => Self::Store(other),
        }
    }
}

pub(crate) fn file_error(code: FileErrorCode, message: String) -> OrchestratorError {
    FileError { code, message }.into()
}
