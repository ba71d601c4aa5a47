//! A service that starts guests as plain processes, and a backend that asks it over a socket.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

pub(crate) mod backend;
pub(crate) mod service;
mod wire;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use async_trait::async_trait;
use rustix::process::{Signal, kill_process};
use sandbox::conformance::Subject;
use sandbox::{Backend, Limits, SandboxId};

use self::backend::SocketBackend;
use self::service::{Service, processes_in};

pub(crate) struct Host {
    directory: tempfile::TempDir,
    pub(crate) service: Service,
    pub(crate) backend: SocketBackend,
}

impl Host {
    pub(crate) fn new() -> Self {
        let directory = tempfile::Builder::new().prefix("cc").tempdir().unwrap();
        // Commands run as another user, who must be able to enter the workspace.
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o711)).unwrap();
        let service = Service::start(directory.path(), &guest());
        let backend = SocketBackend::new(service.socket());
        Self { directory, service, backend }
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.service.stop();
    }
}

/// The static guest built by `./build-guest`.
fn guest() -> PathBuf {
    let target = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target");
    let path = target.join(format!("{}-unknown-linux-gnu/static/caisson-guest", std::env::consts::ARCH));
    assert!(path.exists(), "{} is missing: run ./build-guest", path.display());
    path.canonicalize().unwrap()
}

#[async_trait]
impl Subject for Host {
    fn backend(&self) -> &dyn Backend {
        &self.backend
    }

    /// None of them is enforced.
    fn limits(&self) -> Limits {
        Limits::default()
    }

    fn restarted(&self) -> Box<dyn Backend> {
        Box::new(SocketBackend::new(self.service.socket()))
    }

    fn traces(&self, id: SandboxId) -> Vec<String> {
        let directory = self.directory.path().join(id.to_string());
        let processes = processes_in(&directory);
        let files = directory.exists().then(|| directory.display().to_string());
        processes.iter().map(|pid| format!("process {pid:?}")).chain(files).collect()
    }

    async fn kill_guest(&self, id: SandboxId) {
        kill_process(self.service.guest_pid(id), Signal::KILL).unwrap();
    }

    async fn kill_owner(&self, id: SandboxId) {
        unreachable!("sandbox {id} has no owner but the service; tests that kill it are left out by name")
    }
}
