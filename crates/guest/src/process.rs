//! Runs one process call from fork to result: output, timeout, kill and end.

use std::cell::RefCell;
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::{Duration, Instant};

use protocol::{Exec, ExecEnd, OutputStream};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::WaitStatus;
use tokio::io::unix::AsyncFd;
use tokio::sync::oneshot;
use tokio::task::{JoinHandle, spawn_local, yield_now};

use crate::active_time;
use crate::input::Input;
use crate::journal::{Phase, ProcessCall, wait_for_followers};
use crate::process_mark::ProcessMark;
use crate::process_tree::ProcessTree;
use crate::resources::Resources;
use crate::spawn::{self, PolledFd, Spawned, read_report};
use crate::sys::Terminal;

/// How many reads to do before yielding to other tasks.
const READ_BATCH_SIZE: u32 = 16;
/// Bytes per read. A read spans several chunks if a process prints fast.
const READ_BYTES: usize = 128 * 1024;
/// How long to keep reading from a terminal after the process has ended, if another process has the terminal open.
const TERMINAL_DRAIN: Duration = Duration::from_millis(500);
/// More than the kernel buffers of a terminal's output. The limit ensures that a process that keeps reopening the
/// terminal cannot prolong the drain forever.
const TERMINAL_BUFFERS: usize = 1024 * 1024;
/// How long output waits for space on the host's disk, and how often to check.
const DISK_SPACE_TIMEOUT: Duration = Duration::from_secs(120);
const DISK_SPACE_POLL_INTERVAL: Duration = Duration::from_millis(100);
/// How long to wait until a killed process has been reaped.
const REAP_TIMEOUT: Duration = Duration::from_secs(10);

thread_local! {
    /// One buffer for all calls. No code awaits between filling and emptying it.
    static BUFFER: RefCell<Vec<u8>> = RefCell::new(vec![0; READ_BYTES]);
}

/// Starts a process call whose key is new. Returns immediately; the call runs in a separate task.
pub(crate) fn start(resources: &Rc<Resources>, mut exec: Exec) -> Rc<ProcessCall> {
    let started = Instant::now();
    let stdin = exec.stdin.take();
    let spawned =
        resources.spawner.spawn(&Exec { stdin: stdin.as_ref().map(|_| String::new()), ..exec.clone() });
    let spawned = match spawned {
        Ok(spawned) => spawned,
        Err(why) => {
            let call = resources.journal.add_process(exec, Input::default(), None);
            call.finish(None, ExecEnd::NotStarted(why), started.elapsed(), resources.disk_free());
            return call;
        }
    };
    let exit = resources.reaper.expect(spawned.pid);
    let Spawned { pid, mark, input, outputs, terminal, report } = spawned;
    let has_terminal = if terminal.is_some() { Terminal::Controlling } else { Terminal::None };
    let input = input.map_or_else(Input::default, |writer| Input::new(writer, has_terminal));
    let call = resources.journal.add_process(exec, input, terminal);
    let running = Running { resources: Rc::clone(resources), call: Rc::clone(&call), mark, started };
    spawn_local(running.run(pid.as_raw_nonzero().get(), outputs, report, exit, stdin));
    call
}

struct Running {
    resources: Rc<Resources>,
    call: Rc<ProcessCall>,
    mark: ProcessMark,
    started: Instant,
}

/// The event that happened first.
enum FirstEvent {
    Exit(Option<WaitStatus>),
    TimedOut,
    Killed,
}

impl Running {
    async fn run(
        self,
        pid: i32,
        outputs: Vec<(OutputStream, PolledFd)>,
        report: AsyncFd<OwnedFd>,
        exit: oneshot::Receiver<WaitStatus>,
        stdin: Option<String>,
    ) {
        let running = self.resources.journal.running();
        running.set(running.get() + 1);
        let pumps: Vec<_> = outputs
            .iter()
            .map(|(stream, fd)| spawn_local(pump(Rc::clone(&self.call), *stream, Rc::clone(fd))))
            .collect();
        let (pid, end) = self.live(pid, &report, exit, stdin).await;
        self.drain(&outputs, pumps).await;
        self.call.finish(pid, end, self.started.elapsed(), self.resources.disk_free());
        self.call.input.abandon();
        self.call.terminal.borrow_mut().take();
        let running = self.resources.journal.running();
        running.set(running.get().saturating_sub(1));
    }

