//! Live access to a sandbox: processes with their input and output, connections to ports.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use egress::{RedactedStream, Redactor};
use job::{CallEnd, JobId};
use protocol::{
    ByteStream, CallFollower, CallInput, CallKey, ExecEvent, ExecUpdate, Follow, GuestClient, OutputStream,
    TerminalSize,
};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::oneshot;

use crate::audit::user_actions::StdinDigest;
use crate::core::Orchestrator;
use crate::core::last_use::InUse;
use crate::core::live_jobs::LiveJob;
use crate::driver::call::{self, Begin, OneLink};
use crate::driver::{Captured, EGRESS_PORT, OutputSink};
use crate::error::OrchestratorError;
use crate::live::calls::{StartedCall, end_of, interrupted, plain_end};
use crate::live::exec_request::ExecRequest;

/// Options of a live process.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ExecStreamOptions {
    /// Runs the process on a terminal of this size.
    pub terminal: Option<TerminalSize>,
    /// Leaves stdin open; on a terminal it always is.
    pub keep_stdin_open: bool,
    /// Blocks the process while its client does not read. If unset, the process never blocks, and output that exceeds
    /// the limit is dropped.
    pub has_backpressure: bool,
}

/// Output and end of a live process.
#[derive(Debug)]
pub enum LiveUpdate {
    Output {
        stream: OutputStream,
        bytes: Bytes,
    },
    /// The client read too slowly, and output was dropped.
    Gap {
        /// Number of dropped bytes.
        bytes: u64,
    },
    /// The process has ended; nothing follows.
    Ended(Box<CallEnd>),
}

/// A process that a client interacts with. Its parts can be used concurrently; dropping them does not affect the
/// process.
pub struct LiveExec {
    pub output: LiveOutput,
    pub input: LiveInput,
    pub control: LiveControl,
}

/// Output and end of a live process, as they happen.
pub struct LiveOutput {
    follower: CallFollower,
    /// An update that was received and not yet returned.
    pending: Option<ExecUpdate>,
    /// Receives the end once it is logged; `None` if another task follows the call for the log.
    end: Option<oneshot::Receiver<CallEnd>>,
    cover: Cover,
}

/// Masks secret values in the output of a live process.
struct Cover {
    redactor: Redactor,
    stdout: RedactedStream,
    stderr: RedactedStream,
}

impl Cover {
    fn new(redactor: Redactor) -> Self {
        Self { stdout: redactor.stream(), stderr: redactor.stream(), redactor }
    }

    fn push(&mut self, stream: OutputStream, bytes: Bytes) -> Bytes {
        match stream {
            OutputStream::Stdout => self.stdout.push(bytes),
            OutputStream::Stderr => self.stderr.push(bytes),
            // Nothing is held back on a terminal, because a user who types expects to see each character at once.
            OutputStream::Terminal | OutputStream::Display if self.redactor.finds(&bytes) => {
                let mut bytes = bytes.to_vec();
                self.redactor.cover(&mut bytes);
                bytes.into()
            }
            OutputStream::Terminal | OutputStream::Display => bytes,
        }
    }

    /// The bytes that were held back, once no more output follows.
    fn rest(&mut self) -> Option<LiveUpdate> {
        let held = [(OutputStream::Stdout, &mut self.stdout), (OutputStream::Stderr, &mut self.stderr)];
        let (stream, held) = held.into_iter().find(|(_, held)| !held.is_empty())?;
        Some(LiveUpdate::Output { stream, bytes: held.finish() })
    }
}

/// The stdin of a live process.
pub struct LiveInput {
    input: Option<CallInput>,
    /// Records what was written, for the log.
    stdin_digest: Option<StdinDigest>,
}

/// Signals and resizes a live process. The sandbox counts as in use until this is dropped.
pub struct LiveControl {
    call: String,
    key: CallKey,
    client: GuestClient,
    has_terminal: bool,
    _in_use: InUse,
}

/// A connection to a port in a sandbox.
pub struct PortStream {
    pub stream: Box<dyn ByteStream>,
    _client: GuestClient,
    _in_use: InUse,
}

impl PortStream {
    pub(crate) fn new(stream: impl ByteStream, client: GuestClient, live: &LiveJob) -> Self {
        Self { stream: Box::new(stream), _client: client, _in_use: live.used.begin() }
    }
}

