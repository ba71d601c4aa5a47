//! The contract of a backend: eight methods, and abilities that only some backends have as traits of their own.

use std::io::Read;
use std::time::Duration;

use async_trait::async_trait;

use crate::error::SandboxError;
use crate::spec::{
    BackendKind, Capabilities, Check, DiskState, HostDisk, Image, Isolation, Limits, Observed, Phase,
    SandboxId, SandboxSpec,
};

/// Pauses between two observations of a sandbox that starts; each is twice as long as the one before.
const FIRST_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// The byte stream to a guest.
pub type GuestStream = Box<dyn protocol::ByteStream>;

/// The log of file accesses of a sandbox, for reading on a blocking thread.
pub type FileLog = Box<dyn Read + Send>;

/// Runs sandboxes on one kind of infrastructure.
///
/// [`create`](Self::create) requests a sandbox, [`observe`](Self::observe) reports what became of it,
/// [`connect`](Self::connect) opens the link to its guest, and [`destroy`](Self::destroy) removes it.
///
/// A backend keeps no state in memory: everything that is needed to find a sandbox again is stored in the
/// infrastructure (directory names, labels), so a restarted server carries on from [`list`](Self::list).
///
/// What only some backends can do is a trait of its own. A backend that implements one returns itself from the
/// method of the same name.
#[async_trait]
pub trait Backend: Send + Sync {
    fn kind(&self) -> BackendKind;

    /// Checks the host. The error says what the operator must fix.
    async fn preflight(&self) -> Result<Capabilities, SandboxError>;

    /// All checks, for `doctor`. Never fails: problems are entries of the list.
    async fn checks(&self) -> Vec<Check>;

    /// Requests a sandbox. Returns when the infrastructure has accepted the request, or later: a backend may do all
    /// the work before it returns. The caller waits with [`wait_while_starting`].
    ///
    /// Fails if the spec is refused or the infrastructure does not accept it. Whatever goes wrong after the return is
    /// reported by [`observe`](Self::observe) as [`Phase::Ended`].
    ///
    /// Idempotent for the same id. An id whose sandbox has ended is refused with [`SandboxError::NotRunning`] until
    /// it is destroyed. If the future is dropped, [`destroy`](Self::destroy) still removes everything: it waits for
    /// the steps that cannot be interrupted.
    async fn create(&self, id: SandboxId, spec: &SandboxSpec) -> Result<(), SandboxError>;

    /// What became of a requested sandbox, as seen from outside; [`Phase::Missing`] if there is none.
    async fn observe(&self, id: SandboxId) -> Result<Observed, SandboxError>;

    /// Every sandbox of this server in any phase, including the remains of ended ones.
    async fn list(&self) -> Result<Vec<SandboxId>, SandboxError>;

    /// Opens the link to the guest of a [`Phase::Ready`] sandbox. May be called again after the link breaks; the
    /// newest link wins.
    async fn connect(&self, id: SandboxId) -> Result<GuestStream, SandboxError>;

    /// Ends the sandbox, in any phase, and removes everything that belongs to it. Succeeds if it is already gone.
    async fn destroy(&self, id: SandboxId) -> Result<(), SandboxError>;

    fn freezer(&self) -> Option<&dyn Freezer> {
        None
    }

    /// `None` if there is only [`Image::Host`].
    fn images(&self) -> Option<&dyn Images> {
        None
    }

    fn file_audit(&self) -> Option<&dyn FileAudit> {
        None
    }

    /// `None` if each disk has reserved space, and every write error reaches the program that writes.
    fn disk_monitor(&self) -> Option<&dyn DiskMonitor> {
        None
    }

    /// `None` if no request depends on a service beside this process.
    fn engine(&self) -> Option<&dyn Engine> {
        None
    }

    /// `None` if limits are first checked when a sandbox is created.
    fn admission(&self) -> Option<&dyn Admission> {
        None
    }

    /// `None` if nothing is left when [`destroy`](Self::destroy) returns.
    fn cleanup(&self) -> Option<&dyn Cleanup> {
        None
    }
}