    /// Runs from the fork to the end of the main process.
    async fn live(
        &self,
        pid: i32,
        report: &AsyncFd<OwnedFd>,
        mut exit: oneshot::Receiver<WaitStatus>,
        stdin: Option<String>,
    ) -> (Option<i32>, ExecEnd) {
        let timeout = self.call.exec.timeout_ms.map(Duration::from_millis);
        let started = self.started;
        let expiry = async move {
            match timeout {
                Some(timeout) => active_time::sleep(timeout.saturating_sub(started.elapsed())).await,
                None => std::future::pending().await,
            }
        };
        tokio::pin!(expiry);
        let mut kill_requested = self.call.kill_requested.subscribe();
        let kill = async move { drop(kill_requested.wait_for(|requested| *requested).await) };
        tokio::pin!(kill);
        // A hostile process may stop the child before its program runs, so also wait for the other events here.
        let mut first = tokio::select! {
            biased;
            failure = read_report(report) => match failure {
                Some(failure) => {
                    let _ = exit.await;
                    let why = spawn::explain(&self.call.exec, &self.resources.spawner.directory, &failure);
                    return (None, ExecEnd::NotStarted(why));
                }
                None => {
                    self.call.phase.send_replace(Phase::Running { pid });
                    self.feed(stdin);
                    None
                }
            },
            status = &mut exit => Some(FirstEvent::Exit(status.ok())),
            () = &mut expiry => Some(FirstEvent::TimedOut),
            () = &mut kill => Some(FirstEvent::Killed),
        };
        if first.is_none() {
            first = Some(tokio::select! {
                biased;
                status = &mut exit => FirstEvent::Exit(status.ok()),
                () = &mut expiry => FirstEvent::TimedOut,
                () = &mut kill => FirstEvent::Killed,
            });
        }
        let end = match first {
            Some(FirstEvent::TimedOut) => ExecEnd::TimedOut,
            Some(FirstEvent::Killed) => ExecEnd::Killed,
            Some(FirstEvent::Exit(status)) => return (Some(pid), describe(status)),
            None => ExecEnd::Killed,
        };
        ProcessTree::with_mark(pid, self.mark).end(self.call.grace()).await;
        let _ = tokio::time::timeout(REAP_TIMEOUT, exit).await;
        (Some(pid), end)
    }

    /// Writes the initial standard input in a separate task. Closes the input afterwards unless it stays open.
    fn feed(&self, stdin: Option<String>) {
        let call = Rc::clone(&self.call);
        if stdin.is_none() && call.exec.keep_stdin_open {
            return;
        }
        spawn_local(async move {
            let mut ended = call.phase.subscribe();
            let write = async {
                if let Some(text) = stdin {
                    let _ = call.input.write(text.as_bytes()).await;
                }
                if !call.exec.keep_stdin_open {
                    call.input.close().await;
                }
            };
            tokio::select! {
                () = write => {}
                _ = ended.wait_for(|phase| phase.outcome().is_some()) => {}
            }
            if call.phase.borrow().outcome().is_some() {
                call.input.abandon();
            }
        });
    }

