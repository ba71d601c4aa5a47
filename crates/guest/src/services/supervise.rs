//! The life cycle of one service, from its first use until it is stopped or fails.
//!
//! ```text
//! Stopped -> Starting -> Running -> Stopping -> Stopped
//!               |           | crash, while in use
//!               |           v
//!               |       Restarting -> Starting
//!               v
//!            Failed (the next use tries again)
//! ```

use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::{Duration, Instant};

use protocol::{CallKey, Exec, Program, ServiceSpec};
use rustix::process::WaitStatus;
use tokio::io::unix::AsyncFd;
use tokio::sync::oneshot;
use tokio::task::{spawn_local, yield_now};
use tokio::time::{sleep, timeout};

use super::probe::wait_until_ready;
use super::{Control, Phase, Service, ServiceFailure, ServiceGuard, Services};
use crate::process_mark::ProcessMark;
use crate::process_tree::ProcessTree;
use crate::resources::Resources;
use crate::spawn::{self, PolledFd, read_report};

/// Delay before the next start after a failure. Doubles with each consecutive failure.
const FIRST_BACK_OFF: Duration = Duration::from_millis(200);
const LONGEST_BACK_OFF: Duration = Duration::from_secs(10);
/// Number of consecutive crashes after which a service in use fails until its next use.
const MAX_CONSECUTIVE_CRASHES: u32 = 6;
/// A service that ran this long was healthy, so its crash counts as the first.
const HEALTHY_RUN: Duration = Duration::from_secs(30);
/// Time between SIGTERM and SIGKILL.
const GRACE: Duration = Duration::from_secs(3);
/// How long to wait until a killed process has been reaped.
const REAP_TIMEOUT: Duration = Duration::from_secs(10);
/// Bytes per read of a service's output, and the number of reads before yielding to other tasks.
const READ_BYTES: usize = 4096;
const READ_BATCH_SIZE: u32 = 16;

struct Process {
    pid: i32,
    mark: ProcessMark,
    exit: oneshot::Receiver<WaitStatus>,
    /// Whether the exit status has been taken from `exit`.
    is_reaped: bool,
}

/// Why a running service must end or restart.
enum Change {
    Ended(String),
    Stop,
    Restart,
}

/// Supervises a service until it is stopped or has failed. The caller has already set the phase to `Starting`.
pub(super) async fn run(services: Rc<Services>, service: Rc<Service>) {
    let spec = service.spec.borrow().clone();
    let last = Box::pin(keep_running(&services, &service, &spec)).await;
    if let Phase::Failed(failure) = &last {
        *service.message.borrow_mut() = Some(failure.0.clone());
    }
    service.phase.send_replace(last);
}

/// Returns the final phase.
async fn keep_running(services: &Rc<Services>, service: &Rc<Service>, spec: &ServiceSpec) -> Phase {
    loop {
        if back_off(service).await == Control::Stop {
            return Phase::Stopped;
        }
        // Held until the service ends or restarts.
        let required = match acquire_required(services, spec).await {
            Ok(required) => required,
            Err(failure) => {
                record_failure(service);
                return Phase::Failed(failure);
            }
        };
        let mut process = match start(&services.resources, service, spec).await {
            Ok(process) => process,
            Err(_) if *service.control.borrow() == Control::Stop => return Phase::Stopped,
            Err(failure) => {
                record_failure(service);
                return Phase::Failed(failure);
            }
        };
        let started = Instant::now();
        service.phase.send_replace(Phase::Running { pid: process.pid });
        let change = watch_running(service, spec, &mut process).await;
        if started.elapsed() >= HEALTHY_RUN {
            service.consecutive_failures.set(0);
        }
        match change {
            Change::Stop => {
                service.phase.send_replace(Phase::Stopping);
                end(process).await;
                return Phase::Stopped;
            }
            Change::Restart => {
                service.phase.send_replace(Phase::Restarting);
                service.control.send_replace(Control::Run);
                end(process).await;
            }
            Change::Ended(how) => {
                let last = after_crash(service, spec, &how);
                // Kill leftover processes, which would keep the service's sockets open. Daemons stay, such as
                // programs that a user opened from the menu of the window manager.
                ProcessTree::of(process.pid).end(Duration::ZERO).await;
                if let Some(last) = last {
                    return last;
                }
            }
        }
        drop(required);
    }
}

