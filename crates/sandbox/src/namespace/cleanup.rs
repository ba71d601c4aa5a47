//! Deleting what destroyed sandboxes leave: the trash directories, in the background.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use async_trait::async_trait;
use launcher::spec::{Removal, Users};

use super::{Inner, NamespaceBackend, landlock_only, launcher_process};
use crate::Cleanup;
use crate::error::{SandboxError, failed};

#[async_trait]
impl Cleanup for NamespaceBackend {
    async fn finish(&self) -> Result<(), SandboxError> {
        self.blocking(|inner| {
            let emptied = empty_trash_now(inner);
            remove_shared(inner);
            emptied
        })
        .await
    }
}

fn remove_tree(path: &Path) -> Result<(), SandboxError> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed("removing", path, error)),
        _ => Ok(()),
    }
}

/// Deletes the trash, and returns when it is gone.
fn empty_trash_now(inner: &Inner) -> Result<(), SandboxError> {
    for path in trash(inner) {
        let removed = remove_as(&inner.config.launcher, &inner.identity.users, &path);
        // The background thread may be deleting the same tree, so each may find entries already gone.
        if path.exists() {
            removed?;
        }
    }
    Ok(())
}

/// Removes what this server shares with the others of the host, as far as no sandbox uses it.
fn remove_shared(inner: &Inner) {
    launcher::slot::remove_unused(&inner.layout.slots());
    // Fails if it is not empty, because it belongs to another server's sandboxes too.
    let _ = fs::remove_dir(&inner.config.landlock_only_dir);
}

/// Deletes the remains of a probe of the host. Not in the background, because a short command that probes exits soon.
pub(super) fn discard_probe(inner: &Inner, directory: &Path) {
    if let Err(error) = remove_as(&inner.config.launcher, &inner.identity.users, directory) {
        tracing::warn!(error = %error, "cannot remove old sandbox files");
    }
}

/// Deletes the trash of earlier servers in the background.
pub(super) fn empty_trash(inner: &Inner) {
    remove_later(inner, trash(inner));
}

fn trash(inner: &Inner) -> Vec<PathBuf> {
    let below = |directory: &Path| {
        fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path()).collect::<Vec<_>>()
    };
    let is_trash = |path: &PathBuf| {
        path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(landlock_only::TRASH_PREFIX))
    };
    let mut all = below(&inner.layout.trash());
    all.extend(below(&inner.config.landlock_only_dir).into_iter().filter(is_trash));
    all
}

fn remove_as(launcher: &Path, users: &Users, path: &Path) -> Result<(), SandboxError> {
    match users {
        Users::Ranges(_) => remove_tree(path),
        // Without namespaces, all files belong to the server's own user.
        Users::Lent { .. } | Users::Single => remove_by_launcher(launcher, users, path)
            .or_else(|error| remove_unreadable_tree(path).map_err(|_| error)),
    }
}

/// Deletes a tree owned by this user even if directories in it deny access. No process may use it any more.
fn remove_unreadable_tree(path: &Path) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    let metadata = fs::symlink_metadata(path)?;
    if !metadata.is_dir() {
        return fs::remove_file(path);
    }
    fs::set_permissions(path, fs::Permissions::from_mode(0o700))?;
    for entry in fs::read_dir(path)? {
        remove_unreadable_tree(&entry?.path())?;
    }
    fs::remove_dir(path)
}

pub(super) fn remove_later(inner: &Inner, paths: Vec<PathBuf>) {
    if paths.is_empty() {
        return;
    }
    let (launcher, users) = (inner.config.launcher.clone(), inner.identity.users.clone());
    inner.trash.run(move || {
        for path in &paths {
            if let Err(error) = remove_as(&launcher, &users, path) {
                tracing::warn!(error = %error, "cannot remove old sandbox files");
            }
        }
    });
}

/// An ordinary user may not delete files of its subordinate ids, nor files in directories that deny it access. The
/// launcher can, in a user namespace.
fn remove_by_launcher(launcher: &Path, users: &Users, path: &Path) -> Result<(), SandboxError> {
    let order = Removal { users: users.clone(), directory: path.to_path_buf() };
    let ask = || -> io::Result<()> {
        match launcher_process::run_once(launcher, "--remove", &order)? {
            None => Ok(()),
            Some(error) => Err(io::Error::other(format!("{}: {}", error.step, error.source))),
        }
    };
    ask().map_err(|source| failed("removing", path, source))
}
