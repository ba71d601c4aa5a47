//! Where things lie on disk. A sandbox is found again by its directory's name alone.

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use crate::error::SandboxError;
use crate::spec::SandboxId;
use crate::spread::spread_children;

/// Paths of one server.
#[derive(Debug, Clone)]
pub(super) struct Layout {
    state: PathBuf,
    run: PathBuf,
    slots: PathBuf,
}

/// What a socket's path may have, without its final NUL.
const SOCKET_PATH_BYTES: usize = 107;

impl Layout {
    pub(super) fn new(state: &Path, run: &Path, slots: &Path) -> Self {
        Self { state: state.to_path_buf(), run: run.to_path_buf(), slots: slots.to_path_buf() }
    }

    /// Makes the directories that all sandboxes share, closed to other users.
    pub(super) fn prepare(&self) -> Result<(), SandboxError> {
        for directory in [self.sandboxes(), self.trash(), self.disks(), self.images(), self.slots()] {
            make_private_directory(&directory)?;
        }
        spread_children(&self.sandboxes());
        make_private_directory(&self.run)?;
        refuse_foreign(&self.run)
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

    pub(super) fn run_directory(&self, id: SandboxId) -> PathBuf {
        self.run.join(id.to_string())
    }

    /// Where the guest of a sandbox listens.
    pub(super) fn socket(&self, id: SandboxId) -> Result<PathBuf, SandboxError> {
        let path = self.run_directory(id).join("link.sock");
        if path.as_os_str().len() > SOCKET_PATH_BYTES {
            return Err(SandboxError::HostUnfit {
                what: format!("the socket path {} is too long", path.display()),
                remedy: "choose a shorter run directory".into(),
            });
        }
        Ok(path)
    }
}

/// Makes a directory, and those above it, that only its owner may enter.
pub(crate) fn make_private_directory(path: &Path) -> Result<(), SandboxError> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
        .map_err(|source| failed("making", path, source))
}

/// A folder of sockets in `/tmp` may have been put there by somebody else, or below a folder of somebody else.
fn refuse_foreign(path: &Path) -> Result<(), SandboxError> {
    let user = rustix::process::geteuid();
    let look = |path: &Path| {
        let metadata = fs::metadata(path).map_err(|source| failed("looking at", path, source))?;
        Ok::<_, SandboxError>((metadata.uid(), metadata.mode()))
    };
    let (owner, mode) = look(path)?;
    let mut is_safe = owner == user.as_raw() && mode & 0o022 == 0;
    // Who is root has chosen the place.
    for above in path.ancestors().skip(1).filter(|_| !user.is_root()) {
        let (owner, mode) = look(above)?;
        let sticky_or_closed = mode & 0o1000 != 0 || mode & 0o002 == 0;
        is_safe &= (owner == user.as_raw() || owner == 0) && sticky_or_closed;
    }
    if is_safe {
        return Ok(());
    }
    Err(SandboxError::HostUnfit {
        what: format!("{} belongs to another user, or others may replace it", path.display()),
        remedy: "choose another run directory".into(),
    })
}

/// An error that names what was being done to which path.
pub(crate) fn failed(doing: &str, path: &Path, source: io::Error) -> SandboxError {
    SandboxError::Io { doing: format!("{doing} {}", path.display()), source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_directory_that_is_too_long_is_refused() {
        let layout =
            Layout::new(Path::new("/state"), Path::new(&format!("/{}", "x".repeat(90))), Path::new("/slots"));
        assert!(matches!(layout.socket(SandboxId::generate()), Err(SandboxError::HostUnfit { .. })));
        let layout = Layout::new(Path::new("/state"), Path::new("/run/caisson"), Path::new("/slots"));
        assert!(layout.socket(SandboxId::generate()).is_ok());
    }
}
