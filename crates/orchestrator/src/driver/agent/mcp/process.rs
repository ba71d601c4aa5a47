//! Carries lines between an MCP server process in the sandbox and its client, across link failures. The process keeps
//! running when no client is connected.

use std::sync::Arc;

use mcp::{Line, LineTransport, OutgoingLine, RecoveredAnswers};
use protocol::{
    CallFollower, CallInput, CallKey, Exec, ExecEnd, ExecEvent, ExecUpdate, Follow, GuestClient,
    OutputStream, ProtocolError,
};
use tokio::sync::{mpsc, watch};

/// Maximum length of a line, and how much of stderr is kept.
const MAX_LINE_BYTES: usize = 16 * 1024 * 1024;
const STDERR_BYTES: usize = 2000;
/// Capacity of the channels for lines, in each direction.
const WAITING: usize = 64;

/// The job's guest client; replaced whenever the link is reopened.
pub(super) type Guest = watch::Receiver<Option<GuestClient>>;

/// Why the process exited, once it has.
pub(super) type ExitReason = watch::Receiver<Option<String>>;

pub(super) enum ConnectMode {
    Start(Box<Exec>),
    /// Attach to a running process. Output chunks before this number are old.
    Attach(u64),
}

/// Waits for a link to the guest; `None` if the job has ended.
pub(super) async fn reach(guest: &mut Guest) -> Option<GuestClient> {
    loop {
        let client = guest.borrow_and_update().clone();
        if let Some(client) = client.filter(|client| !client.link().is_closed()) {
            return Some(client);
        }
        guest.changed().await.ok()?;
    }
}

pub(super) fn connect(
    guest: &Guest,
    key: &CallKey,
    begin: ConnectMode,
) -> (LineTransport, RecoveredAnswers, ExitReason) {
    let (outgoing, lines_out) = mpsc::channel(WAITING);
    let (lines_in, incoming) = mpsc::channel(WAITING);
    let (exit_reason_sender, exit_reason) = watch::channel(None);
    // Input that is written before the process exists would be lost.
    let (started, is_started) = watch::channel(matches!(begin, ConnectMode::Attach(_)));
    // Request ids must differ from those of every other connection to the same process.
    let prefix = format!("{}-", uuid::Uuid::now_v7().simple());
    let (lines, recovered) = LineTransport::new(prefix, outgoing, incoming);
    let is_old_before = match &begin {
        ConnectMode::Start(_) => 0,
        ConnectMode::Attach(number) => *number,
    };
    let reader = Reader {
        key: key.clone(),
        next: 0,
        is_old_before,
        buffer: Vec::new(),
        stderr: Vec::new(),
        started,
        lines_in,
    };
    drop(tokio::spawn(reader.run(guest.clone(), begin, exit_reason_sender)));
    drop(tokio::spawn(write(guest.clone(), key.clone(), lines_out, is_started, exit_reason.clone())));
    (lines, recovered, exit_reason)
}

struct Reader {
    key: CallKey,
    next: u64,
    is_old_before: u64,
    buffer: Vec<u8>,
    stderr: Vec<u8>,
    started: watch::Sender<bool>,
    lines_in: mpsc::Sender<Line>,
}

impl Reader {
    async fn run(mut self, mut guest: Guest, begin: ConnectMode, exit_reason: watch::Sender<Option<String>>) {
        let lines_in = self.lines_in.clone();
        let mut exec = match begin {
            ConnectMode::Start(exec) => Some(exec),
            ConnectMode::Attach(_) => None,
        };
        let told = tokio::select! {
            told = self.follow(&mut guest, &mut exec) => told,
            // The client has dropped its end.
            () = lines_in.closed() => return,
        };
        exit_reason.send_replace(Some(told));
    }

