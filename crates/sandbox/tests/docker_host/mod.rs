//! The Docker backend on a test engine, with separate directories for each test.
//!
//! All tests that run at the same time share one engine (`.ci/docker-engine`), which stops soon after the last of
//! them.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, dead_code)]

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::net::{Shutdown, TcpListener};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;

use async_trait::async_trait;
use rustix::fs::{FlockOperation, flock};
use sandbox::conformance::Subject;
use sandbox::docker::{DockerBackend, DockerConfig, LinkChoice};
use sandbox::{Backend, Image, Limit, Limits, SandboxId};
use serde_json::{Value, json};

/// The directory of the shared engine.
const FOLDER: &str = "/tmp/caisson-test-engine";

/// Keeps the shared engine running while it exists.
pub(crate) struct Engine {
    _users: File,
}

impl Engine {
    /// Starts the engine, or registers as another user of it.
    pub(crate) fn get() -> Self {
        fs::create_dir_all(FOLDER).unwrap();
        let users = File::create(Path::new(FOLDER).join("users")).unwrap();
        flock(&users, FlockOperation::LockShared).unwrap();
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.ci/docker-engine");
        let output = Command::new(script).arg(FOLDER).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Self { _users: users }
    }

    pub(crate) fn host() -> String {
        format!("unix://{FOLDER}/docker.sock")
    }

    /// Sends the engine a request without a body; `None` if it does not have the object.
    pub(crate) fn ask(method: &str, path: &str) -> Option<Value> {
        Self::send(method, path, &Value::Null)
    }

    /// Sends the engine a request with a JSON body; `None` if it refuses.
    fn send(method: &str, path: &str, body: &Value) -> Option<Value> {
        let mut command = Command::new("curl");
        command
            .args(["--silent", "--fail", "--noproxy", "*", "--unix-socket", &format!("{FOLDER}/docker.sock")])
            .args(["-X", method, &format!("http://docker{path}")]);
        if !body.is_null() {
            command.args(["-H", "Content-Type: application/json", "-d", &body.to_string()]);
        }
        let output = command.output().unwrap();
        output.status.success().then(|| serde_json::from_slice(&output.stdout).unwrap_or(Value::Null))
    }

    /// Creates a container that never runs, and returns its id.
    pub(crate) fn create_container(name: &str, labels: &Value) -> String {
        let body = json!({ "Image": "caisson/agent", "Cmd": ["true"], "Labels": labels });
        let made = Self::send("POST", &format!("/containers/create?name={name}"), &body).expect("made");
        made["Id"].as_str().unwrap().to_owned()
    }

    pub(crate) fn has_container(name: &str) -> bool {
        Self::ask("GET", &format!("/containers/{name}/json")).is_some()
    }
}

pub(crate) struct Host {
    pub(crate) directory: tempfile::TempDir,
    pub(crate) config: DockerConfig,
    pub(crate) backend: DockerBackend,
    engine: Engine,
}

impl Host {
    /// A backend on the shared engine that sees the server's files.
    pub(crate) fn new() -> Self {
        Self::with(|_| {})
    }

    /// A backend that reaches guests through the engine's exec.
    pub(crate) fn by_relay() -> Self {
        Self::with(|config| config.link = LinkChoice::Exec)
    }

    /// A backend that reaches the engine over a network, and so shares nothing with it but its API.
    pub(crate) fn remote() -> Self {
        Self::with(|config| config.host = forward())
    }

    pub(crate) fn with(change: impl FnOnce(&mut DockerConfig)) -> Self {
        let engine = Engine::get();
        let directory = tempfile::Builder::new().prefix("cd").tempdir().unwrap();
        let mut config = DockerConfig::new(directory.path().join("state"), program("caisson-guest"));
        config.host = Engine::host();
        config.ready_disks = 1;
        change(&mut config);
        let backend = DockerBackend::new(config.clone()).unwrap();
        Self { directory, config, backend, engine }
    }

    /// This server's name.
    pub(crate) fn server(&self) -> String {
        fs::read_to_string(self.config.state_dir.join("docker-server")).unwrap_or_default()
    }

    /// The engine's description of a sandbox's container.
    pub(crate) fn inspect(id: SandboxId) -> Value {
        Engine::ask("GET", &format!("/containers/caisson-{id}/json")).expect("a container")
    }

