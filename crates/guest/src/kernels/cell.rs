//! Runs one cell in a kernel as a call of the journal, with output, timeout, kill and result.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::{Duration, Instant};

use protocol::{
    Cell, Exec, ExecEnd, KernelRun, NotStarted, NotStartedCause, OutputStream, Program, plain_text,
};
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};
use tokio::task::spawn_local;

use crate::active_time;
use crate::input::Input;
use crate::journal::{Phase, ProcessCall};
use crate::kernels::connect::Channel;
use crate::kernels::kernel::{ChannelMessage, Kernel, State};
use crate::kernels::notebook::CellRecord;
use crate::kernels::spec::{self, KernelSpec};
use crate::kernels::wire::Message;
use crate::kernels::{Kernels, displays, text};
use crate::process;

/// How long an idle kernel may take to start executing a cell before the cell's time limit starts anyway. The host
/// waits 30 s longer than the limit.
const EXECUTION_START_TIMEOUT: Duration = Duration::from_secs(10);
/// How long to wait for the kernel's idle status after its reply.
const IDLE_STATUS_TIMEOUT: Duration = Duration::from_secs(5);
/// Kernels other than ipykernel, such as Deno's, may publish results and output after the idle status. They get another
/// request, and what they publish until they are idle again belongs to the cell. How long that may take: the cell of
/// another client may come first.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(2);
/// How long to keep listening to such a kernel after that.
const LATE_OUTPUT_WAIT: Duration = Duration::from_millis(40);
/// How often to submit a cell if the kernel ends before it receives the cell.
const MAX_SUBMISSIONS: u32 = 2;
/// The note of a cell that ran without a kernel.
const FRESH_PROCESS: &str =
    "ran in a fresh process: this image has no notebook kernel, so variables do not last from step to step";

/// Starts a cell whose key is new. Returns immediately; the cell runs in a separate task.
pub(crate) fn start(kernels: &Rc<Kernels>, exec: Exec, cell: &Cell) -> Rc<ProcessCall> {
    let resources = &kernels.resources;
    let home = exec.environment.get("HOME").map_or("/tmp", String::as_str);
    match spec::choose(&cell.kernel, spec::find_all(home.as_ref())) {
        Ok(spec) => {
            let environment = exec.environment.clone();
            let call = resources.journal.add_process(exec, Input::default(), None);
            let running = RunningCell {
                kernels: Rc::clone(kernels),
                call: Rc::clone(&call),
                code: cell.code.clone(),
                started: Instant::now(),
                has_started: watch::Sender::new(false),
                record: RefCell::new(CellRecord::new(&call.exec.key, &cell.code)),
            };
            spawn_local(running.run(spec, environment));
            call
        }
        Err(_) if cell.otherwise.is_some() => {
            let program = Program::Arguments(cell.otherwise.clone().unwrap_or_default());
            let call = process::start(resources, Exec { program, stdin: Some(cell.code.clone()), ..exec });
            call.note.replace(Some(FRESH_PROCESS.to_owned()));
            call
        }
        Err(why) => {
            let call = resources.journal.add_process(exec, Input::default(), None);
            call.finish(
                None,
                ExecEnd::NotStarted(NotStarted::new(NotStartedCause::Other, why)),
                Duration::ZERO,
                resources.disk_free(),
            );
            call
        }
    }
}

struct RunningCell {
    kernels: Rc<Kernels>,
    call: Rc<ProcessCall>,
    code: String,
    started: Instant,
    /// Whether the kernel has started executing the cell.
    has_started: watch::Sender<bool>,
    record: RefCell<CellRecord>,
}

/// Why the guest stops waiting for a cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StopReason {
    TimedOut,
    Killed,
}

impl StopReason {
    fn end(self) -> ExecEnd {
        match self {
            Self::TimedOut => ExecEnd::TimedOut,
            Self::Killed => ExecEnd::Killed,
        }
    }

    /// The result of a cell that had not started.
    fn attempt(self) -> Attempt {
        Attempt::Ended { pid: None, end: self.end() }
    }
}

/// The result of submitting a cell to a kernel.
enum Attempt {
    /// The cell has ended in some way.
    Ended { pid: Option<i32>, end: ExecEnd },
    /// The kernel ended before it received the cell.
    NotSubmitted { pid: i32, why: String },
}