    /// Follows the process until it exits, and returns the reason.
    async fn follow(&mut self, guest: &mut Guest, exec: &mut Option<Box<Exec>>) -> String {
        loop {
            let Some(client) = reach(guest).await else { return "the job has ended".into() };
            let followed = match exec.take() {
                Some(exec) => client.exec(*exec, Follow::Live).await,
                None => client.follow(self.key.clone(), self.next, Follow::Live).await,
            };
            let broken = match followed {
                Ok(mut follower) => match self.take_all(&mut follower).await {
                    Ok(end) => return self.told(&end),
                    Err(error) => error,
                },
                Err(error) => error,
            };
            match broken {
                ProtocolError::Refused(message) => return message,
                error if error.is_retryable() => {}
                error => return error.to_string(),
            }
        }
    }

    async fn take_all(&mut self, follower: &mut CallFollower) -> Result<ExecEnd, ProtocolError> {
        loop {
            match follower.next().await? {
                ExecUpdate::Event(ExecEvent::Ended(outcome)) => return Ok(outcome.end),
                ExecUpdate::Event(ExecEvent::Gap { to_sequence, .. }) => {
                    // The current line has lost its middle.
                    self.buffer.clear();
                    self.next = to_sequence;
                }
                ExecUpdate::Event(ExecEvent::Started { .. }) => drop(self.started.send_replace(true)),
                ExecUpdate::Event(ExecEvent::Progress { .. }) => {}
                ExecUpdate::Output(chunk) => {
                    self.next = chunk.sequence + 1;
                    let is_old = chunk.sequence < self.is_old_before;
                    match chunk.stream {
                        OutputStream::Stdout => self.take_lines(&chunk.bytes, is_old).await,
                        _ => self.take_stderr(&chunk.bytes),
                    }
                }
            }
        }
    }

    async fn take_lines(&mut self, bytes: &[u8], is_old: bool) {
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            if self.buffer.len() + piece.len() > MAX_LINE_BYTES {
                self.buffer.clear();
                continue;
            }
            self.buffer.extend_from_slice(piece);
            if piece.ends_with(b"\n") {
                let line = Line { bytes: std::mem::take(&mut self.buffer), is_old };
                // A dropped receiver is handled in `run`.
                let _ = self.lines_in.send(line).await;
            }
        }
    }

    fn take_stderr(&mut self, bytes: &[u8]) {
        self.stderr.extend_from_slice(bytes);
        let excess = self.stderr.len().saturating_sub(STDERR_BYTES);
        self.stderr.drain(..excess);
    }

    fn told(&self, end: &ExecEnd) -> String {
        let how = match end {
            ExecEnd::Code(code) => format!("its process ended with exit code {code}"),
            ExecEnd::Signal(signal) => format!("its process was ended by signal {signal}"),
            ExecEnd::NotStarted(why) => format!("its process could not be started: {why}"),
            other => format!("its process is gone: {other:?}"),
        };
        let said = String::from_utf8_lossy(&self.stderr);
        match said.trim().lines().last() {
            Some(line) => format!("{how}; it said last: {}", line.chars().take(300).collect::<String>()),
            None => how,
        }
    }
}

/// Writes lines to the process, one after another. Never writes a line again that may have been written.
async fn write(
    mut guest: Guest,
    key: CallKey,
    mut lines: mpsc::Receiver<OutgoingLine>,
    mut started: watch::Receiver<bool>,
    mut exit_reason: ExitReason,
) {
    let mut input: Option<(Arc<GuestClient>, CallInput)> = None;
    while let Some(OutgoingLine { line, written }) = lines.recv().await {
        let writing = async {
            if started.wait_for(|started| *started).await.is_err() {
                return Err("the process was not started".into());
            }
            let open = input.take().filter(|(client, _)| !client.link().is_closed());
            let (client, mut open) = match open {
                Some(open) => open,
                None => {
                    let client = reach(&mut guest).await.ok_or("the job has ended")?;
                    let open = client.input(key.clone()).await.map_err(|error| error.to_string())?;
                    (Arc::new(client), open)
                }
            };
            open.write(&line).await.map_err(|error| error.to_string())?;
            input = Some((client, open));
            Ok::<(), String>(())
        };
        let result = tokio::select! {
            result = writing => result,
            // A process that has exited never reads, so the write would never finish.
            _ = exit_reason.wait_for(Option::is_some) => Err("the process has ended".into()),
        };
        let _ = written.send(result);
    }
}
