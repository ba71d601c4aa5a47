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
use crate::channel::{self, Word};
use crate::child::{self, Child, Inheritance};
use crate::disk_sync::HeldDisk;
use crate::error::{LaunchError, Step};
use crate::files::FileAudit;
use crate::launch_file::{Held, Note};
use crate::layers::{Ids, Layers};
use crate::log::Log;
use crate::mark;
use crate::process;
use crate::shelter;
use crate::slot::Slot;
use crate::spec::{
    ENTRANCE_FD, EndRecord, FILES_FILE, FileAuditing, GuestEnd, LISTEN_FD, LaunchSpec, Network, Report,
    Running, STATE_FD, Seal, Shelter, Trace, Users,
};
use crate::sys::{self, Cloned, Namespaces};
use crate::trace::Stopwatch;
use crate::users;

const GROUP_PATIENCE: Duration = Duration::from_secs(5);
/// How long an owner must be idle before it releases the memory of its code. Short jobs are done by then.
const QUIET: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

/// What the owner holds of the disk for the sandbox's lifetime.
#[derive(Default)]
struct Kept {
    /// The file access log, if enabled.
    audit: Option<FileAudit>,
    /// The disk, if it is a separate file system.
    disk: Option<HeldDisk>,
}

/// Creates the sandbox that a launch file describes and stays until it has ended.
///
/// # Errors
/// The sandbox could not be created; only its directory is left.
pub(crate) fn run(file: &Path, null: BorrowedFd<'_>, lent: Vec<OwnedFd>) -> Result<(), LaunchError> {
    let (spec, mut held) = Held::take(file)?;
    let mut log = Log::of(&spec.directory);
    log.take_panics();
    if spec.trace == Trace::On {
        log.take_complaints().named("opening the log")?;
    }
    let _image = hold_image(&spec)?;
    let mut watch = Stopwatch::start("owner", spec.trace);
    let slot = users::take(&spec.users)?;
    if spec.network == Network::Lent {
        let network = lent.into_iter().next().ok_or_else(|| io::Error::other("none came"));
        let network = network.named("taking the lent network")?;
        enter_network(&network)?;
    }
    let child = match &spec.seal {
        Seal::Namespaces => give_birth(&spec, null, &watch)?,
        Seal::Shelter(shelter) => shelter::give_birth(&spec, shelter, slot.as_ref(), null)?,
    };
    watch.lap("child born");
    let mut kept = Kept::default();
    let result = match &spec.seal {
        Seal::Namespaces => set_up(&spec, slot.as_ref(), &child, &mut watch, &mut kept),
        Seal::Shelter(_) => shelter::set_up(&spec, &child),
    };
    let result = result.and_then(|running| held.add(&Note::Running(running)));
    if let Err(error) = result {
        // The process may already be gone.
        let _ = pidfd_send_signal(&child.pidfd, Signal::KILL);
        end(&spec, &mut held, &child, true)?;
        // If the process failed first, its own error is more precise.
        return Err(child.complaint().unwrap_or(error));
    }
    let mut asked = false;
    let termination = sys::termination_descriptor().named("listening for signals")?;
    let requests = sys::request_descriptor().named("listening for signals")?;
    let syncs = sys::sync_descriptor().named("listening for signals")?;
    let signals = Signals { termination, requests, syncs };
    tell(&Report::Ready);
    sys::place_descriptor(null, 1).named("closing standard output")?;
    watch.lap("ready");
    wait(&mut held, &child, &signals, &mut asked, &mut log, &mut kept).named("waiting for the guest")?;
    // The loop device detaches from the disk when the last descriptor is closed.
    let Kept { audit, disk } = kept;
    drop(disk);
    if let Some(mut audit) = audit {
        audit.drain_all();
    }
    end(&spec, &mut held, &child, asked)
}

/// Reports a failure to the process that started the launcher.
pub fn fail(error: &LaunchError) {
    eprintln!("{}: {}", error.step, error.source);
    tell(&Report::from(error));
}

fn tell(report: &Report) {
    let mut line = serde_json::to_vec(report).unwrap_or_default();
    line.push(b'\n');
    // The process that started the launcher may be gone. The sandbox lives on and is found again through its
    // directory.
    let _ = io::stdout().write_all(&line).and_then(|()| io::stdout().flush());
}

