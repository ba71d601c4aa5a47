//! Deleting what is left: the trash directories of destroyed sandboxes, and the containers of unfinished images.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use async_trait::async_trait;

use super::{DockerBackend, Inner, engine, prepare};
use crate::Cleanup;
use crate::error::{SandboxError, failed};

#[async_trait]
impl Cleanup for DockerBackend {
    async fn finish(&self) -> Result<(), SandboxError> {
        if let Some(ready) = self.ready.get() {
            // Held while an image is prepared, so this waits for running preparations.
            let _nobody = self.inner.images.lock().await;
            let removed = prepare::remove_unfinished(&self.inner, &ready.client).await;
            removed.map_err(|error| engine::explain(&self.inner.config, "removing containers", error))?;
        }
        self.blocking(empty_trash_now).await
    }
}

/// Deletes the trash of earlier servers in the background.
pub(super) fn empty_trash(inner: &Inner) {
    remove_later(trash(inner));
}

/// Like [`empty_trash`], but returns when the trash is gone.
fn empty_trash_now(inner: &Inner) -> Result<(), SandboxError> {
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

pub(super) fn remove_later(paths: Vec<PathBuf>) {
    if paths.is_empty() {
        return;
    }
    let work = move || {
        for path in paths {
            if let Err(error) = remove_tree(&path) {
                tracing::warn!(path = %path.display(), error = %error, "cannot remove old sandbox files");
            }
        }
    };
    if let Err(error) = std::thread::Builder::new().name("trash".into()).spawn(work) {
        tracing::warn!(error = %error, "cannot start a thread to remove old sandbox files");
    }
}