/// What the kernel has reported about the end of a cell so far.
#[derive(Debug, Default)]
struct Progress {
    replied: Option<ExecEnd>,
    is_idle: bool,
    /// The code asked the kernel to exit.
    exits: bool,
    flush: Flush,
}

/// The request that makes a kernel publish what belongs to a cell.
#[derive(Debug, Default)]
enum Flush {
    #[default]
    NotSent,
    /// Its ID.
    Sent(String),
    Done,
}

impl RunningCell {
    async fn run(self, spec: KernelSpec, environment: BTreeMap<String, String>) {
        let running = self.kernels.resources.journal.running();
        running.set(running.get() + 1);
        let (pid, end) = self.run_with_retries(&spec, environment).await;
        self.write_notebook(&spec).await;
        process::wait_for_space(&self.call).await;
        self.call.finish(pid, end, self.started.elapsed(), self.kernels.resources.disk_free());
        let running = self.kernels.resources.journal.running();
        running.set(running.get().saturating_sub(1));
    }

    async fn run_with_retries(
        &self,
        spec: &KernelSpec,
        environment: BTreeMap<String, String>,
    ) -> (Option<i32>, ExecEnd) {
        let environment = kernel_environment(environment, &self.call.exec.key.to_string(), &spec.name);
        let mut tries = 0;
        loop {
            tries += 1;
            match self.run_in_kernel(spec, &environment).await {
                Attempt::Ended { pid, end } => return (pid, end),
                Attempt::NotSubmitted { pid, why } if tries == MAX_SUBMISSIONS => {
                    return (Some(pid), ExecEnd::KernelDied(why));
                }
                Attempt::NotSubmitted { .. } => {}
            }
        }
    }

    /// Runs the cell once. Starts the kernel if it is not running.
    async fn run_in_kernel(&self, spec: &KernelSpec, environment: &BTreeMap<String, String>) -> Attempt {
        let obtained = tokio::select! {
            biased;
            stop_requested = self.stop_requested() => return stop_requested.attempt(),
            obtained = self.kernels.get_or_start(spec, environment.clone()) => obtained,
        };
        let (kernel, note) = match obtained {
            Ok(obtained) => obtained,
            Err(why) => {
                return Attempt::Ended {
                    pid: None,
                    end: ExecEnd::NotStarted(NotStarted::new(NotStartedCause::Other, why)),
                };
            }
        };
        if let Some(note) = note {
            self.add_note(&note);
        }
        let mut states = kernel.state.subscribe();
        let _turn = tokio::select! {
            biased;
            stop_requested = self.stop_requested() => return stop_requested.attempt(),
            turn = async {
                let turn = kernel.turn.lock().await;
                // A user may be running code from a notebook. A cell of the agent does not interrupt it.
                let _ = states.wait_for(|state| *state != State::Busy).await;
                turn
            } => turn,
        };
        self.call.phase.send_replace(Phase::Running { pid: kernel.pid });
        match self.execute(&kernel).await {
            Ok(end) => {
                self.call.kernel.replace(Some(KernelRun {
                    name: kernel.spec.name.clone(),
                    language: kernel.spec.language.clone(),
                    life: kernel.generation,
                    is_alive: kernel.state.borrow().death().is_none(),
                }));
                Attempt::Ended { pid: Some(kernel.pid), end }
            }
            // The kernel is shutting down because of earlier code. Retry once it has ended.
            Err(why) => tokio::select! {
                stop_requested = self.stop_requested() => stop_requested.attempt(),
                _ = kernel.died() => Attempt::NotSubmitted { pid: kernel.pid, why },
            },
        }
    }

    /// The rest of the cell's time limit; `None` if it has none.
    fn time_left(&self) -> Option<Duration> {
        let limit = self.call.exec.timeout_ms.map(Duration::from_millis);
        limit.map(|limit| limit.saturating_sub(self.started.elapsed()))
    }

    /// Returns when the cell's time limit expires or a client kills it.
    async fn stop_requested(&self) -> StopReason {
        let left = self.time_left();
        self.stop_requested_or(sleep_or_wait_forever(left)).await
    }

