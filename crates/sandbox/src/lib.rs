//! Sandboxes: where code runs. This crate knows nothing of jobs or models.
//!
//! A [`Backend`] creates a sandbox and opens a byte stream to the guest inside. Everything else (processes, files,
//! ports, outgoing connections) travels on that stream and is implemented once for all backends, in the crate
//! `protocol`.

#[cfg(target_os = "linux")]
mod background;
#[cfg(feature = "conformance")]
pub mod conformance;
#[cfg(all(feature = "docker", target_os = "linux"))]
pub mod docker;
mod error;
mod ext4_spread;
#[cfg(target_os = "linux")]
mod java_store;
#[cfg(target_os = "linux")]
mod limits;
mod locks;
#[cfg(target_os = "linux")]
pub mod namespace;
#[cfg(target_os = "linux")]
mod packages;
mod spec;

use async_trait::async_trait;

pub use error::SandboxError;
pub use ext4_spread::spread_children;
pub use limits::allowed_range;
pub use spec::{
    BackendKind, Capabilities, Check, CheckState, DiskState, EndReason, Ended, HostDisk, Image, Isolation,
    Limit, LimitKind, Limits, Observed, Phase, SandboxId, SandboxSpec, SparseDisk, Usage,
};

/// The name of [`Image::Host`].
const HOST_IMAGE: &str = "host";

/// The byte stream to a guest.
pub type GuestStream = Box<dyn protocol::ByteStream>;

/// Runs sandboxes on one kind of infrastructure.
///
/// A backend keeps no state in memory: everything that is needed to find a sandbox again is stored in the
/// infrastructure (directory names, labels), so a restarted orchestrator carries on from [`Backend::list`].
#[async_trait]
pub trait Backend: Send + Sync {
    fn kind(&self) -> BackendKind;

    /// Checks the host. The error says what the operator must fix.
    async fn preflight(&self) -> Result<Capabilities, SandboxError>;

    /// Asks whether the engine or host service behind the backend answers; fast. [`SandboxError::Unavailable`] if
    /// not.
    async fn ping(&self) -> Result<(), SandboxError> {
        Ok(())
    }

    /// All checks, for `doctor`. Never fails: problems are entries of the list.
    async fn checks(&self) -> Vec<Check>;

    /// Creates a sandbox. Idempotent for the same id. If the future is dropped, [`Backend::destroy`] still removes
    /// everything: it waits for the steps that cannot be interrupted.
    async fn create(&self, id: SandboxId, spec: &SandboxSpec) -> Result<(), SandboxError>;

    /// The state of a sandbox as seen from outside; [`Phase::Missing`] if there is none.
    async fn observe(&self, id: SandboxId) -> Result<Observed, SandboxError>;

    /// The limits that are not enforced for a sandbox, and why. Backends override this if they know without observing
    /// the sandbox, which is faster.
    async fn unenforced(&self, id: SandboxId) -> Result<Vec<(LimitKind, String)>, SandboxError> {
        Ok(self.observe(id).await?.unenforced)
    }

    /// Every sandbox of this server in any phase, including the remains of ended ones.
    async fn list(&self) -> Result<Vec<SandboxId>, SandboxError>;

    /// Opens the link to the guest. May be called again after the link breaks; the newest link wins.
    async fn connect(&self, id: SandboxId) -> Result<GuestStream, SandboxError>;

    /// Ends the sandbox and removes everything that belongs to it. Succeeds if it is already gone.
    async fn destroy(&self, id: SandboxId) -> Result<(), SandboxError>;

    /// The names of the images that can be used now: `host`, and those for [`Image::Named`].
    async fn images(&self) -> Result<Vec<String>, SandboxError> {
        Ok(vec![HOST_IMAGE.to_owned()])
    }

    /// A version that changes when an image's name gets new content; fast. `None` if the backend cannot tell.
    fn image_version(&self, _image: &Image) -> Option<String> {
        None
    }

    /// Whether a sandbox may be tried with the image of this name. A backend that may have more images than it can
    /// list returns true for any possible name; creating the sandbox then reports a missing image.
    async fn has_image(&self, name: &str) -> Result<bool, SandboxError> {
        Ok(self.images().await?.iter().any(|image| image == name))
    }

    /// What an operator can do about a missing image of this name; `None` if there is no specific advice.
    fn image_remedy(&self, _name: &str) -> Option<String> {
        None
    }

    /// Refuses limits that this backend cannot enforce, as far as it knows before a sandbox is created.
    async fn check_limits(&self, _limits: &Limits, _isolation: Isolation) -> Result<(), SandboxError> {
        Ok(())
    }

    /// Returns when the remains of destroyed sandboxes are gone. For processes that exit soon; in a long-running
    /// server the removal happens in the background.
    async fn settle(&self) -> Result<(), SandboxError> {
        Ok(())
    }

    /// Path of the log of files that the sandbox's processes access; `None` if the backend keeps no such log. It has
    /// one JSON object per line; the first line describes how the log is recorded.
    fn file_list(&self, _id: SandboxId) -> Option<std::path::PathBuf> {
        None
    }

    /// Returns when the file access log, if there is one, includes everything up to now; returns soon in any case.
    async fn settle_file_list(&self, _id: SandboxId) {}

    /// The host disk space that the disks of sandboxes share; `None` if each disk has reserved space.
    async fn host_disk(&self) -> Result<Option<HostDisk>, SandboxError> {
        Ok(None)
    }

    /// Flushes the disk of a sandbox to storage, and reports whether all of its data, now and earlier, has reached
    /// the disk. Covers only writes that completed before the call.
    async fn sync_disk(&self, _id: SandboxId) -> Result<DiskState, SandboxError> {
        Ok(DiskState::Whole)
    }

    /// Like [`Backend::sync_disk`], but reports what is known without flushing anything; fast.
    async fn disk_state(&self, _id: SandboxId) -> Result<DiskState, SandboxError> {
        Ok(DiskState::Whole)
    }

    /// The backend's support for freezing a sandbox; `None` if it has none.
    fn freezer(&self) -> Option<&dyn Freezer> {
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
