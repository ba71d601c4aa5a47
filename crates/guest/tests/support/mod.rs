//! Starts the real guest in a directory of its own and speaks to it as the host does.
#![allow(dead_code)]

use std::collections::BTreeMap;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use protocol::{
    CallFollower, CallKey, Exec, ExecEnd, ExecEvent, ExecOutcome, ExecUpdate, FileError, Follow, GuestClient,
    IncomingStreams, OutputStream, Program, ProtocolError, Welcome,
};
use tokio::net::UnixStream;

/// A running guest; it ends with the test.
pub struct TestGuest {
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
    /// Starts a guest and waits until it listens.
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// Starts a guest with further arguments.
    pub fn start_with(arguments: &[&str]) -> Self {
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

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn workspace(&self) -> PathBuf {
        self.directory.path().join("workspace")
    }

    pub fn state(&self) -> PathBuf {
        self.directory.path().join("state")
    }

    pub fn socket(&self) -> PathBuf {
        self.directory.path().join("socket")
    }

    /// Dials the guest as soon as it listens.
    pub async fn dial(&self) -> UnixStream {
        loop {
            match UnixStream::connect(self.socket()).await {
                Ok(stream) => return stream,
                Err(_) => tokio::task::yield_now().await,
            }
        }
    }

    pub async fn connect(&self) -> (GuestClient, Welcome, IncomingStreams) {
        GuestClient::connect(self.dial().await).await.unwrap()
    }

    pub async fn client(&self) -> GuestClient {
        self.connect().await.0
    }

    /// Makes a file in the workspace that belongs to the agent.
    pub fn put(&self, path: &str, content: impl AsRef<[u8]>) {
        let path = self.workspace().join(path);
        std::fs::write(&path, content).unwrap();
        give_to_agent(&path);
    }

    pub fn make_directory(&self, path: &str) {
        let path = self.workspace().join(path);
        std::fs::create_dir(&path).unwrap();
        give_to_agent(&path);
    }
}

pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

fn give_to_agent(path: &Path) {
    if is_root() {
        chown(path, Some(1000), Some(1000)).unwrap();
    }
}

pub fn key(name: &str) -> CallKey {
    CallKey::new(name, 1)
}

pub fn exec(name: &str, program: Program) -> Exec {
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

pub fn shell(name: &str, command: &str) -> Exec {
    exec(name, Program::Shell(command.to_owned()))
}

/// All that a follower was told.
#[derive(Debug, Default)]
pub struct Seen {
    pub pid: Option<u32>,
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
    pub terminal: Vec<u8>,
    pub sequences: Vec<u64>,
    pub gaps: Vec<(u64, u64, u64)>,
    pub progress: Vec<u64>,
}

impl Seen {
    pub fn take(&mut self, update: ExecUpdate) -> Option<ExecOutcome> {
        match update {
            ExecUpdate::Output(chunk) => {
                self.sequences.push(chunk.sequence);
                match chunk.stream {
                    OutputStream::Stdout => self.stdout.extend_from_slice(&chunk.bytes),
                    OutputStream::Stderr => self.stderr.extend_from_slice(&chunk.bytes),
                    OutputStream::Terminal => self.terminal.extend_from_slice(&chunk.bytes),
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

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }
}

/// Follows to the end.
pub async fn finish(follower: &mut CallFollower) -> (Seen, ExecOutcome) {
    let mut seen = Seen::default();
    let outcome = finish_into(follower, &mut seen).await;
    (seen, outcome)
}

pub async fn finish_into(follower: &mut CallFollower, seen: &mut Seen) -> ExecOutcome {
    loop {
        if let Some(outcome) = seen.take(follower.next().await.unwrap()) {
            return outcome;
        }
    }
}

/// Follows until something was printed that contains the text.
pub async fn wait_for_output(follower: &mut CallFollower, seen: &mut Seen, wanted: &str) {
    loop {
        let all = [&seen.stdout[..], &seen.stderr, &seen.terminal].concat();
        if String::from_utf8_lossy(&all).contains(wanted) {
            return;
        }
        let ended = seen.take(follower.next().await.unwrap());
        assert!(ended.is_none(), "ended without printing {wanted}: {ended:?} {seen:?}");
    }
}

pub async fn run(client: &GuestClient, exec: Exec) -> (Seen, ExecOutcome) {
    finish(&mut client.exec(exec, Follow::Capped).await.unwrap()).await
}

/// Runs a command that must succeed; what it printed.
pub async fn run_shell(client: &GuestClient, name: &str, command: &str) -> String {
    let (seen, outcome) = run(client, shell(name, command)).await;
    assert_eq!(outcome.end, ExecEnd::Code(0), "{command}: {seen:?}");
    seen.text()
}

pub fn file_error(error: ProtocolError) -> FileError {
    match error {
        ProtocolError::File(error) => error,
        other => panic!("not refused as a file operation: {other:?}"),
    }
}
