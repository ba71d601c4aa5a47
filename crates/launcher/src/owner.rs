//! The owner of a sandbox: creates it, waits for its end, and records the result.
//!
//! The owner outlives the server that started it. Killing it kills the sandbox: a parent-death signal kills the first
//! process, all other processes die with the first, and mounts and the loop device go with them.

use std::fs;
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::path::Path;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FlockOperation, Mode, OFlags, flock, open};
use rustix::process::{Pid, Signal, WaitOptions, pidfd_send_signal, waitpid};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::cgroup::{CgroupUsage, Hierarchy};
use crate::channel::{self, Message};
use crate::child::{self, Child, InheritedFds};
use crate::disk_sync::DiskSyncer;
use crate::error::{LaunchError, Step};
use crate::file_audit::FileAudit;
use crate::landlock_only;
use crate::launch_file::{LaunchRecord, LockedLaunchFile};
use crate::layers::{Ids, Layers};
use crate::log::Log;
use crate::process;
use crate::process_mark;
use crate::slot::Slot;
use crate::spec::{
    EndRecord, FILES_FILE, FileAuditing, GuestEnd, LISTEN_FD, LandlockOnly, LaunchSpec, Network, PROXY_FD,
    Report, Running, STATE_FD, Seal, Trace, Users,
};
use crate::sys::{self, Cloned, Namespaces};
use crate::trace::Stopwatch;
use crate::users;

const CGROUP_TIMEOUT: Duration = Duration::from_secs(5);
/// How long an owner must be idle before it releases the memory of its code. Short jobs are done by then.
const IDLE_TIMEOUT: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

/// What the owner holds of the disk for the sandbox's lifetime.
#[derive(Default)]
struct DiskHandles {
    /// The file access log, if enabled.
    audit: Option<FileAudit>,
    /// Why there is no file access log although it is enabled.
    audit_error: Option<io::Error>,
    /// The disk, if it is a separate file system.
    disk: Option<DiskSyncer>,
}

impl DiskHandles {
    fn stop_audit(&mut self, error: io::Error) {
        eprintln!("files are compared at the end instead of being listed as they are touched: {error}");
        self.audit_error = Some(error);
    }
}

/// Creates the sandbox that a launch file describes and stays until it has ended.
///
/// # Errors
/// The sandbox could not be created; only its directory is left.
pub(crate) fn run(file: &Path, null: BorrowedFd<'_>, lent: Vec<OwnedFd>) -> Result<(), LaunchError> {
    let (spec, mut locked_file) = LockedLaunchFile::take(file)?;
    let mut log = Log::of(&spec.directory);
    log.redirect_panics();
    if spec.trace == Trace::On {
        log.redirect_stderr().named("opening the log")?;
    }
    let _image = lock_image(&spec)?;
    let mut watch = Stopwatch::start("owner", spec.trace);
    let slot = users::take(&spec.users)?;
    if spec.network == Network::Lent {
        let network = lent.into_iter().next().ok_or_else(|| io::Error::other("none came"));
        let network = network.named("taking the lent network")?;
        enter_network(&network)?;
    }
    let child = match &spec.seal {
        Seal::Namespaces => clone_child(&spec, null, &watch)?,
        Seal::LandlockOnly(landlock_only) => {
            landlock_only::clone_child(&spec, landlock_only, slot.as_ref(), null)?
        }
    };
    watch.lap("child born");
    let mut disk_handles = DiskHandles::default();
    let result = match &spec.seal {
        Seal::Namespaces => set_up(&spec, slot.as_ref(), &child, &mut watch, &mut disk_handles),
        Seal::LandlockOnly(_) => landlock_only::set_up(&spec, &child),
    };
    let result = result.and_then(|running| locked_file.add(&LaunchRecord::Running(running)));
    if let Err(error) = result {
        // The process may already be gone.
        let _ = pidfd_send_signal(&child.pidfd, Signal::KILL);
        end(&spec, &mut locked_file, &child, true)?;
        // If the process failed first, its own error is more precise.
        return Err(child.reported_error().unwrap_or(error));
    }
    let mut termination_requested = false;
    let termination = sys::termination_descriptor().named("listening for signals")?;
    let requests = sys::request_descriptor().named("listening for signals")?;
    let syncs = sys::sync_descriptor().named("listening for signals")?;
    let signals = Signals { termination, requests, syncs };
    print_report(&match disk_handles.audit_error.take() {
        None => Report::Ready,
        Some(error) => {
            Report::ReadyWithoutFileAudit { cause: error.to_string(), errno: error.raw_os_error() }
        }
    });
    sys::place_descriptor(null, 1).named("closing standard output")?;
    watch.lap("ready");
    wait(&mut locked_file, &child, &signals, &mut termination_requested, &mut log, &mut disk_handles)
        .named("waiting for the guest")?;
    // The loop device detaches from the disk when the last descriptor is closed.
    let DiskHandles { audit, disk, .. } = disk_handles;
    drop(disk);
    if let Some(mut audit) = audit {
        audit.drain_all();
    }
    end(&spec, &mut locked_file, &child, termination_requested)
}

