//! Starts the real guest in a temporary directory and communicates with it as the host does.
// Not every test file uses everything, and clippy does not recognize these functions as part of tests.
#![allow(dead_code, clippy::unwrap_used, clippy::panic)]

use std::collections::BTreeMap;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use protocol::{
    CallFollower, CallKey, Exec, ExecEnd, ExecEvent, ExecOutcome, ExecUpdate, FileError, Follow, GuestClient,
    IncomingStreams, LinkCredentials, OutputStream, Program, ProtocolError, Welcome,
};
use tokio::net::UnixStream;

/// A running guest, killed on drop.
pub(crate) struct TestGuest {
    directory: tempfile::TempDir,
    child: Child,
}

impl Drop for TestGuest {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl TestGuest {
    /// Starts a guest. Does not wait until it listens.
    pub(crate) fn start() -> Self {
        Self::start_with(&[])
    }

    /// Starts a guest with additional arguments.
    pub(crate) fn start_with(arguments: &[&str]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        std::fs::set_permissions(directory.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        let workspace = directory.path().join("workspace");
        std::fs::create_dir(&workspace).unwrap();
        if is_root() {
            chown(&workspace, Some(1000), Some(1000)).unwrap();
        }
        let child = Command::new(env!("CARGO_BIN_EXE_caisson-guest"))
            .arg("serve")
            .args(["--listen", directory.path().join("socket").to_str().unwrap()])
            .args(["--state", directory.path().join("state").to_str().unwrap()])
            .args(["--workspace", workspace.to_str().unwrap()])
            .args(arguments)
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        Self { directory, child }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn workspace(&self) -> PathBuf {
        self.directory.path().join("workspace")
    }

    pub(crate) fn state(&self) -> PathBuf {
        self.directory.path().join("state")
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.directory.path().join("socket")
    }

    /// Connects to the guest's socket as soon as it listens.
    pub(crate) async fn dial(&self) -> UnixStream {
        loop {
            match UnixStream::connect(self.socket()).await {
                Ok(stream) => return stream,
                Err(_) => tokio::task::yield_now().await,
            }
        }
    }

    pub(crate) async fn connect(&self) -> (GuestClient, Welcome, IncomingStreams) {
        GuestClient::connect(self.dial().await, LinkCredentials::new("test", 1)).await.unwrap()
    }

    pub(crate) async fn client(&self) -> GuestClient {
        self.connect().await.0
    }

    /// Creates a file in the workspace, owned by the agent.
    pub(crate) fn put(&self, path: &str, content: impl AsRef<[u8]>) {
        let path = self.workspace().join(path);
        std::fs::write(&path, content).unwrap();
        give_to_agent(&path);
    }

    pub(crate) fn make_directory(&self, path: &str) {
        let path = self.workspace().join(path);
        std::fs::create_dir(&path).unwrap();
        give_to_agent(&path);
    }
}

pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

fn give_to_agent(path: &Path) {
    if is_root() {
        chown(path, Some(1000), Some(1000)).unwrap();
    }
}

pub(crate) fn key(name: &str) -> CallKey {
    CallKey::new(name, 1)
}

pub(crate) fn exec(name: &str, program: Program) -> Exec {
    Exec {
        key: key(name),
        program,
        environment: BTreeMap::from([("PATH".to_owned(), "/usr/local/bin:/usr/bin:/bin".to_owned())]),
        directory: None,
        stdin: None,
        keep_stdin_open: false,
        terminal: None,
        timeout_ms: None,
        kill_grace_ms: 2_000,
    }
}

pub(crate) fn shell(name: &str, command: &str) -> Exec {
    exec(name, Program::Shell(command.to_owned()))
}

/// Everything that a follower has received.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    pub(crate) pid: Option<u32>,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: Vec<u8>,
    pub(crate) terminal: Vec<u8>,
    pub(crate) sequences: Vec<u64>,
    pub(crate) gaps: Vec<(u64, u64, u64)>,
    pub(crate) progress: Vec<u64>,
}

impl Seen {
    pub(crate) fn take(&mut self, update: ExecUpdate) -> Option<ExecOutcome> {
        match update {
            ExecUpdate::Output(chunk) => {
                self.sequences.push(chunk.sequence);
                match chunk.stream {
                    OutputStream::Stdout => self.stdout.extend_from_slice(&chunk.bytes),
                    OutputStream::Stderr => self.stderr.extend_from_slice(&chunk.bytes),
                    OutputStream::Terminal | OutputStream::Display => {
                        self.terminal.extend_from_slice(&chunk.bytes)
                    }
                }
            }
            ExecUpdate::Event(ExecEvent::Started { pid }) => self.pid = Some(pid),
            ExecUpdate::Event(ExecEvent::Gap { from_sequence, to_sequence, bytes }) => {
                self.gaps.push((from_sequence, to_sequence, bytes));
            }
            ExecUpdate::Event(ExecEvent::Progress { bytes, .. }) => self.progress.push(bytes),
            ExecUpdate::Event(ExecEvent::Ended(outcome)) => return Some(outcome),
        }
        None
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }
}

/// Follows a call to its end.
pub(crate) async fn finish(follower: &mut CallFollower) -> (Seen, ExecOutcome) {
    let mut seen = Seen::default();
    let outcome = finish_into(follower, &mut seen).await;
    (seen, outcome)
}

pub(crate) async fn finish_into(follower: &mut CallFollower, seen: &mut Seen) -> ExecOutcome {
    loop {
        if let Some(outcome) = seen.take(follower.next().await.unwrap()) {
            return outcome;
        }
    }
}

/// Follows a call until its output contains the text.
pub(crate) async fn wait_for_output(follower: &mut CallFollower, seen: &mut Seen, wanted: &str) {
    loop {
        let all = [&seen.stdout[..], &seen.stderr, &seen.terminal].concat();
        if String::from_utf8_lossy(&all).contains(wanted) {
            return;
        }
        let ended = seen.take(follower.next().await.unwrap());
        assert!(ended.is_none(), "ended without printing {wanted}: {ended:?} {seen:?}");
    }
}

pub(crate) async fn run(client: &GuestClient, exec: Exec) -> (Seen, ExecOutcome) {
    finish(&mut client.exec(exec, Follow::Capped).await.unwrap()).await
}

/// Runs a command that must succeed. Returns its standard output.
pub(crate) async fn run_shell(client: &GuestClient, name: &str, command: &str) -> String {
    let (seen, outcome) = run(client, shell(name, command)).await;
    assert_eq!(outcome.end, ExecEnd::Code(0), "{command}: {seen:?}");
    seen.text()
}

/// The state and parent of a process; `None` if it is gone.
pub(crate) fn state_and_parent(pid: &str) -> Option<(char, u32)> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The process name, which comes first, can contain anything.
    let (_, rest) = stat.rsplit_once(") ")?;
    let mut fields = rest.split(' ');
    Some((fields.next()?.chars().next()?, fields.next()?.parse().ok()?))
}

/// Waits until the parent has reaped a process, which remains in `/proc` until then.
pub(crate) async fn wait_until_collected(pid: &str) {
    let end = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while Path::new("/proc").join(pid).exists() {
        assert!(std::time::Instant::now() < end, "{pid} is never waited for");
        tokio::task::yield_now().await;
    }
}

pub(crate) fn file_error(error: ProtocolError) -> FileError {
    match error {
        ProtocolError::File(error) => error,
        other => panic!("not refused as a file operation: {other:?}"),
    }
}
