//! Unsafe system calls: fork and exec, filesystem IDs of a thread, the signal descriptor.
//!
//! Between fork and exec, the child touches only memory prepared before the fork and makes only raw system calls,
//! because other threads of the guest may have held locks at the time of the fork.
#![allow(unsafe_code)]

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;

use rustix::process::Pid;
use tokio::io::unix::AsyncFd;

use crate::process_mark::ProcessMark;

/// The user that all programs in the sandbox run as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Agent {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
}

/// Whether a child gets a controlling terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Terminal {
    /// Standard input is a terminal and becomes the controlling terminal.
    Controlling,
    /// The child has pipes.
    None,
}

/// The step that failed in a child before its program ran.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Setting up file descriptors, session or user.
    Setup,
    /// Changing to the working directory.
    Directory,
    /// Executing the program.
    Program,
}

/// Why a child could not start its program.
#[derive(Debug)]
pub(crate) struct StartFailure {
    pub(crate) stage: Stage,
    pub(crate) error: io::Error,
}

/// Size of a failure report on the report pipe.
pub(crate) const REPORT_BYTES: usize = 5;

/// Decodes a report. An empty one means that the program runs.
pub(crate) fn decode_report(report: &[u8]) -> Option<StartFailure> {
    let [stage, errno @ ..] = report else { return None };
    let stage = match stage {
        1 => Stage::Setup,
        2 => Stage::Directory,
        _ => Stage::Program,
    };
    let errno = errno.try_into().map_or(0, i32::from_ne_bytes);
    Some(StartFailure { stage, error: io::Error::from_raw_os_error(errno) })
}

/// Everything that a child needs, prepared before the fork.
pub(crate) struct ChildPlan {
    /// Paths to try, in order.
    pub(crate) programs: Vec<CString>,
    /// Starts with the program's own name.
    pub(crate) arguments: Vec<CString>,
    /// Entries of the form `NAME=value`.
    pub(crate) environment: Vec<CString>,
    pub(crate) directory: CString,
    /// Whether descriptor 0 becomes the controlling terminal.
    pub(crate) terminal: Terminal,
    /// The user to switch to, if any.
    pub(crate) agent: Option<Agent>,
    /// Set on the child and inherited by all its descendants.
    pub(crate) mark: ProcessMark,
}

/// Forks a child that executes the plan. The child writes a failure to `report`, which closes when the program runs.
/// Never waits for the child, because a hostile process may stop it at any time.
///
/// All descriptors must be above 2.
pub(crate) fn fork_and_exec(plan: &ChildPlan, stdio: [RawFd; 3], report: RawFd) -> io::Result<Pid> {
    let arguments = pointers(&plan.arguments);
    let environment = pointers(&plan.environment);
    let prepared =
        Prepared { plan, arguments: arguments.as_ptr(), environment: environment.as_ptr(), stdio, report };
    // SAFETY: the fork shares no memory; the child runs only `child`, which never returns.
    let pid = unsafe {
        libc::syscall(libc::SYS_clone, libc::c_long::from(libc::SIGCHLD), 0usize, 0usize, 0usize, 0usize)
    };
    match pid {
        0 => child(&prepared),
        -1 => Err(io::Error::last_os_error()),
        pid => i32::try_from(pid)
            .ok()
            .and_then(Pid::from_raw)
            .ok_or_else(|| io::Error::from_raw_os_error(libc::ESRCH)),
    }
}

fn pointers(strings: &[CString]) -> Vec<*const libc::c_char> {
    strings.iter().map(|string| string.as_ptr()).chain([ptr::null()]).collect()
}

struct Prepared<'a> {
    plan: &'a ChildPlan,
    arguments: *const *const libc::c_char,
    environment: *const *const libc::c_char,
    stdio: [RawFd; 3],
    report: RawFd,
}

/// The descriptor of the report pipe in the child.
const REPORT_FD: RawFd = 3;