impl AsyncRead for PortStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for PortStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

impl Orchestrator {
    /// Starts a process and follows it. SequencedEvent like every call.
    ///
    /// # Errors
    /// The job has no sandbox now, or the request is invalid.
    pub async fn open_exec(
        &self,
        id: JobId,
        request: ExecRequest,
        options: ExecStreamOptions,
    ) -> Result<LiveExec, OrchestratorError> {
        let begun = self.begin_call(id, &request).await?;
        self.follow_started_call(begun, &request, options).await
    }

    /// Starts a call whose start is logged, and follows it.
    pub(crate) async fn follow_started_call(
        &self,
        StartedCall { live, client, call, mut exec }: StartedCall,
        request: &ExecRequest,
        options: ExecStreamOptions,
    ) -> Result<LiveExec, OrchestratorError> {
        exec.terminal = options.terminal;
        exec.keep_stdin_open = options.keep_stdin_open || options.terminal.is_some();
        if let Some(name) = options.terminal.and(exec.environment.get_mut("TERM")) {
            "xterm-256color".clone_into(name);
        }
        let wants_input = exec.keep_stdin_open;
        let key = exec.key.clone();
        let follow_mode = if options.has_backpressure { Follow::Paced } else { Follow::Live };
        let (follower, first) = call::start(&client, exec, follow_mode).await?;
        let pending = Some(first);
        let (sender, end) = oneshot::channel();
        let (mut host, recorder, log_key) =
            (OneLink::new(client.clone()), Arc::clone(&live.recorder), key.clone());
        let (call_ref, timeout_s) = (call.clone(), request.timeout_s.unwrap_or_default());
        let shutdown = self.core.shutdown.clone();
        let (given, actor) = (StdinDigest::default(), self.actor().cloned());
        // On a terminal, the input is part of the output.
        let stdin_digest = options.terminal.is_none().then(|| given.clone());
        self.core.tasks.spawn(async move {
            let mut sink = OutputSink::new(Arc::clone(&recorder), call_ref.clone(), None, Captured::new(0));
            let followed = tokio::select! {
                followed = call::run(&mut host, &log_key, Begin::Attach, &mut sink) => followed,
                // The process keeps running, and the next server process logs its end.
                () = shutdown.cancelled() => return,
            };
            let ended = end_of(followed, timeout_s, &mut sink);
            Self::log_stdin(&recorder, &call_ref, &given, actor.as_ref()).await;
            let ended = ended.with_note(recorder.refusals_of(&call_ref, None).await);
            let _ = sink.finish(ended.clone()).await;
            let _ = sender.send(ended);
        });
        let input = if wants_input { Some(client.input(key.clone()).await?) } else { None };
        let control = LiveControl {
            call: call.id,
            key,
            client,
            has_terminal: options.terminal.is_some(),
            _in_use: live.used.begin(),
        };
        Ok(LiveExec {
            output: LiveOutput {
                follower,
                pending,
                end: Some(end),
                cover: Cover::new(live.recorder.redactor()),
            },
            input: LiveInput { input, stdin_digest },
            control,
        })
    }

    /// Connects to a port in the sandbox of a job.
    ///
    /// # Errors
    /// Nothing listens on the port, or the job has no sandbox now.
    pub async fn open_port(&self, id: JobId, port: u16) -> Result<PortStream, OrchestratorError> {
        let (live, client) = self.reach(id).await?;
        let stream = client.connect_port(port).await?;
        Ok(PortStream::new(stream, client, &live))
    }

    /// The ports that processes in the sandbox of a job listen on.
    ///
    /// # Errors
    /// The job has no sandbox now.
    pub async fn ports(&self, id: JobId) -> Result<Vec<u16>, OrchestratorError> {
        let (_, client) = self.reach(id).await?;
        Ok(client.ports().await?.into_iter().filter(|port| *port != EGRESS_PORT).collect())
    }
}

