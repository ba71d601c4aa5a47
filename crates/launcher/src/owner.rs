//! The owner of a sandbox: makes it, waits for its end, and leaves a record.
//!
//! It outlives the server that started it. Killing it kills the sandbox: the first process is tied to it by a death
//! signal, every other process dies with the first, and mounts and the loop device go with them.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, fchown};
use std::path::Path;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{CWD, FlockOperation, Mode, OFlags, fcntl_lock, open};
use rustix::mount::{OpenTreeFlags, open_tree};
use rustix::process::{Pid, Signal, WaitOptions, pidfd_send_signal, waitpid};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::cgroup::{CgroupUsage, Hierarchy};
use crate::channel::{self, Channel, Word};
use crate::child::{self, Inheritance};
use crate::disk;
use crate::error::{LaunchError, Step};
use crate::slot::{self, Slot};
use crate::spec::{
    ENDED_FILE, EndRecord, GUEST_DIRECTORY, GuestEnd, LISTEN_FD, LaunchSpec, RUNNING_FILE, Report, Running,
    UIDS_PER_SANDBOX,
};
use crate::sys::{self, Cloned};
use crate::trace::Stopwatch;

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
    let null = keep_listen_number_free().named("opening /dev/null")?;
    // A session of its own: signals to the server's terminal do not come here.
    let _ = rustix::process::setsid();
    let (spec, _lock) = read_locked(file)?;
    let mut watch = Stopwatch::start("owner", spec.trace);
    let slot = slot::take(&spec.slots)?;
    let child = give_birth(&spec, null.as_fd(), &watch)?;
    watch.lap("child born");
    let result = set_up(&spec, &slot, &child, &mut watch);
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

/// Descriptors opened later must not get the number that the guest's socket will have.
fn keep_listen_number_free() -> io::Result<OwnedFd> {
    let null = || open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty());
    let first = null()?;
    if first.as_raw_fd() == LISTEN_FD {
        // Given away for good: the number stays taken until exec.
        std::mem::forget(first);
        return Ok(null()?);
    }
    sys::place_descriptor(&first, LISTEN_FD)?;
    Ok(first)
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
    match sys::clone_into_namespaces(birthplace.as_ref().map(AsFd::as_fd)).named("making namespaces")? {
        Cloned::Owner { pid, pidfd } => Ok(Child { pid, pidfd, channel: ours, log }),
        Cloned::Child => {
            drop(ours);
            let inheritance = Inheritance { channel: theirs, guest, log: log_writer, null };
            child::live(spec, &inheritance, watch.shared_with("child"))
        }
    }
}

fn set_up(spec: &LaunchSpec, slot: &Slot, child: &Child, watch: &mut Stopwatch) -> Result<(), LaunchError> {
    map_users(child.pid, slot.first_uid)?;
    child.channel.say(Word::Mapped, &[]).named("telling of user ids")?;
    watch.lap("users mapped");
    let loop_device = send_layers(spec, slot, child, watch)?;
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
    let running = Running { guest_pid: child.pid.unsigned_abs(), first_uid: slot.first_uid, loop_device };
    write_json(&spec.directory.join(RUNNING_FILE), &running)
}

fn map_users(pid: i32, first_uid: u32) -> Result<(), LaunchError> {
    let map = format!("0 {first_uid} {UIDS_PER_SANDBOX}");
    for file in ["uid_map", "gid_map"] {
        fs::write(format!("/proc/{pid}/{file}"), &map).step(|| format!("writing {file}"))?;
    }
    Ok(())
}

/// Opens what only the owner may open and hands it over; the child's user namespace decides whose files they show.
fn send_layers(
    spec: &LaunchSpec,
    slot: &Slot,
    child: &Child,
    watch: &mut Stopwatch,
) -> Result<Option<u32>, LaunchError> {
    let users = open_namespace(child.pid, "user")?;
    let listener = listen(spec, child.pid)?;
    watch.lap("listening");
    let read_only = libc::MOUNT_ATTR_RDONLY | libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NODEV;
    let lower = clone_tree(&spec.root.lower)?;
    sys::set_mount_attributes(&lower, read_only, Some(users.as_fd()))
        .step(|| format!("mapping the ids of {}", spec.root.lower.display()))?;
    let mut binds = Vec::new();
    for bind in &spec.root.binds {
        let mount = clone_tree(&bind.source)?;
        // Where the file system cannot map ids the files belong to nobody inside, which is enough to read them.
        sys::set_mount_attributes(&mount, read_only, Some(users.as_fd()))
            .or_else(|_| sys::set_mount_attributes(&mount, read_only, None))
            .step(|| format!("making {} read-only", bind.source.display()))?;
        binds.push(mount);
    }
    let guest = open_guest_directory(spec, slot)?;
    watch.lap("trees opened");
    let disk = disk::open(&spec.disk)?;
    sys::set_mount_attributes(&disk.mount, 0, Some(users.as_fd())).named("mapping the ids of the disk")?;
    watch.lap("disk opened");
    let mut descriptors = vec![listener.as_fd(), disk.mount.as_fd(), lower.as_fd(), guest.as_fd()];
    descriptors.extend(binds.iter().map(AsFd::as_fd));
    child.channel.say(Word::Layers, &descriptors).named("handing over layers")?;
    Ok(disk.loop_device)
}

fn open_namespace(pid: i32, kind: &str) -> Result<OwnedFd, LaunchError> {
    let path = format!("/proc/{pid}/ns/{kind}");
    open(&path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).step(|| format!("opening {path}"))
}

/// A socket belongs to the network namespace that it was made in, and its holder can look into that one. So the owner
/// enters the sandbox's first, and stays there: it needs no network.
fn listen(spec: &LaunchSpec, pid: i32) -> Result<std::os::unix::net::UnixListener, LaunchError> {
    let network = open_namespace(pid, "net")?;
    move_into_link_name_space(network.as_fd(), Some(LinkNameSpaceType::Network))
        .named("entering the sandbox's network")?;
    std::os::unix::net::UnixListener::bind(&spec.socket)
        .step(|| format!("listening at {}", spec.socket.display()))
}

fn clone_tree(path: &Path) -> Result<OwnedFd, LaunchError> {
    open_tree(CWD, path, OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC)
        .step(|| format!("opening {}", path.display()))
}

/// Ids are not mapped here: what the guest writes to the host's own file system must never belong to a user of the host.
fn open_guest_directory(spec: &LaunchSpec, slot: &Slot) -> Result<OwnedFd, LaunchError> {
    let path = spec.directory.join(GUEST_DIRECTORY);
    let directory = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_DIRECTORY | libc::O_NOFOLLOW)
        .open(&path)
        .step(|| format!("opening {}", path.display()))?;
    fchown(&directory, Some(slot.first_uid), Some(slot.first_uid))
        .step(|| format!("changing the owner of {}", path.display()))?;
    let mount = clone_tree(&path)?;
    let sealed = libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NODEV | libc::MOUNT_ATTR_NOEXEC;
    sys::set_mount_attributes(&mount, sealed, None).step(|| format!("sealing {}", path.display()))?;
    Ok(mount)
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