fn child(prepared: &Prepared<'_>) -> ! {
    let (stage, errno) = match become_program(prepared) {
        Ok(never) => match never {},
        Err(failure) => failure,
    };
    let errno = errno.to_ne_bytes();
    let report = [stage, errno[0], errno[1], errno[2], errno[3]];
    // SAFETY: writes a live buffer; then the process exits without running destructors.
    unsafe {
        libc::write(REPORT_FD, report.as_ptr().cast(), report.len());
        libc::_exit(127)
    }
}

fn become_program(prepared: &Prepared<'_>) -> Result<std::convert::Infallible, (u8, i32)> {
    descriptors(prepared).map_err(|errno| (1, errno))?;
    reset_signals_and_oom_score();
    // A runtime that refuses, such as gVisor, leaves the child without a mark, which must not stop the call.
    let _ = prepared.plan.mark.apply();
    if let Some(agent) = prepared.plan.agent {
        become_agent(agent).map_err(|errno| (1, errno))?;
    }
    // SAFETY: the calls take only integers and a live string.
    unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        check(libc::syscall(libc::SYS_chdir, prepared.plan.directory.as_ptr()))
            .map_err(|errno| (2, errno))?;
    }
    let mut worst = libc::ENOENT;
    for program in &prepared.plan.programs {
        // SAFETY: the strings and both arrays are in the child's copy of the parent's memory.
        unsafe {
            libc::syscall(libc::SYS_execve, program.as_ptr(), prepared.arguments, prepared.environment)
        };
        match last_errno() {
            libc::ENOENT | libc::ENOTDIR => {}
            libc::EACCES => worst = libc::EACCES,
            other => return Err((3, other)),
        }
    }
    Err((3, worst))
}

/// Moves the descriptors into place and closes all others.
fn descriptors(prepared: &Prepared<'_>) -> Result<(), i32> {
    // SAFETY: the calls take only integers.
    unsafe {
        check(libc::syscall(libc::SYS_setsid))?;
        for (target, source) in (0..).zip(prepared.stdio) {
            check(libc::syscall(libc::SYS_dup3, source, target, 0))?;
        }
        if prepared.report != REPORT_FD {
            check(libc::syscall(libc::SYS_dup3, prepared.report, REPORT_FD, libc::O_CLOEXEC))?;
        }
        // Do not leave this to close-on-exec: a child that is stopped before exec must not keep the link or the
        // journal open.
        libc::syscall(libc::SYS_close_range, REPORT_FD + 1, u32::MAX, 0);
        if prepared.plan.terminal == Terminal::Controlling {
            check(libc::syscall(libc::SYS_ioctl, 0, libc::TIOCSCTTY, 0))?;
        }
    }
    Ok(())
}

/// Resets signal handling to what programs expect, and makes the child a likelier victim of the OOM
/// killer than the guest.
fn reset_signals_and_oom_score() {
    const OOM_SCORE_ADJ: &[u8] = b"500";
    // SAFETY: the signal set and the strings are live, and SIG_DFL installs no handler function.
    unsafe {
        let mut none: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut none);
        libc::signal(libc::SIGPIPE, libc::SIG_DFL);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const none, ptr::null_mut());
        let file = libc::open(c"/proc/self/oom_score_adj".as_ptr(), libc::O_WRONLY | libc::O_CLOEXEC);
        if file >= 0 {
            libc::write(file, OOM_SCORE_ADJ.as_ptr().cast(), OOM_SCORE_ADJ.len());
            libc::close(file);
        }
    }
}

/// Uses raw system calls, because the C library's wrappers synchronize all threads of the parent, of which the child
/// has only one.
fn become_agent(agent: Agent) -> Result<(), i32> {
    // SAFETY: the calls take only integers and a null pointer.
    unsafe {
        if let Err(errno) = check(libc::syscall(libc::SYS_setgroups, 0, ptr::null::<libc::gid_t>())) {
            // Some user namespaces refuse the call. That is harmless if there are no groups to drop.
            if libc::syscall(libc::SYS_getgroups, 0, ptr::null::<libc::gid_t>()) != 0 {
                return Err(errno);
            }
        }
        check(libc::syscall(libc::SYS_setresgid, agent.gid, agent.gid, agent.gid))?;
        check(libc::syscall(libc::SYS_setresuid, agent.uid, agent.uid, agent.uid))
    }
}

