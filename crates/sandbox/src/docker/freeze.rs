//! Freezing all processes of a sandbox with the engine's pause.

use async_trait::async_trait;

use super::create::inspect;
use super::engine::{self, CONFLICT, UNCHANGED};
use super::{DockerBackend, layout};
use crate::Freezer;
use crate::error::SandboxError;
use crate::spec::SandboxId;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Wanted {
    Still,
    Going,
}

#[async_trait]
impl Freezer for DockerBackend {
    async fn freeze(&self, id: SandboxId) -> Result<(), SandboxError> {
        set(self, id, Wanted::Still).await
    }

    async fn thaw(&self, id: SandboxId) -> Result<(), SandboxError> {
        set(self, id, Wanted::Going).await
    }
}

async fn set(backend: &DockerBackend, id: SandboxId, wanted: Wanted) -> Result<(), SandboxError> {
    let ready = backend.ready().await?;
    let not_running = |why: &str| SandboxError::NotRunning { id, why: why.into() };
    let found =
        inspect(&backend.inner, ready, id).await?.ok_or_else(|| not_running("it no longer exists"))?;
    let state = found.state.unwrap_or_default();
    if state.running != Some(true) {
        return Err(not_running("its container has ended"));
    }
    if state.paused == Some(wanted == Wanted::Still) {
        return Ok(());
    }
    let name = layout::container(id);
    let changed = match wanted {
        Wanted::Still => ready.client.pause_container(&name).await,
        Wanted::Going => ready.client.unpause_container(&name).await,
    };
    match changed {
        Ok(()) => Ok(()),
        // Another call was faster, or the container has just ended; the next observation will show which.
        Err(error) if matches!(engine::status(&error), Some(CONFLICT | UNCHANGED)) => Ok(()),
        Err(error) => Err(engine::explain(&backend.inner.config, &format!("pausing sandbox {id}"), error)),
    }
}