    /// Like [`Self::stop_requested`], for a cell that was sent to its kernel. The time until the kernel starts executing
    /// the cell does not count.
    async fn stop_requested_in_kernel(&self) -> StopReason {
        let left = self.time_left();
        let mut has_started = self.has_started.subscribe();
        let expiry = async {
            let _ = tokio::time::timeout(
                EXECUTION_START_TIMEOUT,
                has_started.wait_for(|has_started| *has_started),
            )
            .await;
            sleep_or_wait_forever(left).await;
        };
        self.stop_requested_or(expiry).await
    }

    async fn stop_requested_or(&self, expiry: impl Future<Output = ()>) -> StopReason {
        let mut wish = self.call.kill_requested.subscribe();
        tokio::select! {
            () = expiry => StopReason::TimedOut,
            _ = wish.wait_for(|wish| *wish) => StopReason::Killed,
        }
    }

    fn add_note(&self, note: &str) {
        let mut notes = self.call.note.borrow_mut();
        *notes = Some(notes.take().map_or_else(|| note.to_owned(), |before| format!("{before}; {note}")));
    }

    /// Runs the cell in the kernel. An error means that the kernel did not receive the cell.
    async fn execute(&self, kernel: &Rc<Kernel>) -> Result<ExecEnd, String> {
        if let Some(how) = kernel.state.borrow().death() {
            return Err(how.to_owned());
        }
        kernel.cells.set(kernel.cells.get() + 1);
        let request = json!({
            "code": self.code,
            "silent": false,
            "store_history": true,
            "user_expressions": {},
            "allow_stdin": false,
            "stop_on_error": false,
        });
        let mut answers = kernel.ask("execute_request", &request).await?;
        let mut progress = Progress::default();
        let end = tokio::select! {
            biased;
            end = self.listen(kernel, &mut answers, &mut progress) => end,
            stop_requested = self.stop_requested_in_kernel() => {
                self.stop(kernel, &mut answers, &mut progress).await;
                stop_requested.end()
            }
        };
        if progress.exits {
            // No other cell may get a kernel that is shutting down.
            kernel.retire("the code ended it with exit()").await;
            self.add_note("the code ended the kernel with exit(): its variables are lost");
        }
        Ok(end)
    }

    /// Processes the kernel's messages until the cell has ended.
    async fn listen(
        &self,
        kernel: &Kernel,
        answers: &mut mpsc::Receiver<ChannelMessage>,
        progress: &mut Progress,
    ) -> ExecEnd {
        loop {
            let is_over = progress.replied.is_some() && progress.is_idle;
            if is_over && !kernel.spec.speaks_ipc() && matches!(progress.flush, Flush::NotSent) {
                progress.flush = kernel.flush().await.map_or(Flush::Done, Flush::Sent);
            }
            let patience = match (&progress.replied, progress.is_idle, &progress.flush) {
                (None, _, _) => Duration::MAX,
                (Some(_), false, _) => IDLE_STATUS_TIMEOUT,
                (Some(_), true, _) if kernel.spec.speaks_ipc() => Duration::ZERO,
                (Some(_), true, Flush::Sent(_)) => FLUSH_TIMEOUT,
                (Some(_), true, Flush::NotSent | Flush::Done) => LATE_OUTPUT_WAIT,
            };
            if patience.is_zero() {
                return progress.replied.take().unwrap_or(ExecEnd::Code(0));
            }
            let received = match tokio::time::timeout(patience, answers.recv()).await {
                Ok(received) => received,
                Err(_) => return progress.replied.take().unwrap_or(ExecEnd::Code(0)),
            };
            match received {
                Some(received) => self.take(received, progress).await,
                // Only the death of the kernel closes the channel.
                None => return ExecEnd::KernelDied(kernel.died().await),
            }
        }
    }

    /// Interrupts the kernel. Kills it if it does not react.
    async fn stop(
        &self,
        kernel: &Rc<Kernel>,
        answers: &mut mpsc::Receiver<ChannelMessage>,
        progress: &mut Progress,
    ) {
        kernel.interrupt().await;
        // Whether the kernel obeys must not depend on what else it is asked.
        progress.flush = Flush::Done;
        let grace = self.call.grace();
        match tokio::time::timeout(grace, self.listen(kernel, answers, progress)).await {
            Ok(ExecEnd::KernelDied(_)) => {
                self.add_note("the kernel did not survive the interrupt: its variables are lost");
            }
            Ok(_) => self.add_note("the kernel was interrupted and keeps its variables"),
            Err(_) => {
                kernel.end("it was ended because it did not obey an interrupt").await;
                self.add_note("the kernel did not obey an interrupt and was ended: its variables are lost");
            }
        }
    }