/// Records a crash. Returns the final phase if the service must not restart now.
fn after_crash(service: &Service, spec: &ServiceSpec, how: &str) -> Option<Phase> {
    service.crashes.set(service.crashes.get().saturating_add(1));
    record_failure(service);
    let message = with_last_lines(service, format!("the service `{}` has ended: {how}", spec.name));
    *service.message.borrow_mut() = Some(message.clone());
    if *service.users.borrow() == 0 {
        return Some(Phase::Stopped);
    }
    if service.consecutive_failures.get() >= MAX_CONSECUTIVE_CRASHES {
        return Some(Phase::Failed(ServiceFailure(message)));
    }
    service.phase.send_replace(Phase::Restarting);
    None
}

fn record_failure(service: &Service) {
    service.last_failure.set(Some(Instant::now()));
    service.consecutive_failures.set(service.consecutive_failures.get().saturating_add(1));
}

/// Waits after a failure, longer with each consecutive one.
async fn back_off(service: &Service) -> Control {
    let failures = service.consecutive_failures.get();
    if let Some(last) = service.last_failure.get()
        && failures > 0
    {
        let pause = FIRST_BACK_OFF.saturating_mul(1 << (failures - 1).min(16)).min(LONGEST_BACK_OFF);
        let mut controls = service.control.subscribe();
        tokio::select! {
            () = sleep(pause.saturating_sub(last.elapsed())) => {}
            _ = controls.wait_for(|control| *control == Control::Stop) => {}
        }
    }
    *service.control.borrow()
}

async fn acquire_required(
    services: &Rc<Services>,
    spec: &ServiceSpec,
) -> Result<Vec<ServiceGuard>, ServiceFailure> {
    let mut required = Vec::with_capacity(spec.requires.len());
    for other in &spec.requires {
        required.push(Box::pin(services.acquire(other)).await?);
    }
    Ok(required)
}

/// Starts the process and waits until the service is ready.
async fn start(
    resources: &Resources,
    service: &Rc<Service>,
    spec: &ServiceSpec,
) -> Result<Process, ServiceFailure> {
    let failed = |why: String| ServiceFailure(format!("starting the service `{}`: {why}", spec.name));
    let exec = exec_of(spec, service.starts.get().saturating_add(1));
    let missing = spec.program.first().filter(|name| !spawn::is_installed(name, &spec.environment));
    if let Some(missing) = missing {
        return Err(failed(format!("the image of this sandbox has no program `{missing}`")));
    }
    service.phase.send_replace(Phase::Starting);
    service.starts.set(service.starts.get().saturating_add(1));
    service.log.borrow_mut().mark_start();
    let spawned = resources.spawner.spawn(&exec).map_err(|why| failed(why.message))?;
    let exit = resources.reaper.expect(spawned.pid);
    let pid = spawned.pid.as_raw_nonzero().get();
    let mut process = Process { pid, mark: spawned.mark, exit, is_reaped: false };
    for (_, fd) in spawned.outputs {
        spawn_local(pump(Rc::clone(service), fd));
    }
    let mut controls = service.control.subscribe();
    let becomes_ready = async {
        if let Some(failure) = read_report(&spawned.report).await {
            return Err(spawn::explain(&exec, &resources.spawner.directory, &failure).message);
        }
        wait_until_ready(service, &spec.ready).await;
        Ok(())
    };
    let limit = Duration::from_millis(spec.start_timeout_ms);
    let outcome = tokio::select! {
        biased;
        ready = timeout(limit, becomes_ready) => match ready {
            Ok(Ok(())) => return Ok(process),
            Ok(Err(why)) => why,
            Err(_) => format!("it was not ready after {} s", limit.as_secs_f32()),
        },
        status = &mut process.exit => {
            drain(service).await;
            process.is_reaped = true;
            format!("it ended before it was ready: {}", describe(status.ok()))
        }
        _ = controls.wait_for(|control| *control == Control::Stop) => "it was stopped".to_owned(),
    };
    end(process).await;
    Err(ServiceFailure(with_last_lines(service, failed(outcome).0)))
}

