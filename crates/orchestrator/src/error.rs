//! What can go wrong with jobs.

use protocol::{FileError, FileErrorCode, ProtocolError};
use sandbox::SandboxError;

use crate::ids::JobId;
use crate::request::InvalidField;
use crate::state::{IllegalChange, JobState};

/// A failure that a caller is told of.
#[derive(Debug, thiserror::Error)]
pub enum OrchestratorError {
    /// A field of the request cannot be accepted.
    #[error("{0}")]
    Invalid(#[from] InvalidField),
    /// There is no such job.
    #[error("there is no job {0}")]
    NoJob(JobId),
    /// A secret of the job cannot be had.
    #[error("secret {secret}: {why}")]
    Secret {
        /// Its name.
        secret: String,
        /// What is wrong; never its value.
        why: String,
    },
    /// No model was about to be asked in this job.
    #[error("no model was asked in job {0} yet")]
    NoContext(JobId),
    /// The log has no such event.
    #[error("there is no event {at} in this job: it has 1 to {newest}")]
    NoEvent {
        /// What was asked for.
        at: u64,
        /// The newest.
        newest: u64,
    },
    /// There is no such bare sandbox.
    #[error("there is no sandbox {0}")]
    NoSandbox(JobId),
    /// The desktop cannot be started, or has ended.
    #[error("{0}")]
    NoDesktop(String),
    /// The log of the job refers to no such picture.
    #[error("there is no picture with the digest `{0}` in this job")]
    NoPicture(String),
    /// The job has no result (yet).
    #[error("job {job} has no output.zip: {why}")]
    NoArtifact {
        /// Which job.
        job: JobId,
        /// Why not.
        why: String,
    },
    /// This visitor may look at the sandbox and do nothing in it.
    #[error("whoever asks may only watch the sandbox of job {0}")]
    OnlyWatches(JobId),
    /// Somebody works in the sandbox: others may watch.
    #[error(
        "{by} has taken over the sandbox of job {job}: others may watch it, and use it once it is handed back"
    )]
    TakenOver {
        /// The job.
        job: JobId,
        /// Who has it.
        by: String,
    },
    /// The job is in a state in which this cannot be done.
    #[error("job {job} is {state}: {problem}")]
    WrongState {
        /// Which job.
        job: JobId,
        /// Where it stands.
        state: JobState,
        /// What cannot be done and what can.
        problem: String,
    },
    /// The queue is full.
    #[error("the queue is full ({queued} jobs wait); try again in {retry_after_s} s")]
    QueueFull {
        /// How many wait.
        queued: usize,
        /// When to try again.
        retry_after_s: u64,
    },
    /// There are as many bare sandboxes as the operator allows.
    #[error(
        "{count} sandboxes live already, and no more are allowed; end one, or try again in {retry_after_s} s"
    )]
    TooManySandboxes {
        /// How many live.
        count: usize,
        /// When to try again.
        retry_after_s: u64,
    },
    /// There is no such key.
    #[error("there is no key `{0}`")]
    NoKey(String),
    /// A job has no such shared link.
    #[error("this job has no shared link `{0}`; it may have ended")]
    NoShare(String),
    /// A job has as many shared links as it may.
    #[error("{job} has {most} links that hold, and no more are allowed; revoke one")]
    TooManyShares {
        /// The job.
        job: JobId,
        /// How many it may have.
        most: usize,
    },
    /// A key has used up what it may.
    #[error("{what}; try again in {retry_after_s} s or later")]
    KeyUsedUp {
        /// What, with the limit.
        what: String,
        /// When to try again.
        retry_after_s: u64,
    },
    /// The same idempotency key came with another body.
    #[error("the idempotency key was used before with another body")]
    IdempotencyMismatch,
    /// The first request with this idempotency key is not over.
    #[error("the first request with this idempotency key is still being received; try again in a moment")]
    IdempotencyPending,
    /// Another server has taken the job over; this one must stop writing to it.
    #[error("job {0} has another owner now")]
    Fenced(JobId),
    /// The data folder belongs to a server that runs.
    #[error("{folder} is in use by another caisson server; stop it, or set another data folder")]
    FolderInUse {
        /// The data folder.
        folder: String,
    },
    /// Something could not be stored.
    #[error("{what}")]
    Store {
        /// What was being stored or read.
        what: String,
        /// The cause.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// Nobody has listed the files of the job (yet).
    #[error(
        "job {0} has no list of files (yet): it is written as things happen where the host allows it, else when the job ends"
    )]
    NoFileList(JobId),
    /// The audit trail cannot be looked at as asked.
    #[error("{0}")]
    Audit(String),
    /// What is stored cannot be understood: it is damaged, or of another version.
    #[error("the store holds {what} that cannot be read")]
    Unreadable {
        /// What it should be.
        what: String,
        /// The cause.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// Another program holds the database.
    #[error("the database is held by another program; try again in a moment")]
    StoreBusy,
    /// The database or the folder around it cannot be written, or their disk fails.
    #[error(
        "the data folder cannot be written now ({why}); the server tries again until it can, nothing was lost"
    )]
    StoreUnavailable {
        /// What failed.
        why: String,
    },
    /// The disk that holds the data folder is full.
    #[error("the disk that holds the data folder is full; free some space, nothing was lost")]
    DiskFull,
    /// The disk that holds the disks of sandboxes has less room than they may need.
    #[error(
        "the host's disk has {free_mib} MiB left, and sandboxes stand still until {needed_mib} MiB are free; nothing is lost"
    )]
    HostDiskFull {
        /// What is free.
        free_mib: u64,
        /// What must be.
        needed_mib: u64,
    },
    /// A backup could not be made or restored.
    #[error("{0}")]
    Backup(String),
    /// The workspace that the job starts from could not be had.
    #[error("{why}")]
    WorkspaceSource {
        /// What failed.
        why: String,
    },
    /// The agent cannot work.
    #[error("{why}")]
    Agent {
        /// Why not.
        why: String,
    },
    /// Whoever carries a job out met a fault in this program.
    #[error("a fault of the server itself stopped the work ({what}); please report it")]
    Fault {
        /// What the program said of it.
        what: String,
    },
    /// There is no such request, or it was answered.
    #[error("job {job} has no open request {request}")]
    NoRequest {
        /// Which job.
        job: JobId,
        /// Which request.
        request: String,
    },
    /// The server is going down.
    #[error("the server is shutting down")]
    ShuttingDown,
    /// A file operation was refused.
    #[error("{0}")]
    File(#[from] FileError),
    /// The link to the sandbox failed.
    #[error("speaking to the sandbox of the job")]
    Link(#[source] ProtocolError),
    /// The sandbox could not be made or found.
    #[error(transparent)]
    Sandbox(#[from] SandboxError),
    /// A change of state that the rules forbid: a bug.
    #[error(transparent)]
    IllegalChange(#[from] IllegalChange),
    /// A file of the data folder could not be read or written.
    #[error("{doing}")]
    Io {
        /// What was being done to what.
        doing: String,
        /// The cause.
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
    /// A stable word for programs.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::Invalid(_) => "invalid_field",
            Self::NoJob(_) => "job_not_found",
            Self::Secret { .. } => "secret_unavailable",
            Self::NoSandbox(_) => "sandbox_not_found",
            Self::NoDesktop(_) => "no_desktop",
            Self::NoPicture(_) => "picture_not_found",
            Self::NoArtifact { .. } => "no_artifact",
            Self::NoContext(_) => "no_context",
            Self::NoEvent { .. } => "no_event",
            Self::WrongState { .. } => "wrong_state",
            Self::TakenOver { .. } => "taken_over",
            Self::OnlyWatches(_) => "only_watches",
            Self::QueueFull { .. } => "queue_full",
            Self::TooManySandboxes { .. } => "too_many_sandboxes",
            Self::NoKey(_) => "key_not_found",
            Self::NoShare(_) => "share_not_found",
            Self::TooManyShares { .. } => "too_many_shares",
            Self::KeyUsedUp { .. } => "key_used_up",
            Self::IdempotencyMismatch => "idempotency_mismatch",
            Self::IdempotencyPending => "idempotency_pending",
            Self::Fenced(_) => "fenced",
            Self::FolderInUse { .. } => "folder_in_use",
            Self::Store { .. } => "store_failed",
            Self::Unreadable { .. } => "store_unreadable",
            Self::StoreBusy => "store_busy",
            Self::StoreUnavailable { .. } => "store_unavailable",
            Self::DiskFull => "server_disk_full",
            Self::HostDiskFull { .. } => crate::host_disk::HOST_DISK_FULL,
            Self::Backup(_) => "backup_failed",
            Self::NoFileList(_) => "no_file_list",
            Self::Audit(_) => "audit_failed",
            Self::WorkspaceSource { .. } => "workspace_source_failed",
            Self::Agent { .. } => "agent_failed",
            Self::Fault { .. } => "server_fault",
            Self::NoRequest { .. } => "request_not_found",
            Self::ShuttingDown => "shutting_down",
            Self::File(error) => match error.code {
                FileErrorCode::OutsideWorkspace => "path_outside_workspace",
                FileErrorCode::BadPath => "bad_path",
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
            Self::Sandbox(error) => match error {
                SandboxError::LimitUnenforceable { .. } => "limit_unenforceable",
                SandboxError::LimitOutOfRange { .. } => "limit_out_of_range",
                SandboxError::TooWeak { .. } => "isolation_unavailable",
                SandboxError::NoImage(_) => "image_not_found",
                SandboxError::Overcommitted { .. } => "server_disk_full",
                SandboxError::HostUnfit { .. } => "host_unfit",
                SandboxError::Unavailable { .. } => "backend_unavailable",
                SandboxError::NotRunning { .. } => "sandbox_not_running",
                SandboxError::Setup { .. } | SandboxError::Io { .. } => "sandbox_failed",
            },
            Self::IllegalChange(_) => "illegal_change",
            Self::Io { .. } => "io_failed",
        }
    }

    /// Whether the same call may succeed later without anyone changing anything.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::KeyUsedUp { .. }
            | Self::QueueFull { .. }
            | Self::TooManySandboxes { .. }
            | Self::IdempotencyPending
            | Self::ShuttingDown
            | Self::Link(_)
            | Self::Store { .. }
            | Self::StoreBusy
            | Self::StoreUnavailable { .. }
            | Self::HostDiskFull { .. }
            | Self::DiskFull => true,
            Self::Sandbox(error) => error.is_retryable(),
            _ => false,
        }
    }

    /// The same error again, where it is one that passes as soon as the operator makes room, lets the database be written or starts what
    /// runs the sandboxes: such a one is waited for as long as it takes, and ends no job.
    pub(crate) fn passing(&self) -> Option<Self> {
        match self {
            Self::DiskFull => Some(Self::DiskFull),
            Self::HostDiskFull { free_mib, needed_mib } => {
                Some(Self::HostDiskFull { free_mib: *free_mib, needed_mib: *needed_mib })
            }
            Self::StoreBusy => Some(Self::StoreBusy),
            Self::StoreUnavailable { why } => Some(Self::StoreUnavailable { why: why.clone() }),
            Self::Sandbox(SandboxError::Unavailable { what, remedy }) => {
                let (what, remedy) = (what.clone(), remedy.clone());
                Some(Self::Sandbox(SandboxError::Unavailable { what, remedy }))
            }
            _ => None,
        }
    }

    /// Whether what runs the sandboxes does not answer now.
    pub(crate) fn is_backend_away(&self) -> bool {
        matches!(self, Self::Sandbox(error) if error.is_unavailable())
    }

    /// Whether it passes as soon as the operator has acted; see [`Self::passing`].
    pub(crate) fn is_passing(&self) -> bool {
        self.passing().is_some()
    }

    pub(crate) fn io(doing: impl Into<String>) -> impl FnOnce(std::io::Error) -> Self {
        let doing = doing.into();
        move |source| match source.kind() {
            std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => Self::DiskFull,
            std::io::ErrorKind::ReadOnlyFilesystem => {
                Self::StoreUnavailable { why: format!("{doing}: {source}") }
            }
            _ => Self::Io { doing, source },
        }
    }
}