fn check(result: libc::c_long) -> Result<(), i32> {
    if result < 0 { Err(last_errno()) } else { Ok(()) }
}

fn last_errno() -> i32 {
    // SAFETY: the location is always valid for the calling thread.
    unsafe { *libc::__errno_location() }
}

/// Gives the calling thread the agent's filesystem IDs. The other threads keep theirs.
pub(crate) fn set_file_ids(agent: Agent) -> io::Result<()> {
    // SAFETY: the calls take only integers. They are raw system calls, because these IDs belong to one thread. Each
    // call returns the previous ID, so a second call with an invalid ID reveals whether the first succeeded.
    let (uid, gid) = unsafe {
        libc::syscall(libc::SYS_setfsgid, agent.gid);
        libc::syscall(libc::SYS_setfsuid, agent.uid);
        (libc::syscall(libc::SYS_setfsuid, u32::MAX), libc::syscall(libc::SYS_setfsgid, u32::MAX))
    };
    if uid == libc::c_long::from(agent.uid) && gid == libc::c_long::from(agent.gid) {
        Ok(())
    } else {
        Err(io::Error::from_raw_os_error(libc::EPERM))
    }
}

/// Drops the supplementary groups of the calling thread, before other threads start. Ignores errors.
pub(crate) fn clear_groups() {
    // SAFETY: the call takes no memory.
    unsafe { libc::syscall(libc::SYS_setgroups, 0, ptr::null::<libc::gid_t>()) };
}

/// Disables ptrace and core dumps, ignores SIGPIPE, makes the guest adopt orphans, and configures malloc to return
/// freed memory early.
pub(crate) fn harden_process() {
    // SAFETY: the calls take only integers.
    unsafe {
        libc::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0);
        libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
        libc::signal(libc::SIGPIPE, libc::SIG_IGN);
        libc::mallopt(libc::M_ARENA_MAX, 1);
        libc::mallopt(libc::M_TRIM_THRESHOLD, 256 * 1024);
        libc::mallopt(libc::M_MMAP_THRESHOLD, 128 * 1024);
    }
}

/// `struct landlock_ruleset_attr` of linux/landlock.h.
#[repr(C)]
struct Ruleset {
    files: u64,
    network: u64,
    scopes: u64,
}

/// Moves the calling thread, and the processes it forks, into a separate Landlock domain. Processes inside cannot
/// trace or signal processes outside. Older kernels do not restrict signals.
pub(crate) fn enter_signal_domain() -> io::Result<()> {
    const MAKE_BLOCK_DEVICE: u64 = 1 << 11;
    const MOVE_BETWEEN_DIRECTORIES: u64 = 1 << 13;
    const SIGNALS: u64 = 1 << 1;
    // A domain must handle at least one right. The agent may not create devices anyway. Every domain denies moving
    // files between directories unless a rule allows it.
    let rules = Ruleset { files: MAKE_BLOCK_DEVICE | MOVE_BETWEEN_DIRECTORIES, network: 0, scopes: SIGNALS };
    let oldest = Ruleset { files: MAKE_BLOCK_DEVICE, network: 0, scopes: 0 };
    let make = |rules: &Ruleset, size: usize| {
        // SAFETY: the structure is live and at least `size` bytes long; the kernel reads no further.
        unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, ptr::from_ref(rules), size, 0) }
    };
    let mut fd = make(&rules, size_of::<Ruleset>());
    if fd < 0 {
        fd = make(&rules, size_of::<u64>());
    }
    let can_move = fd >= 0;
    if fd < 0 {
        fd = make(&oldest, size_of::<u64>());
    }
    check(fd).map_err(io::Error::from_raw_os_error)?;
    let fd = RawFd::try_from(fd).map_err(io::Error::other)?;
    // SAFETY: the kernel has just returned this descriptor, and nothing else owns it.
    let ruleset = unsafe { OwnedFd::from_raw_fd(fd) };
    if can_move {
        allow_everywhere(&ruleset, MOVE_BETWEEN_DIRECTORIES)?;
    }
    // SAFETY: the calls take only integers.
    unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        check(libc::syscall(libc::SYS_landlock_restrict_self, ruleset.as_raw_fd(), 0))
            .map_err(io::Error::from_raw_os_error)
    }
}

