//! The owner of a sandbox: makes it, waits for its end, and leaves a record.
//!
//! It outlives the server that started it. Killing it kills the sandbox: the first process is tied to it by a death
//! signal, every other process dies with the first, and mounts and the loop device go with them.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{FlockOperation, Mode, OFlags, fcntl_lock, open};
use rustix::process::{Pid, Signal, WaitOptions, pidfd_send_signal, waitpid};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::cgroup::{CgroupUsage, Hierarchy};
use crate::channel::{self, Channel, Word};
use crate::child::{self, Inheritance};
use crate::error::{LaunchError, Step};
use crate::layers::{Ids, Layers};
use crate::process;
use crate::slot::Slot;
use crate::spec::{
    ENDED_FILE, EndRecord, GuestEnd, LISTEN_FD, LaunchSpec, RUNNING_FILE, Report, Running, STATE_FD, Users,
};
use crate::sys::{self, Cloned, Namespaces};
use crate::trace::Stopwatch;
use crate::users;

/// The most bytes of the guest's own messages that are kept.
const LOG_LIMIT: usize = 1 << 20;
const GROUP_PATIENCE: Duration = Duration::from_secs(5);

/// The first process of the sandbox as its owner sees it.
struct Child {
    pid: i32,
    pidfd: OwnedFd,
    channel: Channel,
    log: OwnedFd,
}

