//! Sandboxes: where code runs. This crate knows nothing of jobs or models.
//!
//! A [`Backend`] creates a sandbox and opens a byte stream to the guest inside. Everything else (processes, files,
//! ports, outgoing connections) travels on that stream and is implemented once for all backends, in the crate
//! `protocol`.

mod backend;
#[cfg(feature = "conformance")]
pub mod conformance;
#[cfg(all(feature = "docker", target_os = "linux"))]
pub mod docker;
mod error;
#[cfg(target_os = "linux")]
mod host;
#[cfg(target_os = "linux")]
mod limits;
mod locks;
#[cfg(target_os = "linux")]
pub mod namespace;
mod spec;

pub use backend::{
    Admission, Backend, Cleanup, DiskMonitor, Engine, FileAudit, FileLog, Freezer, GuestStream, Images,
    wait_while_starting,
};
pub use error::SandboxError;
#[cfg(target_os = "linux")]
pub use host::directories::spread_children;
pub use limits::allowed_range;
pub use spec::{
    BackendKind, Capabilities, Check, CheckState, DiskState, EndReason, Ended, HostDisk, Image, Isolation,
    Limit, LimitKind, Limits, Observed, Phase, SandboxId, SandboxSpec, SparseDisk, UnknownBackend, Usage,
};

/// The name of [`Image::Host`].
const HOST_IMAGE: &str = "host";
