//! Names of everything that belongs to a sandbox: in the engine, on the server's disk, and inside the container.

use std::collections::HashMap;
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use crate::error::{SandboxError, failed};
use crate::host::directories::{make_private_directory, spread_children};
use crate::spec::SandboxId;

/// Label on every container and volume: the server that created it.
pub(super) const SERVER_LABEL: &str = "caisson.server";
/// Label on every container and volume: the sandbox it belongs to.
pub(super) const SANDBOX_LABEL: &str = "caisson.sandbox";
/// Label on every container: the limits that are not enforced, as JSON.
pub(super) const UNENFORCED_LABEL: &str = "caisson.unenforced";
/// Prefix for the labels from the sandbox's spec.
pub(super) const SPEC_LABEL_PREFIX: &str = "caisson.";

/// Path of the guest program in the container.
pub(super) const GUEST_PROGRAM: &str = "/.caisson/guest";
/// A directory that only the relay's user may enter.
pub(super) const PRIVATE: &str = "/.caisson/private";
/// The directory of the guest's journal and socket. The runtime makes it the guest's working directory before it
/// drops root privileges; nothing else that runs in the container can enter it.
pub(super) const STATE: &str = "/.caisson/private/state";
/// The guest's socket, relative to its working directory.
pub(super) const SOCKET: &str = "link.sock";
/// User id of the guest and everything it runs.
pub(super) const AGENT_ID: u32 = 1000;
/// User id of the relays, used by nothing else.
pub(super) const RELAY_ID: u32 = 65_532;
/// Mode of the journal's directory: the relay's group may traverse it, and the socket inherits that group.
pub(super) const STATE_MODE: u32 = 0o2710;
/// Mode of the parent directory.
pub(super) const PRIVATE_MODE: u32 = 0o700;

/// Paths and names of one server.
#[derive(Debug, Clone)]
pub(super) struct Layout {
    state: PathBuf,
    /// The value of [`SERVER_LABEL`] on this server's containers.
    pub(super) server: String,
}

impl Layout {
    /// Creates the directories, and a name for this server if it has none.
    pub(super) fn prepare(state: &Path) -> Result<Self, SandboxError> {
        for name in ["sandboxes", "disks", "trash"] {
            make_private_directory(&state.join(name))?;
        }
        spread_children(&state.join("sandboxes"));
        let server = server_name(&state.join("docker-server"))?;
        Ok(Self { state: state.to_path_buf(), server })
    }

    pub(super) fn sandboxes(&self) -> PathBuf {
        self.state.join("sandboxes")
    }

    pub(super) fn sandbox(&self, id: SandboxId) -> PathBuf {
        self.sandboxes().join(id.to_string())
    }

    pub(super) fn disks(&self) -> PathBuf {
        self.state.join("disks")
    }

    pub(super) fn trash(&self) -> PathBuf {
        self.state.join("trash")
    }

    /// Where the disk of a sandbox is mounted until its container holds it.
    pub(super) fn disk(&self, id: SandboxId) -> PathBuf {
        self.sandbox(id).join("disk")
    }

    /// The host directory that the container sees as [`PRIVATE`].
    pub(super) fn private(&self, id: SandboxId) -> PathBuf {
        self.sandbox(id).join("private")
    }

    /// The directory of the guest's socket.
    pub(super) fn link_directory(&self, id: SandboxId) -> PathBuf {
        self.private(id).join("state")
    }

    /// The labels of everything that belongs to a sandbox.
    pub(super) fn labels(&self, id: SandboxId) -> HashMap<String, String> {
        HashMap::from([
            (SERVER_LABEL.to_owned(), self.server.clone()),
            (SANDBOX_LABEL.to_owned(), id.to_string()),
        ])
    }

    /// A filter that matches everything of this server.
    pub(super) fn filter(&self) -> HashMap<String, Vec<String>> {
        HashMap::from([("label".to_owned(), vec![format!("{SERVER_LABEL}={}", self.server)])])
    }
}

pub(super) fn container(id: SandboxId) -> String {
    format!("caisson-{id}")
}

/// The name of the container from which an image is prepared.
pub(super) fn image_container(server: &str, key: &str) -> String {
    format!("caisson-image-{server}-{key}")
}

/// The tag of a prepared image. It includes the server's name so that servers that share an engine neither replace
/// nor remove each other's images.
pub(super) fn image_tag(server: &str, key: &str) -> String {
    format!("{server}-{key}")
}

pub(super) fn volume(id: SandboxId, part: &str) -> String {
    format!("caisson-{id}-{part}")
}

/// Reads this server's name, or generates one.
fn server_name(file: &Path) -> Result<String, SandboxError> {
    let read = || fs::read_to_string(file).map(|text| text.trim().to_owned());
    match read() {
        Ok(name) if !name.is_empty() => return Ok(name),
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed("reading", file, error)),
        _ => {}
    }
    let name = SandboxId::generate().to_string();
    let write = || -> io::Result<()> {
        let partial = file.with_extension("partial");
        let mut open =
            fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&partial)?;
        open.write_all(name.as_bytes())?;
        open.sync_all()?;
        fs::rename(&partial, file)
    };
    write().map_err(|source| failed("writing", file, source))?;
    Ok(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_keeps_its_name() {
        let folder = tempfile::tempdir().unwrap();
        let first = Layout::prepare(folder.path()).unwrap();
        let second = Layout::prepare(folder.path()).unwrap();
        assert_eq!(first.server, second.server);
        let other = tempfile::tempdir().unwrap();
        assert_ne!(first.server, Layout::prepare(other.path()).unwrap().server);
    }
}
