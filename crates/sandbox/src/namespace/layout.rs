//! Paths on the server's disk. A sandbox is found again by its directory's name alone.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::error::{SandboxError, failed};
use crate::host::directories::{make_private_directory, spread_children};
use crate::spec::SandboxId;

/// Paths of one server.
#[derive(Debug, Clone)]
pub(super) struct Layout {
    state: PathBuf,
    run: PathBuf,
    slots: PathBuf,
}

/// The maximum length of a socket's path, without the final NUL.
const SOCKET_PATH_BYTES: usize = 107;

impl Layout {
    pub(super) fn new(state: &Path, run: &Path, slots: &Path) -> Self {
        Self { state: state.to_path_buf(), run: run.to_path_buf(), slots: slots.to_path_buf() }
    }

    /// Creates the directories that all sandboxes share, inaccessible to other users.
    pub(super) fn prepare(&self) -> Result<(), SandboxError> {
        for directory in self.shared() {
            make_private_directory(&directory)?;
        }
        spread_children(&self.sandboxes());
        make_private_directory(&self.run)?;
        check_ownership(&self.run)
    }

    /// Recreates directories that were removed, for example by a cleaner of `/tmp` or `/run`.
    pub(super) fn recreate(&self) -> Result<(), SandboxError> {
        let is_whole = self.run.is_dir() && self.shared().iter().all(|directory| directory.is_dir());
        if is_whole { Ok(()) } else { self.prepare() }
    }

    fn shared(&self) -> [PathBuf; 5] {
        [self.sandboxes(), self.trash(), self.disks(), self.images(), self.slots()]
    }

    pub(super) fn sandboxes(&self) -> PathBuf {
        self.state.join("sandboxes")
    }

    pub(super) fn sandbox(&self, id: SandboxId) -> PathBuf {
        self.sandboxes().join(id.to_string())
    }

    pub(super) fn trash(&self) -> PathBuf {
        self.state.join("trash")
    }

    pub(super) fn disks(&self) -> PathBuf {
        self.state.join("disks")
    }

    pub(super) fn images(&self) -> PathBuf {
        self.state.join("images")
    }

    pub(super) fn slots(&self) -> PathBuf {
        self.slots.clone()
    }

    /// Path of the socket of a sandbox's guest, without checking its length.
    pub(super) fn socket_path(&self, id: SandboxId) -> PathBuf {
        self.run.join(format!("{id}.sock"))
    }

    /// Path of the socket of a sandbox's guest; fails if it is too long.
    pub(super) fn socket(&self, id: SandboxId) -> Result<PathBuf, SandboxError> {
        let path = self.socket_path(id);
        if path.as_os_str().len() > SOCKET_PATH_BYTES {
            return Err(SandboxError::HostUnsupported {
                what: format!("the socket path {} is too long", path.display()),
                remedy: "choose a shorter run directory (--run-dir FOLDER)".into(),
            });
        }
        Ok(path)
    }
}

/// Checks whether a folder, which may not exist yet, can be the run folder of a server: nobody else may be able to
/// put sockets in it, and the socket paths must not become too long.
///
/// # Errors
/// Says what is wrong with the folder.
pub fn check_run_folder(path: &Path) -> Result<(), SandboxError> {
    Layout::new(Path::new("/"), path, Path::new("/")).socket(SandboxId::generate())?;
    if path.exists() {
        return check_ownership(path);
    }
    let above = path.ancestors().find(|above| above.exists()).unwrap_or(Path::new("/"));
    check_parent_ownership(&above.join("new"), path)
}

/// In `/tmp`, another user may have created the socket folder or one of its parents. Refuses such folders.
fn check_ownership(path: &Path) -> Result<(), SandboxError> {
    let (owner, mode) = owner_and_mode(path)?;
    if owner != rustix::process::geteuid().as_raw() || mode & 0o022 != 0 {
        return Err(ownership_error(path));
    }
    check_parent_ownership(path, path)
}

/// The same check for the parents of a path. `shown_path` is the path for the error message.
fn check_parent_ownership(path: &Path, shown_path: &Path) -> Result<(), SandboxError> {
    let user = rustix::process::geteuid();
    // If root runs the server, it has chosen the location.
    for above in path.ancestors().skip(1).filter(|_| !user.is_root()) {
        let (owner, mode) = owner_and_mode(above)?;
        let is_sticky_or_closed = mode & 0o1000 != 0 || mode & 0o002 == 0;
        if (owner != user.as_raw() && owner != 0) || !is_sticky_or_closed {
            return Err(ownership_error(shown_path));
        }
    }
    Ok(())
}

fn owner_and_mode(path: &Path) -> Result<(u32, u32), SandboxError> {
    let metadata = fs::metadata(path).map_err(|source| failed("looking at", path, source))?;
    Ok((metadata.uid(), metadata.mode()))
}

fn ownership_error(path: &Path) -> SandboxError {
    SandboxError::HostUnsupported {
        what: format!("{} belongs to another user, or other users may replace it", path.display()),
        remedy: "choose another run directory (--run-dir FOLDER)".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn removed_directory_is_recreated() {
        let folder = tempfile::tempdir().unwrap();
        let [state, run, slots] = ["state", "run", "slots"].map(|name| folder.path().join(name));
        let layout = Layout::new(&state, &run, &slots);
        layout.prepare().unwrap();
        for removed in [run, layout.images(), layout.disks()] {
            fs::remove_dir(&removed).unwrap();
            layout.recreate().unwrap();
            assert_eq!(owner_and_mode(&removed).unwrap().1 & 0o777, 0o700);
        }
    }

    #[test]
    fn too_long_run_directory_is_refused() {
        let layout =
            Layout::new(Path::new("/state"), Path::new(&format!("/{}", "x".repeat(90))), Path::new("/slots"));
        assert!(matches!(layout.socket(SandboxId::generate()), Err(SandboxError::HostUnsupported { .. })));
        let layout = Layout::new(Path::new("/state"), Path::new("/run/caisson"), Path::new("/slots"));
        assert!(layout.socket(SandboxId::generate()).is_ok());
    }
}