/// `struct landlock_path_beneath_attr` of linux/landlock.h.
#[repr(C, packed)]
struct PathBeneath {
    allowed: u64,
    directory: i32,
}

/// Allows a right below the root directory.
fn allow_everywhere(ruleset: &OwnedFd, allowed: u64) -> io::Result<()> {
    const PATH_BENEATH: i32 = 1;
    let flags = rustix::fs::OFlags::PATH | rustix::fs::OFlags::CLOEXEC;
    let root = rustix::fs::open("/", flags, rustix::fs::Mode::empty())?;
    let rule = PathBeneath { allowed, directory: root.as_raw_fd() };
    // SAFETY: the structure is live for the call, and both descriptors are open.
    let result = unsafe {
        libc::syscall(libc::SYS_landlock_add_rule, ruleset.as_raw_fd(), PATH_BENEATH, &raw const rule, 0)
    };
    check(result).map_err(io::Error::from_raw_os_error)
}

/// Disables ptrace again, because a change of filesystem IDs may have enabled it.
pub(crate) fn forbid_ptrace() {
    // SAFETY: the call takes only integers.
    unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0) };
}

/// Closes every descriptor above 2 except those in `keep`.
pub(crate) fn close_others(mut keep: Vec<RawFd>) {
    keep.sort_unstable();
    let mut from: RawFd = 3;
    let ends = keep.iter().map(|keep| keep - 1).chain([RawFd::MAX]);
    let nexts = keep.iter().map(|keep| keep + 1).chain([RawFd::MAX]);
    for (end, next) in ends.zip(nexts) {
        if from <= end {
            // SAFETY: runs at startup, before the guest has opened any descriptor.
            unsafe { libc::syscall(libc::SYS_close_range, from, end, 0) };
        }
        from = next;
    }
}

/// Takes ownership of an inherited descriptor.
pub(crate) fn inherit(fd: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: fcntl takes only integers; an error means that the descriptor is not open.
    if unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) } < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is open, and the command line passes its ownership to the guest.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Blocks SIGCHLD in this thread and those started later. Returns a descriptor that becomes readable on each SIGCHLD.
pub(crate) fn child_signals() -> io::Result<OwnedFd> {
    // SAFETY: sigemptyset initializes the set; the result owns the new descriptor.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        libc::sigaddset(&raw mut set, libc::SIGCHLD);
        if libc::sigprocmask(libc::SIG_BLOCK, &raw const set, ptr::null_mut()) < 0 {
            return Err(io::Error::last_os_error());
        }
        let fd = libc::signalfd(-1, &raw const set, libc::SFD_NONBLOCK | libc::SFD_CLOEXEC);
        if fd < 0 { Err(io::Error::last_os_error()) } else { Ok(OwnedFd::from_raw_fd(fd)) }
    }
}

/// Registers a descriptor with the event loop.
pub(crate) fn register(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an owned descriptor stays open and unchanged until it is dropped.
    unsafe { AsyncFd::register(fd) }.map_err(|error| error.into_parts().1)
}

/// Sends a signal to a process. Ignores errors.
pub(crate) fn signal_process(pid: i32, signal: i32) {
    if pid > 1 {
        // SAFETY: the call takes only integers. PIDs up to 1 are excluded, because they would mean groups or the
        // guest.
        unsafe { libc::kill(pid, signal) };
    }
}

pub(crate) fn signal_group(group: i32, signal: i32) -> io::Result<()> {
    if group <= 1 {
        // kill(2) would take these for the caller's own group or for every process.
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // SAFETY: a plain call with numbers.
    if unsafe { libc::kill(-group, signal) } == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
