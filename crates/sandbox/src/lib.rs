//! Where code runs. Knows nothing of jobs or models.
//!
//! A [`Backend`] makes a sandbox and opens a byte stream to the guest inside; everything else (processes, files,
//! ports, outgoing connections) travels on that stream and is written once for all backends, in the crate `protocol`.

#[cfg(feature = "conformance")]
pub mod conformance;
mod error;
#[cfg(target_os = "linux")]
pub mod namespace;
mod spec;

use async_trait::async_trait;

pub use error::SandboxError;
pub use spec::{
    BackendKind, Capabilities, Check, CheckState, Ended, EndedReason, Image, Isolation, Limit, LimitKind,
    Limits, Observed, Phase, SandboxId, SandboxSpec, Usage,
};

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

    /// Makes a sandbox. Idempotent for the same id.
    async fn create(&self, id: SandboxId, spec: &SandboxSpec) -> Result<(), SandboxError>;

    /// What is known of a sandbox from outside; [`Phase::Missing`] when there is none.
    async fn observe(&self, id: SandboxId) -> Result<Observed, SandboxError>;

    /// Every sandbox of this server, whatever its phase, and what is left of those that ended.
    async fn list(&self) -> Result<Vec<SandboxId>, SandboxError>;

    /// Opens the link to the guest. May be called again after a break; the newest link wins.
    async fn connect(&self, id: SandboxId) -> Result<GuestStream, SandboxError>;

    /// Ends the sandbox and removes every trace. Succeeds when it is already gone.
    async fn destroy(&self, id: SandboxId) -> Result<(), SandboxError>;

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
