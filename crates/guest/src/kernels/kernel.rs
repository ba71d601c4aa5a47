//! One kernel from start to end: its process, its channels and its state.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::time::Duration;

use protocol::{CallKey, Exec, Program, plain_text};
use rustix::process::WaitStatus;
use serde_json::{Value, json};
use tokio::io::{AsyncWriteExt, ReadHalf, WriteHalf, split};
use tokio::sync::{Mutex, mpsc, oneshot, watch};
use tokio::task::{JoinHandle, spawn_local};
use tokio::time::timeout;

use crate::kernels::connect::{Channel, ChannelStream, Connection};
use crate::kernels::spec::{InterruptMode, KernelSpec};
use crate::kernels::wire::{Message, Signer};
use crate::kernels::zmtp;
use crate::process_mark::ProcessMark;
use crate::process_tree::ProcessTree;
use crate::random::random_hex;
use crate::resources::Resources;
use crate::spawn::{self, PolledFd};
use crate::sys;

/// How long a kernel may take from its start to its first reply.
const START_TIMEOUT: Duration = Duration::from_secs(60);
/// How long to wait for the first published message before repeating the request.
const NUDGE_PAUSE: Duration = Duration::from_millis(100);
/// Time between SIGTERM and SIGKILL for a kernel being ended.
const END_GRACE: Duration = Duration::from_millis(500);
/// How long a kernel that shuts down by itself may take.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(5);
/// How much of the kernel's own output is kept to explain its death.
const RECENT_OUTPUT_BYTES: usize = 2000;
/// How many messages may queue up for a cell.
const MESSAGE_QUEUE_LENGTH: usize = 16;

type Reader = ReadHalf<Box<dyn ChannelStream>>;
type Writer = WriteHalf<Box<dyn ChannelStream>>;

/// The state of a kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum State {
    /// The kernel waits for code.
    Idle,
    /// The kernel runs code, from the agent or from a notebook.
    Busy,
    /// The kernel has ended. The text says how.
    Dead(String),
}

impl State {
    /// How the kernel ended, if it has.
    pub(crate) fn death(&self) -> Option<&str> {
        match self {
            Self::Dead(how) => Some(how),
            Self::Idle | Self::Busy => None,
        }
    }
}

/// A message in reply to a request.
#[derive(Debug)]
pub(crate) struct ChannelMessage {
    pub(crate) channel: Channel,
    pub(crate) message: Message,
}

struct PendingRequest {
    request: String,
    /// A request that was sent after it to find out what the kernel still had to publish.
    flush: Option<String>,
    sender: mpsc::Sender<ChannelMessage>,
}

/// A running kernel.
pub(crate) struct Kernel {
    pub(crate) spec: KernelSpec,
    /// Process ID, process group and session at once.
    pub(crate) pid: i32,
    mark: ProcessMark,
    pub(crate) connection: Connection,
    /// Changes when the kernel becomes busy or idle, or dies.
    pub(crate) state: watch::Sender<State>,
    /// Held by the cell that is using the kernel.
    pub(crate) turn: Mutex<()>,
    /// How often this kernel has been started, including this time.
    pub(crate) generation: u64,
    /// Number of cells that the kernel has received.
    pub(crate) cells: Cell<u64>,
    /// The environment that the kernel was started with.
    pub(crate) environment: BTreeMap<String, String>,
    /// A note for the result of the next cell.
    pub(crate) note: RefCell<Option<String>>,
    /// Why the guest is ending the kernel, if it is.
    ending: RefCell<Option<String>>,
    signer: Signer,
    shell: Mutex<Writer>,
    control: Mutex<Writer>,
    pending_request: RefCell<Option<PendingRequest>>,
    requests: Cell<u64>,
    readers: RefCell<Vec<JoinHandle<()>>>,
    recent_output: Rc<RefCell<VecDeque<u8>>>,
}

/// Kills a process unless another owner has taken it over.
struct KillOnDrop(Option<i32>);

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        if let Some(pid) = self.0 {
            let _ = sys::signal_group(pid, libc::SIGKILL);
        }
    }
}