/// Freezes all processes of a sandbox.
#[async_trait]
pub trait Freezer: Send + Sync {
    /// Freezes the sandbox; returns when all processes have stopped. Idempotent.
    async fn freeze(&self, id: SandboxId) -> Result<(), SandboxError>;
    /// Resumes the sandbox. Idempotent.
    async fn thaw(&self, id: SandboxId) -> Result<(), SandboxError>;
}

/// Knows the images that sandboxes can have.
#[async_trait]
pub trait Images: Send + Sync {
    /// The names of the images that can be used now: `host`, and those for [`Image::Named`].
    async fn names(&self) -> Result<Vec<String>, SandboxError>;

    /// Whether a sandbox may be tried with the image of this name. A backend that may have more images than it can
    /// list returns true for any possible name; creating the sandbox then reports a missing image.
    async fn may_have(&self, name: &str) -> Result<bool, SandboxError> {
        Ok(self.names().await?.iter().any(|image| image == name))
    }

    /// A version that changes when an image's name gets new content; fast. `None` if the backend cannot tell.
    fn version(&self, _image: &Image) -> Option<String> {
        None
    }

    /// What an operator can do about a missing image of this name; `None` if there is no specific advice.
    fn remedy(&self, _name: &str) -> Option<String> {
        None
    }
}

/// Records the files that the processes of a sandbox access.
#[async_trait]
pub trait FileAudit: Send + Sync {
    /// Whether there is a log for this sandbox.
    fn is_recorded(&self, id: SandboxId) -> bool;

    /// Opens the log; `None` if there is none. It has one JSON object per line; the first line describes how the log
    /// is recorded. It includes everything up to now, unless the recorder does not answer soon.
    async fn open(&self, id: SandboxId) -> Result<Option<FileLog>, SandboxError>;
}

/// Watches disks whose space the host allocates as they fill up.
#[async_trait]
pub trait DiskMonitor: Send + Sync {
    /// The host disk space that the disks of sandboxes share.
    async fn host_disk(&self) -> Result<HostDisk, SandboxError>;

    /// Flushes the disk of a sandbox to storage, and reports whether all of its data, now and earlier, has reached
    /// the disk. Covers only writes that completed before the call.
    async fn sync(&self, id: SandboxId) -> Result<DiskState, SandboxError>;

    /// Like [`sync`](Self::sync), but reports what is known without flushing anything; fast.
    async fn state(&self, id: SandboxId) -> Result<DiskState, SandboxError>;
}

/// A service behind the backend that may be away while this server runs.
#[async_trait]
pub trait Engine: Send + Sync {
    /// Asks whether the service answers; fast. [`SandboxError::Unavailable`] if not.
    async fn ping(&self) -> Result<(), SandboxError>;
}

/// Refuses what cannot be created before it is requested.
#[async_trait]
pub trait Admission: Send + Sync {
    /// Refuses limits that this backend cannot enforce, as far as it knows.
    async fn check_limits(&self, limits: &Limits, isolation: Isolation) -> Result<(), SandboxError>;
}

/// Removes the remains of destroyed sandboxes in the background.
#[async_trait]
pub trait Cleanup: Send + Sync {
    /// Returns when the remains are gone, and with them unused folders that all servers of this host share. For
    /// processes that exit soon.
    async fn finish(&self) -> Result<(), SandboxError>;
}

/// Waits until a requested sandbox is no longer [`Phase::Starting`]. Dropping the future changes nothing: the sandbox
/// goes on starting until it is destroyed.
///
/// # Errors
/// The backend cannot observe the sandbox.
pub async fn wait_while_starting(backend: &dyn Backend, id: SandboxId) -> Result<Observed, SandboxError> {
    let mut pause = FIRST_PAUSE;
    let mut last = None;
    loop {
        let observed = backend.observe(id).await?;
        let Phase::Starting { message } = &observed.phase else { return Ok(observed) };
        if last.as_ref() != Some(message) {
            tracing::debug!(sandbox = %id, progress = %message, "the sandbox is starting");
            last = Some(message.clone());
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}