    async fn take(&self, received: ChannelMessage, progress: &mut Progress) {
        // The first message that a kernel publishes for a request is its busy status.
        if received.channel == Channel::Iopub {
            self.has_started.send_replace(true);
        }
        let message = received.message;
        if matches!(&progress.flush, Flush::Sent(request) if *request == message.parent) {
            if received.channel == Channel::Iopub && execution_state(&message).as_deref() == Some("idle") {
                progress.flush = Flush::Done;
            }
            return;
        }
        match (received.channel, message.kind.as_str()) {
            (Channel::Shell, "execute_reply") => {
                let reply = message.value();
                progress.exits = asks_to_exit(&reply);
                progress.replied = Some(end_of(&reply));
            }
            (Channel::Iopub, "status") => {
                progress.is_idle = execution_state(&message).as_deref() == Some("idle");
            }
            (Channel::Iopub, "stream") => {
                let Some(printed) = text::printed(&message.content) else { return };
                let stream = if printed.is_error { OutputStream::Stderr } else { OutputStream::Stdout };
                for piece in printed.pieces {
                    self.print(stream, piece.as_bytes()).await;
                    self.record.borrow_mut().print(stream, &piece);
                }
            }
            (Channel::Iopub, "execute_input") => {
                let count = message.value().get("execution_count").and_then(Value::as_u64);
                self.record.borrow_mut().execution_count = count;
            }
            (Channel::Iopub, kind) => {
                let Some(display) = displays::display(kind, &message.content) else { return };
                let (display, record) = displays::bounded(display);
                self.print(OutputStream::Display, &record).await;
                self.record.borrow_mut().show(&display);
            }
            _ => {}
        }
    }

    async fn print(&self, stream: OutputStream, bytes: &[u8]) {
        process::wait_for_space(&self.call).await;
        let mut store = self.call.store.borrow_mut();
        store.append(stream, bytes);
        self.call.printed.send_replace(store.next_sequence());
    }

    async fn write_notebook(&self, spec: &KernelSpec) {
        let record = std::mem::take(&mut *self.record.borrow_mut());
        if let Err(why) = self.kernels.notebooks.append(&self.kernels.resources, spec, record).await {
            self.add_note(&format!("the notebook could not be written: {why}"));
        }
    }
}

/// Sleeps for `time`, or forever if it is `None`.
async fn sleep_or_wait_forever(time: Option<Duration>) {
    match time {
        Some(time) => active_time::sleep(time).await,
        None => std::future::pending().await,
    }
}

/// The state that a status message reports.
fn execution_state(message: &Message) -> Option<String> {
    message.value().get("execution_state").and_then(Value::as_str).map(str::to_owned)
}

/// Whether the code of a cell has asked its kernel to exit, as `exit()` does.
fn asks_to_exit(reply: &Value) -> bool {
    let payload = reply.get("payload").and_then(Value::as_array);
    payload.into_iter().flatten().any(|part| {
        part.get("source").and_then(Value::as_str) == Some("ask_exit")
            && part.get("keepkernel").and_then(Value::as_bool) != Some(true)
    })
}

/// Converts the kernel's reply to the result of a cell.
fn end_of(reply: &Value) -> ExecEnd {
    let said = |name: &str| reply.get(name).and_then(Value::as_str).unwrap_or_default();
    match said("status") {
        "ok" => ExecEnd::Code(0),
        "aborted" | "abort" => {
            ExecEnd::Raised { name: "Aborted".into(), message: "the kernel did not run the cell".into() }
        }
        _ => ExecEnd::Raised { name: plain_text(said("ename")), message: plain_text(said("evalue")) },
    }
}

/// The environment for a kernel, without the call's key in proxy URLs: the kernel outlives the call, so its outgoing
/// connections do not belong to that call alone.
fn kernel_environment(
    mut environment: BTreeMap<String, String>,
    key: &str,
    kernel: &str,
) -> BTreeMap<String, String> {
    for value in environment.values_mut() {
        *value = value.replace(&format!("//{key}:"), &format!("//kernel-{kernel}.1:"));
    }
    environment
}