impl Kernel {
    /// Starts a kernel and waits until it replies. The error is a message for the user.
    pub(crate) async fn start(
        resources: &Rc<Resources>,
        spec: KernelSpec,
        environment: BTreeMap<String, String>,
        connection: Connection,
        generation: u64,
    ) -> Result<Rc<Self>, String> {
        let session = random_hex().map_err(|error| format!("reading random bytes: {error}"))?;
        let written = connection.clone();
        let written = resources.files.workers.short(move || written.write_file()).await;
        written
            .map_err(|error| error.message)?
            .map_err(|error| format!("writing {}: {error}", connection.file.display()))?;
        let exec = exec_of(&spec, &connection, &environment, generation);
        let spawned = resources.spawner.spawn(&exec).map_err(|why| why.message)?;
        let pid = spawned.pid.as_raw_nonzero().get();
        let mut exit = resources.reaper.expect(spawned.pid);
        let mut kill_on_drop = KillOnDrop(Some(pid));
        let recent_output = Rc::new(RefCell::new(VecDeque::new()));
        for (_, output) in &spawned.outputs {
            spawn_local(listen(Rc::clone(output), Rc::clone(&recent_output)));
        }
        if let Some(failure) = spawn::read_report(&spawned.report).await {
            return Err(spawn::explain(&exec, &resources.spawner.directory, &failure).message);
        }
        let channels = async {
            tokio::join!(
                connection.open(&resources.files.workers, Channel::Shell),
                connection.open(&resources.files.workers, Channel::Iopub),
                connection.open(&resources.files.workers, Channel::Control)
            )
        };
        let (shell, iopub, control) = tokio::select! {
            channels = timeout(START_TIMEOUT, channels) => {
                channels.map_err(|_| format!("the kernel {} does not answer", spec.name))?
            }
            status = &mut exit => return Err(explain_failed_start(&spec, status.ok(), &recent_output)),
        };
        let ((shell_reader, shell), (iopub_reader, _), (control_reader, control)) =
            (split(shell), split(iopub), split(control));
        let kernel = Rc::new(Self {
            signer: Signer::new(&connection.key, &session),
            spec,
            pid,
            mark: spawned.mark,
            connection,
            state: watch::Sender::new(State::Idle),
            turn: Mutex::new(()),
            generation,
            cells: Cell::new(0),
            environment,
            note: RefCell::new(None),
            ending: RefCell::new(None),
            shell: Mutex::new(shell),
            control: Mutex::new(control),
            pending_request: RefCell::new(None),
            requests: Cell::new(0),
            readers: RefCell::new(Vec::new()),
            recent_output,
        });
        kernel.listen(shell_reader, Channel::Shell);
        kernel.listen(iopub_reader, Channel::Iopub);
        kernel.listen(control_reader, Channel::Control);
        spawn_local(Rc::clone(&kernel).watch_end(Rc::clone(resources), exit));
        tokio::select! {
            ready = timeout(START_TIMEOUT, kernel.nudge()) => {
                ready.map_err(|_| format!("the kernel {} does not answer", kernel.spec.name))??;
            }
            how = kernel.died() => return Err(format!("the kernel {} did not start: {how}", kernel.spec.name)),
        }
        kill_on_drop.0 = None;
        // Output printed during startup does not explain a later death.
        kernel.recent_output.borrow_mut().clear();
        Ok(kernel)
    }

    fn listen(self: &Rc<Self>, mut reader: Reader, channel: Channel) {
        let kernel = Rc::clone(self);
        self.readers.borrow_mut().push(spawn_local(async move {
            // A broken channel means that the kernel dies, which `watch_end` notices.
            while let Ok(frames) = zmtp::read_message(&mut reader).await {
                if let Some(message) = Message::parse(frames) {
                    kernel.received(ChannelMessage { channel, message }).await;
                }
            }
        }));
    }

    async fn received(&self, received: ChannelMessage) {
        if received.channel == Channel::Iopub && received.message.kind == "status" {
            let content = received.message.value();
            let state = match content.get("execution_state").and_then(Value::as_str) {
                Some("busy") => Some(State::Busy),
                Some("idle") => Some(State::Idle),
                _ => None,
            };
            if let Some(state) = state {
                self.state.send_if_modified(|current| {
                    let changes = current.death().is_none() && *current != state;
                    if changes {
                        *current = state;
                    }
                    changes
                });
            }
        }
        let pending_request = self.pending_request.borrow().as_ref().and_then(|pending_request| {
            let parent = &received.message.parent;
            let is_its = pending_request.request == *parent || pending_request.flush.as_ref() == Some(parent);
            is_its.then(|| pending_request.sender.clone())
        });
        if let Some(sender) = pending_request {
            let _ = sender.send(received).await;
        }
    }

    /// Repeats a request until replies arrive on both channels: a kernel publishes only to clients whose subscription
    /// it has received.
    async fn nudge(&self) -> Result<(), String> {
        let mut has_replied = [false; 2];
        while has_replied != [true; 2] {
            let mut answers = self.ask("kernel_info_request", &json!({})).await?;
            while has_replied != [true; 2] {
                match timeout(NUDGE_PAUSE, answers.recv()).await {
                    Ok(Some(received)) => has_replied[usize::from(received.channel == Channel::Iopub)] = true,
                    Ok(None) | Err(_) => break,
                }
            }
        }
        Ok(())
    }

    /// Sends a request on the shell channel. The receiver gets the messages that belong to it.
    pub(crate) async fn ask(
        &self,
        kind: &str,
        content: &Value,
    ) -> Result<mpsc::Receiver<ChannelMessage>, String> {
        let request = self.next_request();
        let (sender, receiver) = mpsc::channel(MESSAGE_QUEUE_LENGTH);
        self.pending_request.replace(Some(PendingRequest { request: request.clone(), flush: None, sender }));
        self.send(&request, kind, content).await?;
        Ok(receiver)
    }

    /// Sends a request that does nothing after the pending one, and returns its ID. Its messages go to the same
    /// receiver, after those that the kernel has published until then.
    pub(crate) async fn flush(&self) -> Result<String, String> {
        let request = self.next_request();
        if let Some(pending_request) = self.pending_request.borrow_mut().as_mut() {
            pending_request.flush = Some(request.clone());
        }
        self.send(&request, "kernel_info_request", &json!({})).await?;
        Ok(request)
    }