fn exec_of(spec: &ServiceSpec, start: u32) -> Exec {
    Exec {
        key: CallKey::new(format!("service-{}", spec.name), start),
        program: Program::Arguments(spec.program.clone()),
        environment: spec.environment.clone(),
        directory: spec.directory.clone(),
        stdin: None,
        keep_stdin_open: false,
        terminal: None,
        timeout_ms: None,
        kill_grace_ms: 0,
    }
}

async fn watch_running(service: &Service, spec: &ServiceSpec, process: &mut Process) -> Change {
    let mut controls = service.control.subscribe();
    tokio::select! {
        biased;
        status = &mut process.exit => {
            drain(service).await;
            Change::Ended(describe(status.ok()))
        }
        control = controls.wait_for(|control| *control != Control::Run) => match control.as_deref() {
            Ok(Control::Restart) => Change::Restart,
            _ => Change::Stop,
        },
        () = idle(service, spec.idle_ms) => Change::Stop,
    }
}

/// Returns when the service has been unused for its idle time.
async fn idle(service: &Service, idle_ms: Option<u64>) {
    let Some(idle_ms) = idle_ms else { return std::future::pending().await };
    let (mut users, mut touched) = (service.users.subscribe(), service.touched.subscribe());
    loop {
        let _ = users.wait_for(|users| *users == 0).await;
        tokio::select! {
            biased;
            _ = users.wait_for(|users| *users > 0) => {}
            _ = touched.changed() => {}
            () = sleep(Duration::from_millis(idle_ms)) => return,
        }
    }
}

async fn end(process: Process) {
    ProcessTree::with_mark(process.pid, process.mark).end(GRACE).await;
    if !process.is_reaped {
        let _ = timeout(REAP_TIMEOUT, process.exit).await;
    }
}

/// Lets the pumps read what was printed before the end.
async fn drain(service: &Service) {
    let mut before = u64::MAX;
    while service.log.borrow().total() != before {
        before = service.log.borrow().total();
        yield_now().await;
    }
}

fn with_last_lines(service: &Service, message: String) -> String {
    let lines = service.log.borrow().last_lines();
    if lines.is_empty() { message } else { format!("{message}; it printed:\n{lines}") }
}

fn describe(status: Option<WaitStatus>) -> String {
    let code = status.and_then(WaitStatus::exit_status).map(|code| format!("exit code {code}"));
    let signal = || status.and_then(WaitStatus::terminating_signal).map(|signal| format!("signal {signal}"));
    code.or_else(signal).unwrap_or_else(|| "for a reason unknown".to_owned())
}

/// Reads one stream of a service until its last writer has closed it.
async fn pump(service: Rc<Service>, fd: PolledFd) {
    let mut buffer = vec![0u8; READ_BYTES];
    let mut reads = 0;
    loop {
        match read(&fd, &mut buffer).await {
            Ok(0) | Err(_) => return,
            Ok(count) => {
                let mut log = service.log.borrow_mut();
                log.append(buffer.get(..count).unwrap_or_default());
                service.printed.send_replace(log.total());
            }
        }
        reads += 1;
        if reads % READ_BATCH_SIZE == 0 {
            yield_now().await;
        }
    }
}

async fn read(fd: &AsyncFd<OwnedFd>, buffer: &mut [u8]) -> io::Result<usize> {
    loop {
        let mut guard = fd.readable().await?;
        match guard.try_io(|fd| Ok(rustix::io::read(fd, &mut *buffer)?)) {
            Ok(Err(error)) if error.kind() == io::ErrorKind::Interrupted => {}
            Ok(done) => return done,
            Err(_would_block) => {}
        }
    }
}
