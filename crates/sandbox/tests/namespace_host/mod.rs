//! The namespace backend on this host, with separate directories for each test.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, dead_code)]

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use async_trait::async_trait;
use launcher::cgroup::{Group, Hierarchy};
use launcher::launch_file::LaunchFileContents;
use sandbox::conformance::{Subject, spec};
use sandbox::namespace::{NamespaceBackend, NamespaceConfig, UseNamespaces};
use sandbox::{Backend, Isolation, Limit, Limits, SandboxId};

/// The parent cgroup of the tests' cgroups.
pub(crate) const CGROUP_PARENT: &str = "caisson-test";

pub(crate) struct Host {
    pub(crate) directory: tempfile::TempDir,
    pub(crate) config: NamespaceConfig,
    pub(crate) backend: NamespaceBackend,
}

impl Host {
    /// A backend with the real launcher and the real guest.
    pub(crate) fn new() -> Self {
        Self::with(&program("caisson-launcher"), &program("caisson-guest"), &std::env::temp_dir())
    }

    /// A backend with the given programs, and its directories below the given one.
    pub(crate) fn with(launcher: &Path, guest: &Path, below: &Path) -> Self {
        let directory = tempfile::Builder::new().prefix("cs").tempdir_in(below).unwrap();
        let mut config = NamespaceConfig::new(
            directory.path().join("state"),
            directory.path().join("run"),
            launcher,
            guest,
        );
        if !rustix::process::geteuid().is_root() {
            config.slots_dir = directory.path().join("slots");
        }
        config.landlock_only_dir = directory.path().join("landlock");
        config.cgroup_parent = CGROUP_PARENT.into();
        // Far more than a busy machine needs: no test is about how fast sandboxes start and end.
        config.start_timeout = Duration::from_secs(120);
        config.stop_timeout = Duration::from_secs(60);
        let backend = NamespaceBackend::new(config.clone()).unwrap();
        Self { directory, config, backend }
    }

    /// Simulates a host that does not support namespaces.
    pub(crate) fn without_namespaces(mut self) -> Self {
        self.config.namespaces = UseNamespaces::Never;
        self.backend = NamespaceBackend::new(self.config.clone()).unwrap();
        // Each sandbox has a separate user, which must be able to traverse the directory.
        fs::set_permissions(self.directory.path(), fs::Permissions::from_mode(0o711)).unwrap();
        self
    }

    pub(crate) fn sandbox(&self, id: SandboxId) -> PathBuf {
        self.config.state_dir.join("sandboxes").join(id.to_string())
    }

    pub(crate) fn group(id: SandboxId) -> Group {
        let hierarchy = Hierarchy::find().expect("control groups are needed: mount cgroup2 or cgroup");
        Group { hierarchy, name: format!("{CGROUP_PARENT}/{id}") }
    }

    pub(crate) fn guest_pid(&self, id: SandboxId) -> i32 {
        let running = LaunchFileContents::read(&self.sandbox(id)).unwrap().unwrap().running().unwrap();
        i32::try_from(running.guest_pid).unwrap()
    }

    pub(crate) fn launcher_pid(&self, id: SandboxId) -> i32 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.guest_pid(id))).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("PPid:")).unwrap();
        line.trim().parse().unwrap()
    }
}

impl Drop for Host {
    /// A failed test must not leave its sandboxes running.
    fn drop(&mut self) {
        for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
            let command = fs::read(entry.path().join("cmdline")).unwrap_or_default();
            let ours = self.config.state_dir.join("sandboxes");
            let is_launcher = String::from_utf8_lossy(&command).contains(&*ours.to_string_lossy());
            let pid = entry.file_name().to_str().and_then(|name| name.parse().ok());
            if let (true, Some(pid)) = (is_launcher, pid.and_then(rustix::process::Pid::from_raw)) {
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
            }
        }
    }
}

/// A static program built by `./build-guest`.
pub(crate) fn program(name: &str) -> PathBuf {
    let target = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target");
    let triple = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let path = target.join(triple).join("static").join(name);
    assert!(path.exists(), "{} is missing: run ./build-guest", path.display());
    path.canonicalize().unwrap()
}

fn kill(pid: i32) {
    let pid = rustix::process::Pid::from_raw(pid).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
}

#[async_trait]
impl Subject for Host {
    fn backend(&self) -> &dyn Backend {
        &self.backend
    }

    fn isolation(&self) -> Isolation {
        match self.config.namespaces {
            UseNamespaces::Never => Isolation::Landlock,
            UseNamespaces::WherePossible => Isolation::Namespaces,
        }
    }

    fn limits(&self) -> Limits {
        match self.config.namespaces {
            // No other limit is enforced for every user.
            UseNamespaces::Never => Limits { open_files: Limit::Required(512), ..Limits::default() },
            UseNamespaces::WherePossible if rustix::process::geteuid().is_root() => spec().limits,
            UseNamespaces::WherePossible => {
                Limits { open_files: Limit::Required(512), pids: Limit::Required(64), ..Limits::default() }
            }
        }
    }

    fn restarted(&self) -> Box<dyn Backend> {
        Box::new(NamespaceBackend::new(self.config.clone()).unwrap())
    }

    fn traces(&self, id: SandboxId) -> Vec<String> {
        let name = id.to_string();
        let mut found = BTreeSet::new();
        let socket = self.config.run_dir.join(format!("{name}.sock"));
        let places = [self.sandbox(id), socket, self.config.landlock_only_dir.join(&name)];
        for place in places.into_iter().chain(Self::group(id).directories()) {
            if place.exists() {
                found.insert(place.display().to_string());
            }
        }
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        found.extend(mounts.lines().filter(|line| line.contains(&name)).map(String::from));
        for entry in fs::read_dir("/sys/block").unwrap().flatten() {
            let backing = fs::read_to_string(entry.path().join("loop/backing_file")).unwrap_or_default();
            if backing.contains(&name) {
                found.insert(format!("{} holds {backing}", entry.path().display()));
            }
        }
        let marked = launcher::process_mark::processes(launcher::process_mark::of(id.as_u128()));
        for entry in fs::read_dir("/proc").unwrap().flatten() {
            let command = fs::read(entry.path().join("cmdline")).unwrap_or_default();
            let groups = fs::read_to_string(entry.path().join("cgroup")).unwrap_or_default();
            let pid = entry.file_name().to_str().and_then(|name| name.parse().ok());
            if pid.is_some_and(|pid: i32| marked.contains(&pid)) {
                found.insert(format!("marked process {}", entry.path().display()));
            }
            if String::from_utf8_lossy(&command).contains(&name) || groups.contains(&name) {
                found.insert(format!("process {}", entry.path().display()));
            }
        }
        found.into_iter().collect()
    }

    async fn kill_guest(&self, id: SandboxId) {
        kill(self.guest_pid(id));
    }

    async fn kill_owner(&self, id: SandboxId) {
        kill(self.launcher_pid(id));
    }
}