    async fn send(&self, request: &str, kind: &str, content: &Value) -> Result<(), String> {
        let message = self.signer.request(request, kind, content);
        let sent = self.shell.lock().await.write_all(&message).await;
        sent.map_err(|error| format!("speaking to the kernel {}: {error}", self.spec.name))
    }

    fn next_request(&self) -> String {
        self.requests.set(self.requests.get() + 1);
        format!("caisson-{}-{}", self.pid, self.requests.get())
    }

    /// Interrupts the code that the kernel is running.
    pub(crate) async fn interrupt(&self) {
        match self.spec.interrupt_mode {
            InterruptMode::Signal => {
                let _ = sys::signal_group(self.pid, libc::SIGINT);
            }
            InterruptMode::Message => {
                let message = self.signer.request(&self.next_request(), "interrupt_request", &json!({}));
                let _ = self.control.lock().await.write_all(&message).await;
            }
        }
    }

    /// Ends the kernel with all its processes. Returns when it is dead.
    pub(crate) async fn end(&self, why: &str) {
        self.ending.replace(Some(why.to_owned()));
        ProcessTree::with_mark(self.pid, self.mark).end(END_GRACE).await;
        self.died().await;
    }

    /// Waits until a kernel that is shutting down by itself has ended. Processes that it started keep running. Kills
    /// the kernel if it does not end in time.
    pub(crate) async fn retire(&self, why: &str) {
        self.ending.replace(Some(why.to_owned()));
        if timeout(SHUTDOWN_TIMEOUT, self.died()).await.is_err() {
            self.end(why).await;
        }
    }

    /// Waits for the kernel to die. Returns how it died.
    pub(crate) async fn died(&self) -> String {
        let mut states = self.state.subscribe();
        match states.wait_for(|state| state.death().is_some()).await {
            Ok(state) => state.death().unwrap_or_default().to_owned(),
            Err(_) => "it is gone".to_owned(),
        }
    }

    async fn watch_end(self: Rc<Self>, resources: Rc<Resources>, exit: oneshot::Receiver<WaitStatus>) {
        let status = exit.await.ok();
        let how = match self.ending.borrow().clone() {
            Some(why) => why,
            None => explain_end(status, &self.recent_output),
        };
        for reader in self.readers.borrow_mut().drain(..) {
            reader.abort();
        }
        self.pending_request.replace(None);
        let connection = self.connection.clone();
        let _ = resources.files.workers.short(move || connection.remove_files()).await;
        self.state.send_replace(State::Dead(how));
    }
}

fn exec_of(
    spec: &KernelSpec,
    connection: &Connection,
    environment: &BTreeMap<String, String>,
    generation: u64,
) -> Exec {
    let mut environment = environment.clone();
    environment.extend(spec.environment.clone());
    let name: String =
        spec.name.chars().map(|letter| if letter.is_ascii_alphanumeric() { letter } else { '-' }).collect();
    Exec {
        key: CallKey::new(format!("kernel-{name}"), u32::try_from(generation).unwrap_or(u32::MAX)),
        program: Program::Arguments(spec.command(&connection.file.to_string_lossy())),
        environment,
        directory: None,
        stdin: None,
        keep_stdin_open: false,
        terminal: None,
        timeout_ms: None,
        kill_grace_ms: 0,
    }
}

/// Reads the kernel's own output until it closes and keeps the end of it.
async fn listen(output: PolledFd, recent_output: Rc<RefCell<VecDeque<u8>>>) {
    let mut piece = [0u8; 4096];
    loop {
        let Ok(mut guard) = output.readable().await else { return };
        match guard.try_io(|fd| Ok(rustix::io::read(fd, &mut piece)?)) {
            Ok(Ok(0)) | Ok(Err(_)) => return,
            Ok(Ok(count)) => {
                let mut words = recent_output.borrow_mut();
                words.extend(piece.get(..count).unwrap_or_default());
                let excess = words.len().saturating_sub(RECENT_OUTPUT_BYTES);
                words.drain(..excess);
            }
            Err(_would_block) => {}
        }
    }
}

fn explain_failed_start(
    spec: &KernelSpec,
    status: Option<WaitStatus>,
    words: &RefCell<VecDeque<u8>>,
) -> String {
    format!("the kernel {} did not start: {}", spec.name, explain_end(status, words))
}

fn explain_end(status: Option<WaitStatus>, words: &RefCell<VecDeque<u8>>) -> String {
    let how = match status.map(|status| (status.exit_status(), status.terminating_signal())) {
        Some((Some(code), _)) => format!("it ended with exit code {code}"),
        Some((_, Some(signal))) => format!("signal {signal} ended it"),
        _ => "it ended".to_owned(),
    };
    let words: Vec<u8> = words.borrow().iter().copied().collect();
    let said = plain_text(&String::from_utf8_lossy(&words));
    let said = said.trim();
    if said.is_empty() { how } else { format!("{how}; its last words: {said}") }
}
