//! Ending a sandbox and removing everything that belongs to it: the container, its volumes, its directory.

use std::fs;

use bollard::query_parameters::{ListVolumesOptionsBuilder, RemoveVolumeOptions};

use super::cleanup::remove_later;
use super::engine::{self, NOT_FOUND};
use super::layout::{self, SANDBOX_LABEL};
use super::{DockerBackend, Inner, Ready, disk, named_containers};
use crate::error::{SandboxError, failed};
use crate::host::loop_device::wait_for_disk;
use crate::spec::SandboxId;

/// Ends a sandbox and removes it, after a call that creates it has ended. Returns when all that is left is garbage that
/// is deleted in the background.
pub(super) async fn destroy(backend: &DockerBackend, id: SandboxId) -> Result<(), SandboxError> {
    let _turn = backend.locks.turn(id).await;
    remove(backend, backend.ready().await?, id).await
}

/// Ends a sandbox and removes it. Returns when all that is left is garbage that is deleted in the background.
pub(super) async fn remove(
    backend: &DockerBackend,
    ready: &Ready,
    id: SandboxId,
) -> Result<(), SandboxError> {
    let inner = &backend.inner;
    let removed = named_containers::remove(&inner.config, &ready.client, &layout::container(id)).await;
    removed.map_err(|error| engine::explain(&inner.config, &format!("removing sandbox {id}"), error))?;
    for volume in volumes(inner, ready, Some(id)).await? {
        let removed = ready.client.remove_volume(&volume.name, None::<RemoveVolumeOptions>).await;
        match removed {
            Err(error) if engine::status(&error) != Some(NOT_FOUND) => {
                return Err(engine::explain(&inner.config, &format!("removing {}", volume.name), error));
            }
            _ => {}
        }
    }
    backend.blocking(move |inner| remove_directory(inner, id)).await
}

/// A volume that this server created.
pub(super) struct OwnVolume {
    name: String,
    pub(super) sandbox: Option<SandboxId>,
}

/// Lists the volumes of one sandbox, or of all.
pub(super) async fn volumes(
    inner: &Inner,
    ready: &Ready,
    id: Option<SandboxId>,
) -> Result<Vec<OwnVolume>, SandboxError> {
    let mut filter = inner.layout.filter();
    if let Some(id) = id {
        filter.entry("label".into()).or_default().push(format!("{SANDBOX_LABEL}={id}"));
    }
    let options = ListVolumesOptionsBuilder::new().filters(&filter).build();
    let answer = ready.client.list_volumes(Some(options)).await;
    let answer = answer.map_err(|error| engine::explain(&inner.config, "listing volumes", error))?;
    let own = answer.volumes.unwrap_or_default().into_iter().map(|volume| OwnVolume {
        sandbox: volume.labels.get(SANDBOX_LABEL).and_then(|text| text.parse().ok()),
        name: volume.name,
    });
    Ok(own.collect())
}

/// Whether anything is left of a sandbox that has no container.
pub(super) async fn has_remains(inner: &Inner, ready: &Ready, id: SandboxId) -> Result<bool, SandboxError> {
    Ok(inner.layout.sandbox(id).exists() || !volumes(inner, ready, Some(id)).await?.is_empty())
}

/// Removes the directory. The kernel may hold a disk for a moment after its sandbox is gone.
fn remove_directory(inner: &Inner, id: SandboxId) -> Result<(), SandboxError> {
    let directory = inner.layout.sandbox(id);
    if !directory.exists() {
        return Ok(());
    }
    disk::release(&inner.layout.disk(id))?;
    wait_for_disk(&directory, None, inner.config.stop_timeout)?;
    let trash = inner.layout.trash().join(id.to_string());
    fs::rename(&directory, &trash).map_err(|source| failed("removing", &directory, source))?;
    remove_later(vec![trash]);
    Ok(())
}