impl LiveExec {
    /// Reattaches to a process that runs or has ended, starting at chunk `from_sequence`.
    pub(crate) async fn reattach(
        client: GuestClient,
        key: CallKey,
        from_sequence: u64,
        live: &LiveJob,
    ) -> Result<Self, OrchestratorError> {
        let follower = client.follow(key.clone(), from_sequence, Follow::Live).await?;
        let input = client.input(key.clone()).await?;
        let control = LiveControl {
            call: key.call.clone(),
            key,
            client,
            has_terminal: true,
            _in_use: live.used.begin(),
        };
        let output =
            LiveOutput { follower, pending: None, end: None, cover: Cover::new(live.recorder.redactor()) };
        Ok(Self { output, input: LiveInput { input: Some(input), stdin_digest: None }, control })
    }
}

impl LiveOutput {
    /// Returns the next update; nothing follows [`LiveUpdate::Ended`]. Cancel safe.
    ///
    /// # Errors
    /// The link to the sandbox is broken.
    pub async fn next(&mut self) -> Result<LiveUpdate, OrchestratorError> {
        loop {
            let update = match self.pending.take() {
                Some(update) => update,
                None => self.follower.next().await?,
            };
            match update {
                ExecUpdate::Output(chunk) => {
                    let bytes = self.cover.push(chunk.stream, chunk.bytes);
                    if !bytes.is_empty() {
                        return Ok(LiveUpdate::Output { stream: chunk.stream, bytes });
                    }
                }
                ExecUpdate::Event(ExecEvent::Gap { bytes, .. }) => return Ok(LiveUpdate::Gap { bytes }),
                ExecUpdate::Event(ExecEvent::Ended(outcome)) => {
                    let plain = plain_end(&outcome);
                    // Kept until the end is returned, because the caller may cancel while waiting for the log, and
                    // call again.
                    self.pending = Some(ExecUpdate::Event(ExecEvent::Ended(outcome)));
                    if let Some(rest) = self.cover.rest() {
                        return Ok(rest);
                    }
                    let end = match &mut self.end {
                        Some(end) => end.await.unwrap_or_else(|_| interrupted("the server is shutting down")),
                        None => plain,
                    };
                    (self.pending, self.end) = (None, None);
                    return Ok(LiveUpdate::Ended(Box::new(end)));
                }
                ExecUpdate::Event(ExecEvent::Started { .. } | ExecEvent::Progress { .. }) => {}
            }
        }
    }
}

impl LiveInput {
    /// Writes to stdin; waits while the process does not read.
    ///
    /// # Errors
    /// The process has closed its stdin.
    pub async fn write(&mut self, bytes: &[u8]) -> Result<(), OrchestratorError> {
        match &mut self.input {
            Some(input) => {
                self.stdin_digest.iter().for_each(|stdin_digest| stdin_digest.add(bytes));
                Ok(input.write(bytes).await?)
            }
            None => Ok(()),
        }
    }

    /// Closes stdin, so that the process reads end of file.
    ///
    /// # Errors
    /// The link to the sandbox is broken.
    pub async fn close_input(&mut self) -> Result<(), OrchestratorError> {
        match self.input.take() {
            Some(input) => Ok(input.finish().await?),
            None => Ok(()),
        }
    }
}

impl LiveControl {
    /// The id of the call in the log.
    #[must_use]
    pub fn call(&self) -> &str {
        &self.call
    }

    /// Changes the size of the terminal.
    ///
    /// # Errors
    /// The process has no terminal.
    pub async fn resize(&self, size: TerminalSize) -> Result<(), OrchestratorError> {
        Ok(self.client.resize(self.key.clone(), size).await?)
    }

    /// Sends a signal to the process.
    ///
    /// # Errors
    /// The process has ended.
    pub async fn signal(&self, signal: i32) -> Result<(), OrchestratorError> {
        Ok(self.client.signal(self.key.clone(), signal).await?)
    }

    /// Kills the process and its children.
    ///
    /// # Errors
    /// The link to the sandbox is broken.
    pub async fn kill(&self) -> Result<(), OrchestratorError> {
        Ok(self.client.kill(self.key.clone()).await?)
    }

    /// Called when the client is gone: sends SIGHUP to a process on a terminal, and lets any other process continue.
    pub async fn hang_up(self) {
        const SIGHUP: i32 = 1;
        if self.has_terminal {
            let _ = self.signal(SIGHUP).await;
        }
    }
}
