//! One running binary with its own data folder, ports and log.

use std::collections::BTreeSet;
use std::fs::File;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use reqwest::Method;
use reqwest::blocking::{Client, RequestBuilder};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::api_response::Answer;
use crate::free_port::free_port;
use crate::http::http_client;
use crate::job::Job;
use crate::sandbox::Sandbox;
use crate::{SandboxProcesses, leftovers, processes};

#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Content of the configuration file.
    pub config: String,
    /// Listen addresses in addition to the first one.
    pub listen: Vec<String>,
    /// The data folder; `None` creates one.
    pub data: Option<PathBuf>,
    /// The folder of images; `None` uses the data folder's, which is empty. See [`crate::images`].
    pub images: Option<PathBuf>,
    /// Environment variables of the server, besides those of the test.
    pub environment: Vec<(&'static str, String)>,
}

/// A running server. Dropping it kills the server and everything it started.
pub struct Server {
    folder: TempDir,
    options: Options,
    /// The port of the first listen address.
    pub port: u16,
    client: Client,
    process: Mutex<Option<Child>>,
    sandboxes: Mutex<Vec<String>>,
}

/// The path of the `caisson` binary, next to the test executables; panics if it was not built.
#[must_use]
pub fn binary() -> PathBuf {
    let tests = std::env::current_exe().expect("the path of the test");
    let profile = tests.ancestors().nth(2).expect("target/<profile>/deps/<test>");
    let binary = profile.join("caisson");
    assert!(binary.is_file(), "{} is missing: run `cargo build -p caisson` first", binary.display());
    binary
}

/// The polling interval for conditions that nothing signals.
pub(crate) fn pause() {
    std::thread::sleep(Duration::from_millis(20));
}

/// How long tests wait for what has to happen: far longer than it takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// Polls until `holds` returns true; panics after two minutes.
#[track_caller]
pub fn wait_until(what: &str, holds: impl FnMut() -> bool) {
    wait_at_most(PATIENCE, what, holds);
}

/// Polls until `holds` returns true; panics after `patience`.
#[track_caller]
pub(crate) fn wait_at_most(patience: Duration, what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + patience;
    while !holds() {
        assert!(Instant::now() < deadline, "waited {} s in vain until {what}", patience.as_secs());
        pause();
    }
}

impl Server {
    /// Starts a server with default options and waits until it is ready.
    #[must_use]
    #[track_caller]
    pub fn start() -> Self {
        Self::start_with(Options::default())
    }

    /// Starts a server and waits until it is ready.
    #[must_use]
    #[track_caller]
    pub fn start_with(options: Options) -> Self {
        let server = Self::prepare(options);
        server.restart();
        server
    }

    /// Creates the folder and chooses the port, without starting the server.
    #[must_use]
    pub fn prepare(options: Options) -> Self {
        let folder =
            tempfile::Builder::new().prefix("caisson-e2e-").tempdir().expect("a folder for the server");
        std::fs::write(folder.path().join("caisson.toml"), &options.config)
            .expect("writing the configuration");
        // Idle connections are dropped before the server could close them, so that a reused connection never fails.
        let client = http_client()
            .timeout(Duration::from_secs(120))
            .pool_idle_timeout(Duration::from_secs(1))
            .build()
            .expect("an HTTP client");
        let (process, sandboxes) = (Mutex::new(None), Mutex::new(Vec::new()));
        Self { folder, options, port: free_port(), client, process, sandboxes }
    }

    /// The data folder.
    #[must_use]
    pub fn data(&self) -> PathBuf {
        self.options.data.clone().unwrap_or_else(|| self.folder.path().join("data"))
    }