/// Reserves the descriptor numbers of the guest, so that descriptors opened later do not get them.
pub(crate) fn keep_numbers_free() -> io::Result<OwnedFd> {
    let null = open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    // Moved above all reserved numbers: any descriptor on such a number stays open only here and is replaced.
    let null = rustix::io::fcntl_dupfd_cloexec(null, ENTRANCE_FD + 1)?;
    for number in [LISTEN_FD, STATE_FD, ENTRANCE_FD] {
        sys::place_descriptor(&null, number)?;
    }
    Ok(null)
}

/// Holds a shared lock on the image, which prevents its removal. The lock is released when the owner exits, however
/// it ends.
fn hold_image(spec: &LaunchSpec) -> Result<OwnedFd, LaunchError> {
    let path = &spec.root.lower;
    let directory = open(path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
        .step(|| format!("opening {}", path.display()))?;
    // Fails only while the image is being removed.
    flock(&directory, FlockOperation::NonBlockingLockShared)
        .step(|| format!("holding the image {}", path.display()))?;
    Ok(directory)
}

fn give_birth(spec: &LaunchSpec, null: BorrowedFd<'_>, watch: &Stopwatch) -> Result<Child, LaunchError> {
    let guest = open(&spec.guest, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
        .step(|| format!("opening {}", spec.guest.display()))?;
    let (log, log_writer) =
        rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).named("making the log's pipe")?;
    let (ours, theirs) = channel::pair().named("making a channel")?;
    let mut birthplace = None;
    if let Some(group) = &spec.cgroup
        && matches!(group.hierarchy, Hierarchy::V2 { .. })
    {
        group.create(&spec.limits)?;
        birthplace = group.birthplace()?;
    }
    let null = null.try_clone_to_owned().named("copying /dev/null")?;
    let kinds = match spec.network {
        Network::Own => Namespaces::All,
        Network::Lent => Namespaces::AllButNetwork,
    };
    match sys::clone_into_namespaces(kinds, birthplace.as_ref().map(AsFd::as_fd))
        .named("making namespaces")?
    {
        Cloned::Owner { pid, pidfd } => Ok(Child { pid, pidfd, channel: ours, log }),
        Cloned::Child => {
            drop(ours);
            let inheritance = Inheritance { channel: theirs, guest, log: log_writer, null };
            child::live(spec, &inheritance, watch.shared_with("child"))
        }
    }
}

fn set_up(
    spec: &LaunchSpec,
    slot: Option<&Slot>,
    child: &Child,
    watch: &mut Stopwatch,
    kept: &mut Kept,
) -> Result<Running, LaunchError> {
    users::map(child.pid, &spec.users, slot)?;
    child.channel.say(Word::Mapped, &[]).named("telling of user ids")?;
    watch.lap("users mapped");
    let mut loop_device = None;
    // An unprivileged user may open mounts only where it is root, so there the child opens them.
    if let (Users::Ranges(slots), Some(slot)) = (&spec.users, slot) {
        loop_device = send_layers(spec, users::first_of_range(slots, slot), child, watch, kept)?;
    }
    let mut doors = Vec::new();
    if let Some(group) = &spec.cgroup
        && matches!(group.hierarchy, Hierarchy::V1 { .. })
    {
        group.create(&spec.limits)?;
        doors = group.doors()?;
        watch.lap("group made");
    }
    let doors: Vec<_> = doors.iter().map(AsFd::as_fd).collect();
    child.channel.say(Word::Limited, &doors).named("telling of limits")?;
    if let Some(complaint) = child.complaint() {
        return Err(complaint);
    }
    if let Some(Err(error)) = kept.audit.as_mut().map(|audit| audit.add_root(child.pid)) {
        // A partial log would be misleading.
        complain_of_list(&error);
        kept.audit = None;
        let _ = fs::remove_file(spec.directory.join(FILES_FILE));
    }
    let started = process::started(child.pid).ok_or_else(|| io::Error::other("it is gone"));
    let guest_started = started.named("looking at the guest")?;
    let (guest_pid, network, syncs_disk) = (child.pid.unsigned_abs(), spec.network, kept.disk.is_some());
    Ok(Running { guest_pid, guest_started, loop_device, network, syncs_disk })
}

fn complain_of_list(error: &io::Error) {
    eprintln!("files are compared at the end instead of being listed as they are touched: {error}");
}

/// Opens the layers that only the owner may open and sends them to the child.
fn send_layers(
    spec: &LaunchSpec,
    first_uid: u32,
    child: &Child,
    watch: &mut Stopwatch,
    kept: &mut Kept,
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
        kept.audit =
            FileAudit::begin(layers.disk.as_fd(), &spec.directory).inspect_err(complain_of_list).ok();
    }
    if let Some(device) = layers.loop_device {
        // Must precede the handover: failures that happen before this descriptor is opened are never reported.
        kept.disk = Some(HeldDisk::open(layers.disk.as_fd(), device).named("holding the disk open")?);
    }
    child.channel.say(Word::Layers, &layers.descriptors()).named("handing over layers")?;
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
    held: &mut Held,
    child: &Child,
    signals: &Signals,
    asked: &mut bool,
    log: &mut Log,
    kept: &mut Kept,
) -> io::Result<()> {
    let Kept { audit, disk } = kept;
    let mut log_open = true;
    let mut is_quiet = false;
    loop {
        let mut watched: Vec<PollFd<'_>> = Vec::new();
        let mut watch = |descriptor| watched.push(PollFd::from_borrowed_fd(descriptor, PollFlags::IN));
        watch(child.pidfd.as_fd());
        watch(signals.requests.as_fd());
        watch(signals.syncs.as_fd());
        disk.iter().filter_map(HeldDisk::news).for_each(&mut watch);
        audit.iter().flat_map(|audit| audit.descriptors()).for_each(|group| watch(group.as_fd()));
        // Closed or handled descriptors are left out: `poll` reports a closed pipe every time, whatever events it
        // asks for.
        if !*asked {
            watch(signals.termination.as_fd());
        }
        if log_open {
            watch(child.log.as_fd());
        }
        let count = match poll(&mut watched, (!is_quiet).then_some(&QUIET)) {
            Err(rustix::io::Errno::INTR) => continue,
            other => other?,
        };
        is_quiet = count == 0;
        if is_quiet {
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
            if disk.news().is_some_and(|news| ready.contains(&news.as_raw_fd())) {
                disk.take_news(held);
            }
        }
        if is_ready(&signals.syncs) {
            // Drained first, so that a request arriving from now on triggers another sync.
            let _ = rustix::io::read(&signals.syncs, &mut [0; 128]);
            if let Some(disk) = disk.as_mut() {
                disk.begin(held);
            }
        }
        if let Some(audit) = audit.as_mut() {
            if audit.descriptors().into_iter().any(is_ready) {
                audit.drain();
            }
            // Must run before the processes that have files open are killed.
            if is_ready(&signals.termination) {
                audit.tell_open(child.pid);
            }
        }
        if is_ready(&signals.requests) {
            // The contents do not matter; reading only clears the descriptor.
            let _ = rustix::io::read(&signals.requests, &mut [0; 128]);
            if let Some(audit) = audit.as_mut() {
                audit.tell_open(child.pid);
                held.tell_of_list();
            }
        }
        if is_ready(&child.pidfd) {
            return Ok(());
        }
        if is_ready(&signals.termination) {
            *asked = true;
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
fn end(spec: &LaunchSpec, held: &mut Held, child: &Child, asked: bool) -> Result<(), LaunchError> {
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
    if let Seal::Shelter(shelter) = &spec.seal {
        end_orphans(shelter)?;
    }
    // The requester of a termination removes the whole directory next.
    let recorded = if asked {
        Ok(())
    } else {
        let usage = spec.cgroup.as_ref().map_or_else(CgroupUsage::default, crate::cgroup::Group::usage);
        held.add(&Note::Ended(EndRecord { end, usage }))
    };
    // The socket may never have been created, or the backend may already have removed it.
    let _ = fs::remove_file(&spec.socket);
    if let Some(group) = &spec.cgroup {
        group.remove(GROUP_PATIENCE)?;
    }
    recorded
}

/// Kills and reaps orphans. Without a pid namespace, the kernel reparents them to the owner.
fn end_orphans(shelter: &Shelter) -> Result<(), LaunchError> {
    mark::end_all(shelter.mark, GROUP_PATIENCE).named("ending the sandbox's processes")?;
    while let Ok(Some(_)) = waitpid(None, WaitOptions::NOHANG) {}
    Ok(())
}
