//! The tests' shared Docker engine. `.ci/docker-engine` starts it; it stops itself after its last user.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::fs::{FlockOperation, flock};
use serde_json::Value;

use crate::server::{Options, Server, wait_until};
use crate::{processes, source};

/// The engine's folder; the Docker backend's own tests use the same one.
const FOLDER: &str = "/tmp/caisson-test-engine";

/// A handle that keeps the engine running.
pub struct Engine {
    folder: PathBuf,
    _users: Option<File>,
}

impl Engine {
    /// Starts the engine, or joins the tests that already use it.
    #[must_use]
    pub fn get() -> Self {
        fs::create_dir_all(FOLDER).expect("a folder for the engine");
        let users = File::create(Path::new(FOLDER).join("users")).expect("its lock");
        flock(&users, FlockOperation::LockShared).expect("joining its users");
        let output = Command::new(source::root().join(".ci/docker-engine")).arg(FOLDER).output();
        let output = output.expect("starting .ci/docker-engine");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Self { folder: FOLDER.into(), _users: Some(users) }
    }

    /// An engine that the caller starts and stops.
    pub(crate) fn at(folder: PathBuf) -> Self {
        Self { folder, _users: None }
    }

    /// The path of the engine's socket.
    #[must_use]
    pub fn socket(&self) -> String {
        self.folder.join("docker.sock").display().to_string()
    }

    /// Starts a server whose sandboxes are containers of this engine.
    #[must_use]
    #[track_caller]
    pub fn serve(&self, more: &str) -> Server {
        let config =
            format!("[backend]\nkind = \"docker\"\n[docker]\nhost = \"unix://{}\"\n{more}\n", self.socket());
        Server::start_with(Options { config, ..Options::default() })
    }

    /// Sends a request without a body; `None` if the engine returns an error, such as 404.
    #[must_use]
    pub fn ask(&self, method: &str, path: &str) -> Option<Value> {
        self.send(method, path, &Value::Null)
    }

    /// Sends a JSON body; `None` if the engine returns an error.
    #[must_use]
    pub fn send(&self, method: &str, path: &str, body: &Value) -> Option<Value> {
        let mut command = Command::new("curl");
        command.args(["--silent", "--fail", "--noproxy", "*", "--unix-socket", &self.socket()]);
        if !body.is_null() {
            command.args(["-H", "Content-Type: application/json", "-d", &body.to_string()]);
        }
        let output = command.args(["-X", method, &format!("http://docker{path}")]).output();
        let output = output.expect("curl, of the package of that name");
        output.status.success().then(|| serde_json::from_slice(&output.stdout).unwrap_or(Value::Null))
    }

    /// The containers that a server has created.
    #[must_use]
    pub fn containers(&self, server: &Server) -> Vec<Value> {
        self.list(server, "containers/json")
    }

    fn list(&self, server: &Server, what: &str) -> Vec<Value> {
        let name = fs::read_to_string(server.data().join("docker-server")).unwrap_or_default();
        let filter = format!("%7B%22label%22%3A%5B%22caisson.server%3D{name}%22%5D%7D");
        let answer = self.ask("GET", &format!("/{what}?all=true&filters={filter}")).unwrap_or_default();
        let list = if what == "volumes" { &answer["Volumes"] } else { &answer };
        list.as_array().cloned().unwrap_or_default()
    }

    /// Kills pid 1 of the server's only container; panics unless there is exactly one.
    #[track_caller]
    pub fn kill_guest(&self, server: &Server) {
        let containers = self.containers(server);
        assert_eq!(containers.len(), 1, "{containers:?}");
        let id = containers[0]["Id"].as_str().expect("an id");
        let found = self.ask("GET", &format!("/containers/{id}/json")).expect("the container");
        let pid = found["State"]["Pid"].as_i64().and_then(|pid| i32::try_from(pid).ok()).expect("a process");
        processes::kill(pid);
    }

    /// Waits until the server has no containers and volumes left, then cleans up.
    #[track_caller]
    pub fn assert_nothing_left(&self, server: &Server) {
        wait_until("all containers and volumes are gone", || {
            self.containers(server).is_empty() && self.list(server, "volumes").is_empty()
        });
        server.assert_nothing_left();
        self.clear(server);
    }

    /// Removes all containers and volumes of a server.
    pub fn clear(&self, server: &Server) {
        for container in self.containers(server) {
            let id = container["Id"].as_str().unwrap_or_default();
            let _ = self.ask("DELETE", &format!("/containers/{id}?force=true&v=true"));
        }
        for volume in self.list(server, "volumes") {
            let _ = self.ask("DELETE", &format!("/volumes/{}", volume["Name"].as_str().unwrap_or_default()));
        }
    }
}