impl Child {
    /// Waits until the process has become the guest or is gone; gives the reason when it has said one.
    fn complaint(&self) -> Option<LaunchError> {
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
pub fn run(file: &Path) -> Result<(), LaunchError> {
    let null = keep_numbers_free().named("opening /dev/null")?;
    // A session of its own: signals to the server's terminal do not come here.
    let _ = rustix::process::setsid();
    let (spec, _lock) = read_locked(file)?;
    let mut watch = Stopwatch::start("owner", spec.trace);
    let slot = users::take(&spec.users)?;
    let child = give_birth(&spec, null.as_fd(), &watch)?;
    watch.lap("child born");
    let result = set_up(&spec, slot.as_ref(), &child, &mut watch);
    if let Err(error) = result {
        // The process may be gone already, which is what is wanted.
        let _ = pidfd_send_signal(&child.pidfd, Signal::KILL);
        end(&spec, &child, true)?;
        // When the process gave up first, it knows better what went wrong.
        return Err(child.complaint().unwrap_or(error));
    }
    let mut asked = false;
    let termination = sys::termination_descriptor().named("listening for signals")?;
    tell(&Report::Ready);
    sys::place_descriptor(&null, 1).named("closing standard output")?;
    watch.lap("ready");
    sys::release_own_code();
    wait(&child, &termination, &mut asked).named("waiting for the guest")?;
    end(&spec, &child, asked)
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
fn keep_numbers_free() -> io::Result<OwnedFd> {
    let null = open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    // Above both: whatever has such a number already stays open only here, and is replaced.
    let null = rustix::io::fcntl_dupfd_cloexec(null, STATE_FD + 1)?;
    for number in [LISTEN_FD, STATE_FD] {
        sys::place_descriptor(&null, number)?;
    }
    Ok(null)
}

/// The lock tells others that this sandbox has an owner, and which process it is. It holds while the file is open.
fn read_locked(path: &Path) -> Result<(LaunchSpec, File), LaunchError> {
    let opening = || format!("opening {}", path.display());
    let mut file = OpenOptions::new().read(true).write(true).open(path).step(opening)?;
    fcntl_lock(&file, FlockOperation::NonBlockingLockExclusive)
        .step(|| format!("locking {}", path.display()))?;
    if file.metadata().step(opening)?.nlink() == 0 {
        return Err(LaunchError::new(
            opening(),
            io::Error::new(io::ErrorKind::NotFound, "the sandbox was removed"),
        ));
    }
    let mut text = Vec::new();
    file.read_to_end(&mut text).step(|| format!("reading {}", path.display()))?;
    let spec = serde_json::from_slice(&text)
        .map_err(io::Error::other)
        .step(|| format!("reading {}", path.display()))?;
    Ok((spec, file))
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
    match sys::clone_into_namespaces(Namespaces::All, birthplace.as_ref().map(AsFd::as_fd))
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
) -> Result<(), LaunchError> {
    users::map(child.pid, &spec.users, slot)?;
    child.channel.say(Word::Mapped, &[]).named("telling of user ids")?;
    watch.lap("users mapped");
    let mut loop_device = None;
    // An ordinary user may open mounts only where it is root: there the child does it.
    if let (Users::Ranges(slots), Some(slot)) = (&spec.users, slot) {
        loop_device = send_layers(spec, users::first_of_range(slots, slot), child, watch)?;
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
    let started = process::started(child.pid).ok_or_else(|| io::Error::other("it is gone"));
    let running = Running {
        guest_pid: child.pid.unsigned_abs(),
        guest_started: started.named("looking at the guest")?,
        loop_device,
    };
    write_json(&spec.directory.join(RUNNING_FILE), &running)
}

/// Opens what only the owner may open and hands it over.
fn send_layers(
    spec: &LaunchSpec,
    first_uid: u32,
    child: &Child,
    watch: &mut Stopwatch,
) -> Result<Option<u32>, LaunchError> {
    let users = open_namespace(child.pid, "user")?;
    // A socket belongs to the network namespace that it was made in, and its holder can look into that one. So the owner
    // enters the sandbox's first, and stays there: it needs no network.
    let network = open_namespace(child.pid, "net")?;
    move_into_link_name_space(network.as_fd(), Some(LinkNameSpaceType::Network))
        .named("entering the sandbox's network")?;
    let layers = Layers::open(spec, Ids::Mapped { users: users.as_fd(), first_uid })?;
    watch.lap("layers opened");
    child.channel.say(Word::Layers, &layers.descriptors()).named("handing over layers")?;
    Ok(layers.loop_device)
}

fn open_namespace(pid: i32, kind: &str) -> Result<OwnedFd, LaunchError> {
    let path = format!("/proc/{pid}/ns/{kind}");
    open(&path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).step(|| format!("opening {path}"))
}

/// Waits for the guest's end; copies its messages to the log, up to a limit; passes the wish to end on.
fn wait(child: &Child, termination: &OwnedFd, asked: &mut bool) -> io::Result<()> {
    let mut budget = LOG_LIMIT;
    let mut log_open = true;
    loop {
        let mut watched = vec![
            PollFd::new(&child.pidfd, PollFlags::IN),
            PollFd::new(termination, if *asked { PollFlags::empty() } else { PollFlags::IN }),
        ];
        if log_open {
            watched.push(PollFd::new(&child.log, PollFlags::IN));
        }
        match poll(&mut watched, None) {
            Err(rustix::io::Errno::INTR) => continue,
            other => other?,
        };
        let ready: Vec<bool> = watched.iter().map(|entry| !entry.revents().is_empty()).collect();
        if ready[0] {
            return Ok(());
        }
        if ready[1] && !*asked {
            *asked = true;
            pidfd_send_signal(&child.pidfd, Signal::KILL)?;
        }
        if ready.get(2) == Some(&true) {
            log_open = copy_log(&child.log, &mut budget);
        }
    }
}

/// Whether there may be more.
fn copy_log(log: &OwnedFd, budget: &mut usize) -> bool {
    let mut bytes = [0; 4096];
    let Ok(count @ 1..) = rustix::io::read(log, &mut bytes) else { return false };
    let kept = count.min(*budget);
    *budget -= kept;
    // A full disk must not stop the guest from talking.
    let _ = io::stderr().write_all(&bytes[..kept]);
    true
}

/// Collects the guest, records how it ended, and removes the control group and the socket.
fn end(spec: &LaunchSpec, child: &Child, asked: bool) -> Result<(), LaunchError> {
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
    let usage = spec.cgroup.as_ref().map_or_else(CgroupUsage::default, crate::cgroup::Group::usage);
    let recorded = write_json(&spec.directory.join(ENDED_FILE), &EndRecord { end, asked, usage });
    // The socket may never have been made, or the backend may have been faster.
    let _ = fs::remove_file(&spec.socket);
    if let Some(group) = &spec.cgroup {
        group.remove(GROUP_PATIENCE)?;
    }
    recorded
}

/// Writes a record so that it appears as a whole or not at all.
fn write_json(path: &Path, record: &impl serde::Serialize) -> Result<(), LaunchError> {
    let partial = path.with_extension("partial");
    let write = || -> io::Result<()> {
        fs::write(&partial, serde_json::to_vec(record)?)?;
        fs::rename(&partial, path)
    };
    write().step(|| format!("writing {}", path.display()))
}