/// Reports a failure to the process that started the launcher.
pub fn fail(error: &LaunchError) {
    eprintln!("{}: {}", error.step, error.source);
    print_report(&Report::from(error));
}

fn print_report(report: &Report) {
    let mut line = serde_json::to_vec(report).unwrap_or_default();
    line.push(b'\n');
    // The process that started the launcher may be gone. The sandbox lives on and is found again through its
    // directory.
    let _ = io::stdout().write_all(&line).and_then(|()| io::stdout().flush());
}

/// Reserves the descriptor numbers of the guest, so that descriptors opened later do not get them.
pub(crate) fn reserve_guest_fds() -> io::Result<OwnedFd> {
    let null = open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    // Moved above all reserved numbers: any descriptor on such a number stays open only here and is replaced.
    let null = rustix::io::fcntl_dupfd_cloexec(null, PROXY_FD + 1)?;
    for number in [LISTEN_FD, STATE_FD, PROXY_FD] {
        sys::place_descriptor(&null, number)?;
    }
    Ok(null)
}

/// Holds a shared lock on the image, which prevents its removal. The lock is released when the owner exits, however
/// it ends.
fn lock_image(spec: &LaunchSpec) -> Result<OwnedFd, LaunchError> {
    let path = &spec.root.lower;
    let directory = open(path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
        .step(|| format!("opening {}", path.display()))?;
    // Fails only while the image is being removed.
    flock(&directory, FlockOperation::NonBlockingLockShared)
        .step(|| format!("holding the image {}", path.display()))?;
    Ok(directory)
}

fn clone_child(spec: &LaunchSpec, null: BorrowedFd<'_>, watch: &Stopwatch) -> Result<Child, LaunchError> {
    let guest = open(&spec.guest, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
        .step(|| format!("opening {}", spec.guest.display()))?;
    let (log, log_writer) =
        rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).named("making the log's pipe")?;
    let (ours, theirs) = channel::pair().named("making a channel")?;
    let mut clone_directory = None;
    if let Some(group) = &spec.cgroup
        && matches!(group.hierarchy, Hierarchy::V2 { .. })
    {
        group.create(&spec.limits)?;
        clone_directory = group.clone_directory()?;
    }
    let null = null.try_clone_to_owned().named("copying /dev/null")?;
    let kinds = match spec.network {
        Network::Own => Namespaces::All,
        Network::Lent => Namespaces::AllButNetwork,
    };
    match sys::clone_into_namespaces(kinds, clone_directory.as_ref().map(AsFd::as_fd))
        .named("making namespaces")?
    {
        Cloned::Owner { pid, pidfd } => Ok(Child { pid, pidfd, channel: ours, log }),
        Cloned::Child => {
            drop(ours);
            let inherited = InheritedFds { channel: theirs, guest, log: log_writer, null };
            child::child_main(spec, &inherited, watch.shared_with("child"))
        }
    }
}

fn set_up(
    spec: &LaunchSpec,
    slot: Option<&Slot>,
    child: &Child,
    watch: &mut Stopwatch,
    disk_handles: &mut DiskHandles,
) -> Result<Running, LaunchError> {
    users::map(child.pid, &spec.users, slot)?;
    child.channel.send_message(Message::Mapped, &[]).named("telling of user ids")?;
    watch.lap("users mapped");
    let mut loop_device = None;
    // An unprivileged user may open mounts only where it is root, so there the child opens them.
    if let (Users::Ranges(slots), Some(slot)) = (&spec.users, slot) {
        loop_device = send_layers(spec, users::first_of_range(slots, slot), child, watch, disk_handles)?;
    }
    let mut task_files = Vec::new();
    if let Some(group) = &spec.cgroup
        && matches!(group.hierarchy, Hierarchy::V1 { .. })
    {
        group.create(&spec.limits)?;
        task_files = group.task_files()?;
        watch.lap("group made");
    }
    let task_files: Vec<_> = task_files.iter().map(AsFd::as_fd).collect();
    child.channel.send_message(Message::Limited, &task_files).named("telling of limits")?;
    if let Some(reported_error) = child.reported_error() {
        return Err(reported_error);
    }
    if let Some(Err(error)) = disk_handles.audit.as_mut().map(|audit| audit.add_root(child.pid)) {
        // A partial log would be misleading.
        disk_handles.audit = None;
        let _ = fs::remove_file(spec.directory.join(FILES_FILE));
        disk_handles.stop_audit(error);
    }
    let started = process::started(child.pid).ok_or_else(|| io::Error::other("it is gone"));
    let guest_started = started.named("looking at the guest")?;
    let (guest_pid, network, syncs_disk) =
        (child.pid.unsigned_abs(), spec.network, disk_handles.disk.is_some());
    Ok(Running { guest_pid, guest_started, loop_device, network, syncs_disk })
}

/// Opens the layers that only the owner may open and sends them to the child.
fn send_layers(
    spec: &LaunchSpec,
    first_uid: u32,
    child: &Child,
    watch: &mut Stopwatch,
    disk_handles: &mut DiskHandles,
) -> Result<Option<u32>, LaunchError> {
    let users = open_namespace(child.pid, "user")?;
    // A socket belongs to the network namespace in which it was created, and its holder can inspect that namespace.
    // So the owner enters the sandbox's namespace first, and stays there because it needs no network.
    if spec.network == Network::Own {
        enter_network(&open_namespace(child.pid, "net")?)?;
    }
    let layers = Layers::open(spec, Ids::Mapped { users: users.as_fd(), first_uid })?;
    watch.lap("layers opened");
    if spec.file_audit == FileAuditing::WherePossible && layers.loop_device.is_some() {
        // If the host does not allow it, the backend compares the files at the start and the end instead.
        match FileAudit::begin(layers.disk.as_fd(), &spec.directory) {
            Ok(audit) => disk_handles.audit = Some(audit),
            Err(error) => disk_handles.stop_audit(error),
        }
    }
    if let Some(device) = layers.loop_device {
        // Must precede the handover: failures that happen before this descriptor is opened are never reported.
        disk_handles.disk =
            Some(DiskSyncer::open(layers.disk.as_fd(), device).named("holding the disk open")?);
    }
    child.channel.send_message(Message::Layers, &layers.descriptors()).named("handing over layers")?;
    Ok(layers.loop_device)
}

fn enter_network(network: &OwnedFd) -> Result<(), LaunchError> {
    move_into_link_name_space(network.as_fd(), Some(LinkNameSpaceType::Network))
        .named("entering the sandbox's network")
}

fn open_namespace(pid: i32, kind: &str) -> Result<OwnedFd, LaunchError> {
    let path = format!("/proc/{pid}/ns/{kind}");
    open(&path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).step(|| format!("opening {path}"))
}

/// Requests from other processes, as descriptors that become readable.
struct Signals {
    /// Terminate the sandbox.
    termination: OwnedFd,
    /// Complete the file access log.
    requests: OwnedFd,
    /// Sync the disk.
    syncs: OwnedFd,
}

/// Waits for the guest to exit. Meanwhile copies its output to the log, up to a limit, and handles signals.
fn wait(
    locked_file: &mut LockedLaunchFile,
    child: &Child,
    signals: &Signals,
    termination_requested: &mut bool,
    log: &mut Log,
    disk_handles: &mut DiskHandles,
) -> io::Result<()> {
    let DiskHandles { audit, disk, .. } = disk_handles;
    let mut log_open = true;
    let mut is_idle = false;
    loop {
        let mut watched: Vec<PollFd<'_>> = Vec::new();
        let mut watch = |descriptor| watched.push(PollFd::from_borrowed_fd(descriptor, PollFlags::IN));
        watch(child.pidfd.as_fd());
        watch(signals.requests.as_fd());
        watch(signals.syncs.as_fd());
        disk.iter().filter_map(DiskSyncer::sync_result).for_each(&mut watch);
        audit.iter().flat_map(|audit| audit.descriptors()).for_each(|group| watch(group.as_fd()));
        // Closed or handled descriptors are left out: `poll` reports a closed pipe every time, whatever events it
        // asks for.
        if !*termination_requested {
            watch(signals.termination.as_fd());
        }
        if log_open {
            watch(child.log.as_fd());
        }
        let count = match poll(&mut watched, (!is_idle).then_some(&IDLE_TIMEOUT)) {
            Err(rustix::io::Errno::INTR) => continue,
            other => other?,
        };
        is_idle = count == 0;
        if is_idle {
            sys::release_own_code();
            continue;
        }
        let ready: Vec<RawFd> = watched
            .iter()
            .filter(|entry| !entry.revents().is_empty())
            .map(|entry| entry.as_fd().as_raw_fd())
            .collect();
        let is_ready = |descriptor: &OwnedFd| ready.contains(&descriptor.as_raw_fd());
        if let Some(disk) = disk.as_mut() {
            // Handled before new sync requests, so that a new sync is not mistaken for the finished one.
            if disk.sync_result().is_some_and(|sync_result| ready.contains(&sync_result.as_raw_fd())) {
                disk.take_sync_result(locked_file);
            }
        }
        if is_ready(&signals.syncs) {
            // Drained first, so that a request arriving from now on triggers another sync.
            let _ = rustix::io::read(&signals.syncs, &mut [0; 128]);
            if let Some(disk) = disk.as_mut() {
                disk.begin(locked_file);
            }
        }
        if let Some(audit) = audit.as_mut() {
            if audit.descriptors().into_iter().any(is_ready) {
                audit.drain();
            }
            // Must run before the processes that have files open are killed.
            if is_ready(&signals.termination) {
                audit.record_open_files(child.pid);
            }
        }
        if is_ready(&signals.requests) {
            // The contents do not matter; reading only clears the descriptor.
            let _ = rustix::io::read(&signals.requests, &mut [0; 128]);
            if let Some(audit) = audit.as_mut() {
                audit.record_open_files(child.pid);
                locked_file.mark_file_audit_complete();
            }
        }
        if is_ready(&child.pidfd) {
            return Ok(());
        }
        if is_ready(&signals.termination) {
            *termination_requested = true;
            pidfd_send_signal(&child.pidfd, Signal::KILL)?;
        }
        if is_ready(&child.log) {
            log_open = copy_log(&child.log, log);
        }
    }
}

/// Returns whether there may be more output.
fn copy_log(from: &OwnedFd, log: &mut Log) -> bool {
    let mut bytes = [0; 4096];
    let Ok(count @ 1..) = rustix::io::read(from, &mut bytes) else { return false };
    log.add(&bytes[..count]);
    true
}

/// Reaps the guest, records how it ended, and removes the cgroup and the socket.
fn end(
    spec: &LaunchSpec,
    locked_file: &mut LockedLaunchFile,
    child: &Child,
    termination_requested: bool,
) -> Result<(), LaunchError> {
    // `waitpid` returns once every process of the sandbox is gone: the kernel kills them with the first one.
    let status = waitpid(Pid::from_raw(child.pid), WaitOptions::empty()).named("collecting the guest")?;
    let end = match status {
        Some((_, status)) => status
            .exit_status()
            .map(GuestEnd::Code)
            .or_else(|| status.terminating_signal().map(GuestEnd::Signal))
            .unwrap_or(GuestEnd::Code(-1)),
        None => GuestEnd::Code(-1),
    };
    if let Seal::LandlockOnly(landlock_only) = &spec.seal {
        kill_orphans(landlock_only)?;
    }
    // The requester of a termination removes the whole directory next.
    let recorded = if termination_requested {
        Ok(())
    } else {
        let usage = spec.cgroup.as_ref().map_or_else(CgroupUsage::default, crate::cgroup::Group::usage);
        locked_file.add(&LaunchRecord::Ended(EndRecord { end, usage }))
    };
    // The socket may never have been created, or the backend may already have removed it.
    let _ = fs::remove_file(&spec.socket);
    if let Some(group) = &spec.cgroup {
        group.remove(CGROUP_TIMEOUT)?;
    }
    recorded
}

/// Kills and reaps orphans. Without a pid namespace, the kernel reparents them to the owner.
fn kill_orphans(landlock_only: &LandlockOnly) -> Result<(), LaunchError> {
    process_mark::kill_all(landlock_only.mark, CGROUP_TIMEOUT).named("ending the sandbox's processes")?;
    while let Ok(Some(_)) = waitpid(None, WaitOptions::NOHANG) {}
    Ok(())
}