    /// The guest's process id on this host.
    pub(crate) fn guest_pid(id: SandboxId) -> i32 {
        i32::try_from(Self::inspect(id)["State"]["Pid"].as_i64().unwrap()).unwrap()
    }

    /// The process that started the guest and waits for it.
    pub(crate) fn owner_pid(id: SandboxId) -> i32 {
        let status = fs::read_to_string(format!("/proc/{}/status", Self::guest_pid(id))).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("PPid:")).unwrap();
        line.trim().parse().unwrap()
    }
}

impl Drop for Host {
    /// A failed test must not leave its sandboxes running, and no test may leave its images.
    fn drop(&mut self) {
        let server = self.server();
        let filter = format!("filters=%7B%22label%22%3A%5B%22caisson.server%3D{server}%22%5D%7D");
        let all = |kind: &str, key: &str| {
            let answer = Engine::ask("GET", &format!("/{kind}?all=true&{filter}")).unwrap_or_default();
            let list = if kind == "volumes" { answer["Volumes"].clone() } else { answer };
            let names = list.as_array().cloned().unwrap_or_default();
            names.iter().filter_map(|entry| entry[key].as_str().map(String::from)).collect::<Vec<_>>()
        };
        for id in all("containers/json", "Id") {
            Engine::ask("DELETE", &format!("/containers/{id}?force=true&v=true"));
        }
        for name in all("volumes", "Name") {
            Engine::ask("DELETE", &format!("/volumes/{name}"));
        }
        for id in all("images/json", "Id") {
            Engine::ask("DELETE", &format!("/images/{id}?force=true"));
        }
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
        let ours = self.directory.path().display().to_string();
        for place in mounts.lines().filter_map(|line| line.split(' ').nth(1)).filter(|p| p.starts_with(&ours))
        {
            let _ = rustix::mount::unmount(place, rustix::mount::UnmountFlags::DETACH);
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

/// Forwards a port of this host to the engine until the test ends.
fn forward() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for near in listener.incoming() {
            let near = near.unwrap();
            let far = UnixStream::connect(format!("{FOLDER}/docker.sock")).unwrap();
            let (mut near_reader, mut far_writer) = (near.try_clone().unwrap(), far.try_clone().unwrap());
            let (mut far_reader, mut near_writer) = (far, near);
            std::thread::spawn(move || {
                let _ = std::io::copy(&mut near_reader, &mut far_writer);
                let _ = far_writer.shutdown(Shutdown::Write);
            });
            std::thread::spawn(move || {
                let _ = std::io::copy(&mut far_reader, &mut near_writer);
                let _ = near_writer.shutdown(Shutdown::Write);
            });
        }
    });
    format!("tcp://{address}")
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

    fn image(&self) -> Image {
        Image::Named("default".into())
    }

    fn limits(&self) -> Limits {
        let limits = sandbox::conformance::spec().limits;
        if self.config.host.starts_with("unix:") {
            return limits;
        }
        Limits { disk_mib: Limit::Default(64), ..limits }
    }

    fn restarted(&self) -> Box<dyn Backend> {
        Box::new(DockerBackend::new(self.config.clone()).unwrap())
    }

    fn traces(&self, id: SandboxId) -> Vec<String> {
        let name = id.to_string();
        let mut found = BTreeSet::new();
        let directory = self.config.state_dir.join("sandboxes").join(&name);
        if directory.exists() {
            found.insert(directory.display().to_string());
        }
        if let Some(container) = Engine::ask("GET", &format!("/containers/caisson-{name}/json")) {
            found.insert(format!("container {}", container["State"]["Status"]));
        }
        let volumes = Engine::ask("GET", "/volumes").unwrap()["Volumes"].as_array().cloned();
        for volume in volumes.unwrap_or_default() {
            if volume["Name"].as_str().unwrap().contains(&name) {
                found.insert(format!("volume {}", volume["Name"]));
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
        found.into_iter().collect()
    }

    async fn kill_guest(&self, id: SandboxId) {
        kill(Self::guest_pid(id));
    }

    async fn kill_owner(&self, id: SandboxId) {
        kill(Self::owner_pid(id));
    }
}