    /// Reads what the main process printed before its end, but no more: a background process may continue to print.
    async fn drain(&self, outputs: &[(OutputStream, PolledFd)], mut pumps: Vec<JoinHandle<()>>) {
        for (stream, fd) in outputs {
            if *stream == OutputStream::Terminal {
                if !is_hung_up(fd.get_ref()) {
                    for pump in &mut pumps {
                        let _ = tokio::time::timeout(TERMINAL_DRAIN, pump).await;
                    }
                }
                self.drain_hung_up(fd.get_ref()).await;
                continue;
            }
            let mut left = rustix::io::ioctl_fionread(fd.get_ref()).unwrap_or(0);
            while left > 0 {
                wait_for_space(&self.call).await;
                match read_some(
                    &self.call,
                    *stream,
                    fd.get_ref(),
                    usize::try_from(left).unwrap_or(usize::MAX),
                ) {
                    Ok(0) | Err(_) => break,
                    Ok(count) => left = left.saturating_sub(count as u64),
                }
            }
        }
        wait_for_space(&self.call).await;
    }

    /// Reads a terminal that no process has open until its end. The kernel delivers the output with a delay, but
    /// reports the end only after all of it.
    async fn drain_hung_up(&self, terminal: &OwnedFd) {
        let mut left = TERMINAL_BUFFERS;
        while left > 0 && is_hung_up(terminal) {
            wait_for_space(&self.call).await;
            match read_some(&self.call, OutputStream::Terminal, terminal, left) {
                Ok(0) => return,
                Ok(count) => left = left.saturating_sub(count),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return,
            }
        }
    }
}

/// Whether no process has the slave side of a terminal open.
fn is_hung_up(terminal: &OwnedFd) -> bool {
    let mut polled = [PollFd::new(terminal, PollFlags::empty())];
    let now = Timespec::default();
    poll(&mut polled, Some(&now)).is_ok() && polled.iter().any(|fd| fd.revents().contains(PollFlags::HUP))
}

/// Waits while the host's disk is full. Nothing is read meanwhile, so the process blocks on its full pipe and no
/// output is lost. The wait is limited, because a call must end eventually.
pub(crate) async fn wait_for_space(call: &ProcessCall) {
    let deadline = Instant::now() + DISK_SPACE_TIMEOUT;
    while call.store.borrow_mut().is_waiting_for_space() && Instant::now() < deadline {
        tokio::time::sleep(DISK_SPACE_POLL_INTERVAL).await;
    }
}

fn describe(status: Option<WaitStatus>) -> ExecEnd {
    let code = status.and_then(WaitStatus::exit_status).map(ExecEnd::Code);
    let signal = || status.and_then(WaitStatus::terminating_signal).map(ExecEnd::Signal);
    code.or_else(signal).unwrap_or(ExecEnd::Killed)
}

/// Reads a stream of a call until its last writer has closed it. After the end of the call, discards the output, so
/// that a background process neither dies from SIGPIPE nor blocks on a full pipe.
async fn pump(call: Rc<ProcessCall>, stream: OutputStream, fd: PolledFd) {
    let mut reads = 0;
    loop {
        wait_for_space(&call).await;
        wait_for_followers(&call).await;
        let Ok(mut guard) = fd.readable().await else { return };
        match guard.try_io(|fd| read_some(&call, stream, fd.get_ref(), usize::MAX)) {
            Ok(Ok(0)) => return,
            Ok(Err(error)) if error.kind() == io::ErrorKind::Interrupted => {}
            // Reading from a terminal whose slave side is closed fails.
            Ok(Err(_)) => return,
            Ok(Ok(_)) | Err(_) => {}
        }
        reads += 1;
        if reads % READ_BATCH_SIZE == 0 {
            yield_now().await;
        }
    }
}

fn read_some(call: &ProcessCall, stream: OutputStream, fd: &OwnedFd, most: usize) -> io::Result<usize> {
    BUFFER.with_borrow_mut(|buffer| {
        let most = most.min(buffer.len());
        let Some(room) = buffer.get_mut(..most) else { return Ok(0) };
        let count = rustix::io::read(fd, &mut *room)?;
        let has_ended = call.phase.borrow().outcome().is_some();
        if count > 0 && !has_ended {
            let mut store = call.store.borrow_mut();
            store.append(stream, room.get(..count).unwrap_or_default());
            call.printed.send_replace(store.next_sequence());
        }
        Ok(count)
    })
}
