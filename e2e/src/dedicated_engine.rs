//! A Docker engine for a single test, which may stop and restart it. It has only a small image.

use std::fs::File;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::engine::Engine;
use crate::images::make_small_root;
use crate::server::{Server, wait_until};

/// The Docker backend's default image.
const IMAGE: &str = "caisson/agent";

/// The engine. Dropping it removes its containers and stops it.
pub struct DedicatedEngine {
    folder: TempDir,
    engine: Engine,
    more: &'static [&'static str],
    process: Mutex<Option<Child>>,
}

impl DedicatedEngine {
    /// Starts an engine with these arguments in addition to the usual ones.
    #[must_use]
    #[track_caller]
    pub fn start(more: &'static [&'static str]) -> Self {
        // The path must be short because Unix sockets are created in it.
        let folder =
            tempfile::Builder::new().prefix("caisson-own-").tempdir().expect("a folder for the engine");
        let engine = Engine::at(folder.path().to_owned());
        let own = Self { folder, engine, more, process: Mutex::new(None) };
        own.run();
        own.import_image();
        own
    }

    /// Starts (or restarts) the engine and waits until it responds.
    #[track_caller]
    pub fn run(&self) {
        let folder = self.folder.path();
        let log = File::options().create(true).append(true).open(self.log()).expect("a log for the engine");
        let mut command = Command::new("dockerd");
        command.arg("--host").arg(format!("unix://{}", self.engine.socket()));
        command.arg("--data-root").arg(folder.join("root")).arg("--exec-root").arg(folder.join("exec"));
        command.arg("--pidfile").arg(folder.join("docker.pid"));
        command.args(["--iptables=false", "--ip6tables=false", "--bridge=none"]).args(self.more);
        command.stdin(Stdio::null()).stdout(log.try_clone().expect("the log")).stderr(log);
        let mut process = self.process.lock().unwrap();
        assert!(process.is_none(), "the engine runs already");
        *process = Some(command.spawn().expect("dockerd, of the package docker.io"));
        drop(process);
        wait_until("the engine answers", || self.engine.ask("GET", "/info").is_some());
    }

    /// Starts the engine if it is down, after a failed test. Problems are printed.
    fn run_again(&self) {
        if self.process.lock().is_ok_and(|process| process.is_some()) {
            return;
        }
        if std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| self.run())).is_err() {
            eprintln!("the engine does not start again; its containers may be left");
        }
    }

    /// Stops the engine gracefully and waits for it to exit.
    #[track_caller]
    pub fn stop(&self) {
        let mut child = self.process.lock().unwrap().take().expect("the engine does not run");
        kill_process(Pid::from_child(&child), Signal::TERM).expect("sending a signal to the engine");
        child.wait().expect("the end of the engine");
    }

    /// Starts a server whose sandboxes are containers of this engine.
    #[must_use]
    #[track_caller]
    pub fn serve(&self, more: &str) -> Server {
        self.engine.serve(more)
    }

    /// Waits until a server has no containers and volumes left.
    #[track_caller]
    pub fn assert_nothing_left(&self, server: &Server) {
        self.engine.assert_nothing_left(server);
    }

    fn import_image(&self) {
        let (root, tar) = (self.folder.path().join("image"), self.folder.path().join("image.tar"));
        make_small_root(&root);
        let packed = Command::new("tar").arg("-C").arg(&root).arg("-cf").arg(&tar).arg(".").status();
        assert!(packed.expect("tar").success());
        let host = format!("unix://{}", self.engine.socket());
        let output = Command::new("docker").args(["--host", &host, "import"]).arg(&tar).arg(IMAGE).output();
        let output = output.expect("docker, of the package docker-cli");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }

    fn log(&self) -> PathBuf {
        self.folder.path().join("dockerd.log")
    }
}

impl Drop for DedicatedEngine {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!(
                "---- log of the engine ----\n{}",
                std::fs::read_to_string(self.log()).unwrap_or_default()
            );
        }
        // After a failed test: containers may outlive the engine, and only an engine can remove them.
        if std::thread::panicking() {
            self.run_again();
        }
        for container in self
            .engine
            .ask("GET", "/containers/json?all=true")
            .iter()
            .flat_map(|all| all.as_array())
            .flatten()
        {
            let id = container["Id"].as_str().unwrap_or_default();
            let _ = self.engine.ask("DELETE", &format!("/containers/{id}?force=true&v=true"));
        }
        if let Some(mut child) = self.process.get_mut().ok().and_then(Option::take) {
            let _ = kill_process(Pid::from_child(&child), Signal::TERM);
            let _ = child.wait();
        }
        let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
        let folder = self.folder.path().display().to_string();
        for target in mounts
            .lines()
            .rev()
            .filter_map(|line| line.split(' ').nth(1))
            .filter(|path| path.starts_with(&folder))
        {
            let _ = Command::new("umount").args(["--lazy", target]).status();
        }
    }
}
