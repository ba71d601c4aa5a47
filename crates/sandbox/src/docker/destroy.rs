//! Ending a sandbox and removing everything that belongs to it: the container, its volumes, its directory.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use bollard::query_parameters::{ListVolumesOptionsBuilder, RemoveVolumeOptions};

use super::engine::{self, NOT_FOUND};
use super::layout::{self, SANDBOX_LABEL};
use super::{DockerBackend, Inner, Ready, disk, named_containers};
use crate::error::SandboxError;
use crate::namespace::destroy::wait_for_disk;
use crate::namespace::layout::failed;
use crate::spec::SandboxId;

/// Ends a sandbox and removes it. Returns when all that is left is garbage that is deleted in the background.
pub(super) async fn destroy(
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

/// Deletes the trash of earlier servers in the background.
pub(super) fn empty_trash(inner: &Inner) {
    remove_later(trash(inner));
}

/// Like [`empty_trash`], but returns when the trash is gone.
pub(super) fn empty_trash_now(inner: &Inner) -> Result<(), SandboxError> {
    for path in trash(inner) {
        let removed = remove_tree(&path);
        // The background thread may be deleting the same tree.
        if path.exists() {
            removed.map_err(|source| failed("removing", &path, source))?;
        }
    }
    Ok(())
}

fn trash(inner: &Inner) -> Vec<PathBuf> {
    let entries = fs::read_dir(inner.layout.trash());
    entries.map(|entries| entries.flatten().map(|entry| entry.path()).collect()).unwrap_or_default()
}

fn remove_tree(path: &Path) -> io::Result<()> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn remove_later(paths: Vec<PathBuf>) {
    if paths.is_empty() {
        return;
    }
    let work = move || {
        for path in paths {
            if let Err(error) = remove_tree(&path) {
                tracing::warn!(path = %path.display(), error = %error, "garbage is left");
            }
        }
    };
    if let Err(error) = std::thread::Builder::new().name("trash".into()).spawn(work) {
        tracing::warn!(error = %error, "no thread to remove garbage");
    }
}
