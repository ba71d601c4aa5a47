//! The owner of a sandbox: makes it, waits for its end, and leaves a record.
//!
//! It outlives the server that started it. Killing it kills the sandbox: the first process is tied to it by a death
//! signal, every other process dies with the first, and mounts and the loop device go with them.

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
use crate::channel::{self, Channel, Word};
use crate::child::{self, Inheritance};
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
/// How long nothing must happen before an owner gives the memory of its code back. Short jobs are over by then.
const QUIET: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

/// What the owner has of the disk for as long as the sandbox lives.
#[derive(Default)]
struct Kept {
    /// The list of files, where they are listed.
    audit: Option<FileAudit>,
    /// The disk itself, where it is a file system of its own.
    disk: Option<HeldDisk>,
}

/// The first process of the sandbox as its owner sees it.
pub(crate) struct Child {
    pub(crate) pid: i32,
    pub(crate) pidfd: OwnedFd,
    pub(crate) channel: Channel,
    pub(crate) log: OwnedFd,
}

impl Child {
    /// Waits until the process has become the guest or is gone; gives the reason when it has said one.
    pub(crate) fn complaint(&self) -> Option<LaunchError> {
        let Ok(Some(Report::Failed { step, cause, errno })) = self.channel.wait_for_guest() else {
            return None;
        };
        let source = errno.map_or_else(|| io::Error::other(cause), io::Error::from_raw_os_error);
        Some(LaunchError::new(step, source))
    }
}

/// Makes the sandbox that a file describes, and stays until it has ended.
///
/// # Errors
/// The sandbox could not be made; nothing is left of it but its directory.
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
        // The process may be gone already, which is what is wanted.
        let _ = pidfd_send_signal(&child.pidfd, Signal::KILL);
        end(&spec, &mut held, &child, true)?;
        // When the process gave up first, it knows better what went wrong.
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
    // The loop device lets go of the disk when nobody has it open.
    let Kept { audit, disk } = kept;
    drop(disk);
    if let Some(mut audit) = audit {
        audit.drain_all();
    }
    end(&spec, &mut held, &child, asked)
}

/// Reports a failure to whoever started the launcher.
pub fn fail(error: &LaunchError) {
    eprintln!("{}: {}", error.step, error.source);
    tell(&Report::from(error));
}

fn tell(report: &Report) {
    let mut line = serde_json::to_vec(report).unwrap_or_default();
    line.push(b'\n');
    // Whoever started us may be gone; the sandbox lives on and is found again by its directory.
    let _ = io::stdout().write_all(&line).and_then(|()| io::stdout().flush());
}

/// Descriptors opened later must not get the numbers that the guest's own will have.
pub(crate) fn keep_numbers_free() -> io::Result<OwnedFd> {
    let null = open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    // Above all: whatever has such a number already stays open only here, and is replaced.
    let null = rustix::io::fcntl_dupfd_cloexec(null, ENTRANCE_FD + 1)?;
    for number in [LISTEN_FD, STATE_FD, ENTRANCE_FD] {
        sys::place_descriptor(&null, number)?;
    }
    Ok(null)
}

/// Nobody removes an image while somebody holds it. The lock goes with the owner, however it ends.
fn hold_image(spec: &LaunchSpec) -> Result<OwnedFd, LaunchError> {
    let path = &spec.root.lower;
    let directory = open(path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
        .step(|| format!("opening {}", path.display()))?;
    // Refused only while somebody removes it.
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
    // An ordinary user may open mounts only where it is root: there the child does it.
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
        // Half a list would say less than it seems to.
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

/// Opens what only the owner may open and hands it over.
fn send_layers(
    spec: &LaunchSpec,
    first_uid: u32,
    child: &Child,
    watch: &mut Stopwatch,
    kept: &mut Kept,
) -> Result<Option<u32>, LaunchError> {
    let users = open_namespace(child.pid, "user")?;
    // A socket belongs to the network namespace that it was made in, and its holder can look into that one. So the owner
    // enters the sandbox's first, and stays there: it needs no network.
    if spec.network == Network::Own {
        enter_network(&open_namespace(child.pid, "net")?)?;
    }
    let layers = Layers::open(spec, Ids::Mapped { users: users.as_fd(), first_uid })?;
    watch.lap("layers opened");
    if spec.file_audit == FileAuditing::WherePossible && layers.loop_device.is_some() {
        // Where the host does not allow it, the backend compares the beginning with the end.
        kept.audit =
            FileAudit::begin(layers.disk.as_fd(), &spec.directory).inspect_err(complain_of_list).ok();
    }
    if let Some(device) = layers.loop_device {
        // Before the sandbox has the disk: what fails earlier than this is opened is never told.
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

/// What others want, as descriptors that become readable.
struct Signals {
    /// The end.
    termination: OwnedFd,
    /// The whole list of files.
    requests: OwnedFd,
    /// A sync of the disk.
    syncs: OwnedFd,
}

/// Waits for the guest's end; copies its messages to the log, up to a limit; passes the wish to end on.
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
        // What is not wanted any more is left out: the end of a pipe is told again and again, whatever one asks for.
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
            // Before others are asked for, so that a new one is not taken for the old one.
            if disk.news().is_some_and(|news| ready.contains(&news.as_raw_fd())) {
                disk.take_news(held);
            }
        }
        if is_ready(&signals.syncs) {
            // Emptied first: a request from now on means another sync.
            let _ = rustix::io::read(&signals.syncs, &mut [0; 128]);
            if let Some(disk) = disk.as_mut() {
                disk.begin(held);
            }
        }
        if let Some(audit) = audit.as_mut() {
            if audit.descriptors().into_iter().any(is_ready) {
                audit.drain();
            }
            // Before those who have them open are killed.
            if is_ready(&signals.termination) {
                audit.tell_open(child.pid);
            }
        }
        if is_ready(&signals.requests) {
            // What is in it does not matter, only that it is empty afterwards.
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

/// Whether there may be more.
fn copy_log(from: &OwnedFd, log: &mut Log) -> bool {
    let mut bytes = [0; 4096];
    let Ok(count @ 1..) = rustix::io::read(from, &mut bytes) else { return false };
    log.add(&bytes[..count]);
    true
}

/// Collects the guest, records how it ended, and removes the control group and the socket.
fn end(spec: &LaunchSpec, held: &mut Held, child: &Child, asked: bool) -> Result<(), LaunchError> {
    // Returns when every process of the sandbox is gone: the kernel ends them with the first one.
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
    // Whoever asked removes the whole directory next.
    let recorded = if asked {
        Ok(())
    } else {
        let usage = spec.cgroup.as_ref().map_or_else(CgroupUsage::default, crate::cgroup::Group::usage);
        held.add(&Note::Ended(EndRecord { end, usage }))
    };
    // The socket may never have been made, or the backend may have been faster.
    let _ = fs::remove_file(&spec.socket);
    if let Some(group) = &spec.cgroup {
        group.remove(GROUP_PATIENCE)?;
    }
    recorded
}

/// Without a pid namespace the kernel hands what the guest has left to its owner.
fn end_orphans(shelter: &Shelter) -> Result<(), LaunchError> {
    mark::end_all(shelter.mark, GROUP_PATIENCE).named("ending the sandbox's processes")?;
    while let Ok(Some(_)) = waitpid(None, WaitOptions::NOHANG) {}
    Ok(())
}
