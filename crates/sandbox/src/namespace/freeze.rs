//! Freezing all processes of a sandbox.

use async_trait::async_trait;
use launcher::cgroup::Frozen;

use super::{NamespaceBackend, create};
use crate::Freezer;
use crate::error::SandboxError;
use crate::spec::SandboxId;

#[async_trait]
impl Freezer for NamespaceBackend {
    async fn freeze(&self, id: SandboxId) -> Result<(), SandboxError> {
        set(self, id, Frozen::Yes).await
    }

    async fn thaw(&self, id: SandboxId) -> Result<(), SandboxError> {
        set(self, id, Frozen::No).await
    }
}

async fn set(backend: &NamespaceBackend, id: SandboxId, wanted: Frozen) -> Result<(), SandboxError> {
    let change = move |inner: &super::Inner| {
        let group = create::group(inner, id).filter(|group| group.directories().iter().all(|d| d.exists()));
        let Some(group) = group else {
            return Err(SandboxError::NotRunning { id, why: "it has no cgroup".into() });
        };
        group
            .set_frozen(wanted, inner.config.stop_timeout)
            .map_err(|error| SandboxError::Io { doing: error.step, source: error.source })
    };
    backend.blocking(change).await
}
