//! Carries lines between an MCP server process in the sandbox and its client, across link failures. The process keeps
//! running when no client is connected.

use std::future::pending;
use std::sync::Arc;

use mcp::{LineTransport, OutgoingLine, RecoveredAnswers};
use protocol::{CallInput, CallKey, Exec, ExecEnd, GuestClient, ProtocolError};
use tokio::sync::{mpsc, watch};

use super::lines::Lines;
use crate::driver::call::{self, Begin, CallHost, Followed, Interrupt};
use crate::error::OrchestratorError;

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
    let (transport, recovered) = LineTransport::new(prefix, outgoing, incoming);
    let (begin, is_old_before) = match begin {
        ConnectMode::Start(exec) => (Begin::Start(exec), 0),
        ConnectMode::Attach(number) => (Begin::Attach, number),
    };
    let lines = Lines::new(is_old_before, started, lines_in);
    drop(tokio::spawn(read(guest.clone(), key.clone(), begin, lines, exit_reason_sender)));
    drop(tokio::spawn(write(guest.clone(), key.clone(), lines_out, is_started, exit_reason.clone())));
    (transport, recovered, exit_reason)
}

/// The host of the call that runs the process. It waits for the link that the driver reopens.
struct McpProcess {
    guest: Guest,
    has_sent_start: bool,
}

impl CallHost for McpProcess {
    type Exit = String;

    async fn client(&mut self) -> Result<GuestClient, String> {
        reach(&mut self.guest).await.ok_or_else(|| "the job has ended".into())
    }

    /// The next link may lead to another sandbox, where the process must not start.
    fn before_start(&mut self) -> Result<(), String> {
        if std::mem::replace(&mut self.has_sent_start, true) {
            return Err("the link broke before its process was started".into());
        }
        Ok(())
    }

    async fn interrupted(&mut self) -> Interrupt<String> {
        pending().await
    }

    async fn after_break(&mut self, error: ProtocolError) -> Result<(), String> {
        if error.is_retryable() { Ok(()) } else { Err(error.to_string()) }
    }

    fn unrecorded(&self, error: OrchestratorError) -> Interrupt<String> {
        Interrupt::Leave(error.to_string())
    }
}

/// Follows the process until it exits, and reports the reason.
async fn read(
    guest: Guest,
    key: CallKey,
    begin: Begin,
    mut lines: Lines,
    exit_reason: watch::Sender<Option<String>>,
) {
    let client_left = lines.client_left();
    let mut host = McpProcess { guest, has_sent_start: false };
    let followed = tokio::select! {
        followed = call::run(&mut host, &key, begin, &mut lines) => followed,
        () = client_left => return,
    };
    let reason = match followed {
        Ok(Followed::Ended(outcome)) => explain_exit(&outcome.end, lines.last_error_line()),
        Ok(Followed::StillRunning) => "the server no longer follows its process".into(),
        Ok(Followed::Refused(message)) | Err(message) => message,
    };
    exit_reason.send_replace(Some(reason));
}

/// Why the process exited; `said` is the last line that it wrote to stderr.
fn explain_exit(end: &ExecEnd, said: Option<String>) -> String {
    let how = match end {
        ExecEnd::Code(code) => format!("its process ended with exit code {code}"),
        ExecEnd::Signal(signal) => format!("its process was ended by signal {signal}"),
        ExecEnd::NotStarted(why) => format!("its process could not be started: {}", why.message),
        ExecEnd::Killed => "its process was killed".into(),
        _ => "its process is gone".into(),
    };
    match said {
        Some(line) => format!("{how}; it said last: {line}"),
        None => how,
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
