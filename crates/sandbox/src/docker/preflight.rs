//! Whether the engine can run sandboxes, and how well.

use super::checks::checks;
use super::{DockerBackend, create};
use crate::error::SandboxError;
use crate::host::checks::refuse_missing;
use crate::limits::LimitSupport as _;
use crate::spec::Capabilities;

/// Fails if anything is missing that every sandbox needs.
pub(super) async fn preflight(backend: &DockerBackend) -> Result<Capabilities, SandboxError> {
    let ready = backend.ready().await?;
    let checks = checks(backend).await;
    refuse_missing(&checks)?;
    Ok(Capabilities { isolation: create::ISOLATION, enforced: ready.offer.enforced(), checks })
}