    /// A folder for the test's files, removed with the server.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// What the server has printed.
    #[must_use]
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("server.log")).unwrap_or_default()
    }

    /// The command that starts the server.
    #[must_use]
    pub fn command(&self) -> Command {
        let mut command = Command::new(binary());
        command.arg("serve").arg("--config").arg(self.folder.path().join("caisson.toml"));
        command.arg("--data").arg(self.data()).arg("--run-dir").arg(self.folder.path().join("run"));
        command.args(["--listen", &format!("127.0.0.1:{}", self.port)]);
        for address in &self.options.listen {
            command.args(["--listen", address]);
        }
        command.stdin(Stdio::null());
        match &self.options.images {
            Some(images) => command.env("CAISSON_IMAGES", images),
            None => command.env_remove("CAISSON_IMAGES"),
        };
        command.envs(self.options.environment.iter().map(|(name, value)| (name, value)));
        command
    }

    /// Starts (or restarts) the server and waits until it is ready; panics after two minutes.
    #[track_caller]
    pub fn restart(&self) {
        self.spawn();
        let deadline = Instant::now() + PATIENCE;
        while !self.client.get(self.url("/readyz")).send().is_ok_and(|answer| answer.status() == 200) {
            let ended = self.process.lock().unwrap().as_mut().and_then(|child| child.try_wait().unwrap());
            assert!(ended.is_none(), "the server ended at once ({ended:?}):\n{}", self.log());
            assert!(Instant::now() < deadline, "the server is not ready after two minutes:\n{}", self.log());
            pause();
        }
    }

    /// Starts the server without waiting.
    pub fn spawn(&self) {
        let log =
            File::options().create(true).append(true).open(self.folder.path().join("server.log")).unwrap();
        let mut process = self.process.lock().unwrap();
        assert!(process.is_none(), "the server runs already");
        let child =
            self.command().stdout(log.try_clone().unwrap()).stderr(log).spawn().expect("starting the server");
        *process = Some(child);
    }

    /// Kills the server with SIGKILL, as a power cut would, and waits for it to exit. Panics if it had already
    /// exited.
    #[track_caller]
    pub fn kill9(&self) {
        let status = self.end(Signal::KILL);
        assert_eq!(status.signal(), Some(9), "the server had ended before it was killed:\n{}", self.log());
    }

    /// Stops the server with SIGTERM and asserts a successful exit.
    #[track_caller]
    pub fn stop(&self) {
        let status = self.end(Signal::TERM);
        assert!(status.success(), "the server ended with {status}:\n{}", self.log());
    }

    /// Waits until the server exits by itself.
    #[track_caller]
    pub fn wait(&self) -> ExitStatus {
        self.process.lock().unwrap().take().expect("the server was not started").wait().unwrap()
    }

    /// The server's process id.
    #[must_use]
    #[track_caller]
    pub fn pid(&self) -> u32 {
        self.process.lock().unwrap().as_ref().expect("the server does not run").id()
    }

    fn end(&self, signal: Signal) -> ExitStatus {
        let mut child = self.process.lock().unwrap().take().expect("the server does not run");
        kill_process(Pid::from_child(&child), signal).expect("sending a signal to the server");
        child.wait().unwrap()
    }

    #[must_use]
    pub fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}{path}", self.port)
    }

    /// A request that the test extends before sending it.
    pub fn request(&self, method: Method, path: &str) -> RequestBuilder {
        self.client.request(method, self.url(path))
    }

    /// Sends a request and reads the response.
    #[track_caller]
    pub fn send(&self, request: RequestBuilder) -> Answer {
        let request = request.build().expect("a request");
        let what = format!("{} {}", request.method(), request.url());
        let response = self.client.execute(request).unwrap_or_else(|error| panic!("{what}: {error:?}"));
        Answer::read(what, response)
    }

    /// Sends a GET request.
    #[track_caller]
    pub fn get(&self, path: &str) -> Answer {
        self.send(self.request(Method::GET, path))
    }

    /// Posts JSON.
    #[track_caller]
    pub fn post(&self, path: &str, body: &Value) -> Answer {
        self.send(self.request(Method::POST, path).json(body))
    }

    /// Submits a job.
    #[track_caller]
    pub fn schedule(&self, body: &Value) -> Job<'_> {
        let answer = self.post("/schedule", body).expect(202).json();
        self.job(answer["job_id"].as_str().expect("a job_id"))
    }

    /// Submits a step job.
    #[track_caller]
    pub fn schedule_steps(&self, steps: &[Value]) -> Job<'_> {
        self.schedule(&json!({"steps": steps}))
    }

    /// A job by its id.
    #[must_use]
    pub fn job(&self, id: &str) -> Job<'_> {
        Job::new(self, id.to_owned())
    }

    /// Creates a bare sandbox.
    #[track_caller]
    pub fn create_sandbox(&self, body: &Value) -> Sandbox<'_> {
        let answer = self.post("/v1/sandboxes", body).expect(201).json();
        assert_eq!(answer["status"], "running", "{answer:#}");
        self.sandbox(answer["sandbox_id"].as_str().expect("a sandbox_id"))
    }

    /// A bare sandbox by its id.
    #[must_use]
    pub fn sandbox(&self, id: &str) -> Sandbox<'_> {
        Sandbox::new(self, id.to_owned())
    }

    /// The command lines of the launchers that this server has started; each contains its sandbox id.
    #[must_use]
    pub fn launchers(&self) -> Vec<String> {
        let folder = self.folder.path().display().to_string();
        let commands = processes::all().into_iter().map(|process| process.command);
        let ours = commands.filter(|command| command.contains("launch.jsonl") && command.contains(&folder));
        // A starting launcher has children with the same command line; the set counts that sandbox once.
        ours.collect::<BTreeSet<String>>().into_iter().collect()
    }

    /// How many sandboxes of this server are frozen (the cgroup freezer has stopped them).
    #[must_use]
    pub fn count_frozen(&self) -> usize {
        let folder = self.folder.path().display().to_string();
        let all = processes::all();
        let is_owner = |process: &&processes::Process| {
            process.command.contains("launch.jsonl") && process.command.contains(&folder)
        };
        let guest_is_frozen = |owner: &&processes::Process| {
            let mut guests = all.iter().filter(|process| process.parent == owner.pid);
            guests.any(|guest| processes::is_frozen(guest.pid))
        };
        all.iter().filter(is_owner).filter(guest_is_frozen).count()
    }

    pub(crate) fn remember_sandbox(&self, id: &str) {
        let mut sandboxes = self.sandboxes.lock().unwrap();
        if !sandboxes.iter().any(|known| known == id) {
            sandboxes.push(id.to_owned());
        }
    }

    /// The processes of the newest sandbox that a [`Follower`](crate::Follower) has seen.
    #[must_use]
    #[track_caller]
    pub fn newest_sandbox(&self) -> SandboxProcesses {
        let sandboxes = self.sandboxes.lock().unwrap();
        SandboxProcesses::find(sandboxes.last().expect("no sandbox was seen"))
    }

    /// Waits until no sandbox, mount, loop device, cgroup or process of a sandbox is left; the server itself may keep
    /// running. Panics if something is still there after two minutes.
    #[track_caller]
    pub fn assert_nothing_left(&self) {
        let server = self.process.lock().unwrap().as_ref().map(Child::id);
        let own_process = format!("process {} ", server.unwrap_or_default());
        // The standby launcher and the kept disk for the next sandbox live as long as the server.
        let is_ready = |line: &String| {
            let is_launcher = line.starts_with("process ") && line.ends_with(" --stand-by");
            server.is_some() && (is_launcher || line.starts_with("loop device ") && line.ends_with(".kept"))
        };
        let mut found = Vec::new();
        let deadline = Instant::now() + PATIENCE;
        while Instant::now() < deadline {
            found = leftovers::find(&self.words());
            found.retain(|line| {
                !line.starts_with(&own_process) && !is_ready(line) && !self.is_mount_of_the_test(line)
            });
            if found.is_empty() {
                return;
            }
            pause();
        }
        panic!("left behind:\n  {}", found.join("\n  "));
    }

    /// A mount that the test itself has created for the data folder is not a leftover.
    fn is_mount_of_the_test(&self, line: &str) -> bool {
        let data = self.options.data.as_ref().and_then(|data| data.to_str());
        data.is_some() && line.starts_with("mount ") && line.split(' ').nth(5) == data
    }

    fn words(&self) -> Vec<String> {
        let mut words = vec![self.folder.path().display().to_string(), self.data().display().to_string()];
        words.extend(self.sandboxes.lock().unwrap().iter().cloned());
        words
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let process = self.process.get_mut().map(Option::take).unwrap_or_default();
        if std::thread::panicking() {
            eprintln!("---- log of the server ----\n{}", self.log());
        }
        if let Some(mut child) = process {
            processes::kill(i32::try_from(child.id()).unwrap_or_default());
            let _ = child.wait();
        }
        let sandboxes = self.sandboxes.get_mut().map(std::mem::take).unwrap_or_default();
        leftovers::sweep(&self.folder.path().display().to_string(), &sandboxes);
    }
}
