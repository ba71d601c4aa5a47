//! Where code runs. Knows nothing of jobs or models.
//!
//! A [`Backend`] makes a sandbox and opens a byte stream to the guest inside; everything else (processes, files,
//! ports, outgoing connections) travels on that stream and is written once for all backends, in the crate `protocol`.

#[cfg(target_os = "linux")]
mod background;
#[cfg(feature = "conformance")]
pub mod conformance;
#[cfg(all(feature = "docker", target_os = "linux"))]
pub mod docker;
mod error;
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
mod spread;

use async_trait::async_trait;

pub use error::SandboxError;
pub use limits::allowed_range;
pub use spec::{
    BackendKind, Capabilities, Check, CheckState, DiskState, Ended, EndedReason, HostDisk, Image, Isolation,
    Limit, LimitKind, Limits, Observed, Phase, SandboxId, SandboxSpec, SparseDisk, Usage,
};
pub use spread::spread_children;

/// The name of [`Image::Host`].
const HOST_IMAGE: &str = "host";

/// The byte stream to a guest.
pub type GuestStream = Box<dyn protocol::ByteStream>;

/// Runs sandboxes on one kind of infrastructure.
///
/// A backend keeps no state in memory: whatever is needed to find a sandbox again lives in the infrastructure
/// (directory names, labels), so a restarted orchestrator carries on from [`Backend::list`].
#[async_trait]
pub trait Backend: Send + Sync {
    /// Which kind of infrastructure this is.
    fn kind(&self) -> BackendKind;

    /// Checks the host. An error names what the operator must fix.
    async fn preflight(&self) -> Result<Capabilities, SandboxError>;

    /// Asks whether what runs the sandboxes answers now; quick. [`SandboxError::Unavailable`] where it does not.
    async fn ping(&self) -> Result<(), SandboxError> {
        Ok(())
    }

    /// Everything that was looked at, for `doctor`. Never fails: what is wrong is in the list.
    async fn checks(&self) -> Vec<Check>;

    /// Makes a sandbox. Idempotent for the same id. Where it is dropped, [`Backend::destroy`] leaves nothing of it: it
    /// waits for what cannot be stopped in the middle.
    async fn create(&self, id: SandboxId, spec: &SandboxSpec) -> Result<(), SandboxError>;

    /// What is known of a sandbox from outside; [`Phase::Missing`] when there is none.
    async fn observe(&self, id: SandboxId) -> Result<Observed, SandboxError>;

    /// The limits that a sandbox goes without, and why. A backend that knows without looking at the sandbox says so quicker.
    async fn unenforced(&self, id: SandboxId) -> Result<Vec<(LimitKind, String)>, SandboxError> {
        Ok(self.observe(id).await?.unenforced)
    }

    /// Every sandbox of this server, whatever its phase, and what is left of those that ended.
    async fn list(&self) -> Result<Vec<SandboxId>, SandboxError>;

    /// Opens the link to the guest. May be called again after a break; the newest link wins.
    async fn connect(&self, id: SandboxId) -> Result<GuestStream, SandboxError>;

    /// Ends the sandbox and removes every trace. Succeeds when it is already gone.
    async fn destroy(&self, id: SandboxId) -> Result<(), SandboxError>;

    /// The names of images that it can use now: `host`, and those of [`Image::Named`].
    async fn images(&self) -> Result<Vec<String>, SandboxError> {
        Ok(vec![HOST_IMAGE.to_owned()])
    }

    /// Tells the image of a name from an earlier one of that name; quick. `None` where nobody can tell.
    fn image_version(&self, _image: &Image) -> Option<String> {
        None
    }

    /// Whether a sandbox may be tried with the image of this name. A backend that can have more images than it can list
    /// says yes to what may be there; making the sandbox tells.
    async fn has_image(&self, name: &str) -> Result<bool, SandboxError> {
        Ok(self.images().await?.iter().any(|image| image == name))
    }

    /// What an operator can do about an image of this name that is not there; `None` where there is nothing special to say.
    fn image_remedy(&self, _name: &str) -> Option<String> {
        None
    }

    /// Refuses limits that this backend cannot enforce, as far as it knows before a sandbox is made.
    async fn check_limits(&self, _limits: &Limits, _isolation: Isolation) -> Result<(), SandboxError> {
        Ok(())
    }

    /// Returns when what destroyed sandboxes have left is gone, for who ends soon; it goes by itself in a server that
    /// lives on.
    async fn settle(&self) -> Result<(), SandboxError> {
        Ok(())
    }

    /// The list of files that the processes of a sandbox touch, as it is written; `None` where nobody lists them. A line of
    /// JSON each; the first says how the list is made.
    fn file_list(&self, _id: SandboxId) -> Option<std::path::PathBuf> {
        None
    }

    /// Returns when the list of files holds all that has happened up to now, where somebody lists them; soon in any case.
    async fn settle_file_list(&self, _id: SandboxId) {}

    /// The room on the host that the disks of sandboxes share; `None` where they have room of their own.
    async fn host_disk(&self) -> Result<Option<HostDisk>, SandboxError> {
        Ok(None)
    }

    /// Has everything written back that was written to the disk of a sandbox, and says whether all of it, now and before, has
    /// reached the disk. Only what was written before this is called is covered.
    async fn sync_disk(&self, _id: SandboxId) -> Result<DiskState, SandboxError> {
        Ok(DiskState::Whole)
    }

    /// The same as far as it is known without writing anything back; quick.
    async fn disk_state(&self, _id: SandboxId) -> Result<DiskState, SandboxError> {
        Ok(DiskState::Whole)
    }

    /// The ability to stop all processes of a sandbox and let them go on.
    fn freezer(&self) -> Option<&dyn Freezer> {
        None
    }
}

/// Stops all processes of a sandbox where they are.
#[async_trait]
pub trait Freezer: Send + Sync {
    /// Stops them; returns when all have stopped. Idempotent.
    async fn freeze(&self, id: SandboxId) -> Result<(), SandboxError>;
    /// Lets them go on. Idempotent.
    async fn thaw(&self, id: SandboxId) -> Result<(), SandboxError>;
}
