//! A sandbox without namespaces: Landlock and seccomp keep it away from the host's files, processes and network.
//!
//! The owner adopts orphaned processes, and every process carries a [`mark`], so none can escape. If the owner is
//! root, the sandbox has its own user id; otherwise it shares the owner's.

use std::convert::Infallible;
use std::fs;
use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, fchown};
use std::os::unix::net::UnixListener;

use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible, NetPort, PathBeneath, PathFd,
    Ruleset, RulesetAttr, RulesetCreatedAttr, Scope,
};
use rustix::fs::{Mode, OFlags, open};
use rustix::process::{
    PidfdFlags, Resource, Rlimit, Signal, getrlimit, pidfd_open, set_child_subreaper,
    set_parent_process_death_signal, setrlimit,
};
use rustix::thread::{CapabilitySet, Gid, Uid, set_thread_groups, set_thread_res_gid, set_thread_res_uid};

use crate::channel::{self, Message};
use crate::child::{self, Child, InheritedFds};
use crate::error::{LaunchError, Step};
use crate::privileges;
use crate::process;
use crate::process_mark;
use crate::slot::Slot;
use crate::spec::{GUEST_DIRECTORY, LISTEN_FD, LandlockOnly, LaunchSpec, PROXY_FD, Running, STATE_FD, Users};
use crate::sys;
use crate::users;

/// The first Landlock ABI version that restricts signals; it also covers TCP, device ioctls and truncation.
pub const MIN_LANDLOCK_ABI: i32 = 6;
/// Where pseudo-terminals come from. The guest opens them for the processes that it runs, which may not.
const TERMINALS: [&str; 2] = ["/dev/ptmx", "/dev/pts"];

/// Descriptors and identity that the guest gets.
struct GuestFds {
    /// The link's listening socket.
    listener: OwnedFd,
    /// The directory of the guest's journal.
    state: OwnedFd,
    /// The listener for outgoing connections.
    entrance: TcpListener,
    /// The user that the guest switches to, if the owner is root.
    user: Option<u32>,
}

/// Forks the first process, which then waits for [`set_up`].
pub(crate) fn clone_child(
    spec: &LaunchSpec,
    landlock_only: &LandlockOnly,
    slot: Option<&Slot>,
    null: BorrowedFd<'_>,
) -> Result<Child, LaunchError> {
    let own = rustix::process::getpid();
    set_child_subreaper(Some(own)).named("becoming the parent of what loses its own")?;
    let guest_fds = GuestFds::open(spec, slot)?;
    let guest = open(&spec.guest, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
        .step(|| format!("opening {}", spec.guest.display()))?;
    let (log, log_writer) =
        rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).named("making the log's pipe")?;
    let (ours, theirs) = channel::pair().named("making a channel")?;
    let null = null.try_clone_to_owned().named("copying /dev/null")?;
    let Some(pid) = sys::fork().named("forking")? else {
        drop(ours);
        let inherited = InheritedFds { channel: theirs, guest, log: log_writer, null };
        let Err(error) = become_guest(spec, landlock_only, &inherited, &guest_fds);
        inherited.channel.report_error(&error);
        sys::exit_now(1)
    };
    let pidfd = pidfd_open(pid, PidfdFlags::empty()).named("opening a handle of the first process")?;
    Ok(Child { pid: pid.as_raw_nonzero().get(), pidfd, channel: ours, log })
}

/// Moves the first process into its cgroup and waits until it has become the guest.
pub(crate) fn set_up(spec: &LaunchSpec, child: &Child) -> Result<Running, LaunchError> {
    if let Some(group) = &spec.cgroup {
        group.create(&spec.limits)?;
        group.add_process(child.pid)?;
    }
    child.channel.send_message(Message::Limited, &[]).named("telling of limits")?;
    if let Some(reported_error) = child.reported_error() {
        return Err(reported_error);
    }
    let started = process::started(child.pid).ok_or_else(|| io::Error::other("it is gone"));
    let guest_started = started.named("looking at the guest")?;
    let guest_pid = child.pid.unsigned_abs();
    let network = spec.network;
    Ok(Running { guest_pid, guest_started, loop_device: None, network, syncs_disk: false })
}

impl GuestFds {
    fn open(spec: &LaunchSpec, slot: Option<&Slot>) -> Result<Self, LaunchError> {
        let user = match (&spec.users, slot) {
            (Users::Ranges(slots), Some(slot)) => Some(users::first_of_range(slots, slot)),
            _ => None,
        };
        let listener =
            UnixListener::bind(&spec.socket).step(|| format!("listening at {}", spec.socket.display()))?;
        let entrance =
            TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).named("listening for outgoing connections")?;
        let path = spec.directory.join(GUEST_DIRECTORY);
        let state = open(&path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
            .step(|| format!("opening {}", path.display()))?;
        if let Some(user) = user {
            fchown(&state, Some(user), Some(user))
                .step(|| format!("changing the owner of {}", path.display()))?;
        }
        Ok(Self { listener: listener.into(), state, entrance, user })
    }
}

fn become_guest(
    spec: &LaunchSpec,
    landlock_only: &LandlockOnly,
    inherited: &InheritedFds,
    guest_fds: &GuestFds,
) -> Result<Infallible, LaunchError> {
    let port = guest_fds.entrance.local_addr().named("asking for the entrance's port")?.port();
    if let Some(user) = guest_fds.user {
        chown_tree(landlock_only, user)?;
        // Must precede the change of user, which removes the required privilege.
        privileges::drop_capabilities(CapabilitySet::SETUID | CapabilitySet::SETGID)
            .named("dropping capabilities")?;
    }
    set_limits(spec, landlock_only, guest_fds.user)?;
    if let Some(user) = guest_fds.user {
        take_identity(user).step(|| format!("becoming user {user}"))?;
    }
    // Must follow the change of user, which clears the setting. If the owner is already gone, the next message never
    // arrives.
    set_parent_process_death_signal(Some(Signal::KILL)).named("tying the sandbox to its launcher")?;
    inherited.channel.recv(Message::Limited).named("waiting for limits")?;
    rustix::thread::set_no_new_privs(true).named("setting no_new_privs")?;
    restrict(landlock_only, inherited.guest.as_fd(), guest_fds.state.as_fd(), port)
        .map_err(io::Error::other)
        .named("applying Landlock")?;
    privileges::install_filter(spec)?;
    let entrance = guest_fds.entrance.try_clone().map(OwnedFd::from).named("copying the entrance")?;
    let placed = [(&guest_fds.listener, LISTEN_FD), (&guest_fds.state, STATE_FD), (&entrance, PROXY_FD)];
    child::execute(spec, inherited, &placed)
}

/// Root created the tree, and it is empty except for its top-level directories.
fn chown_tree(landlock_only: &LandlockOnly, user: u32) -> Result<(), LaunchError> {
    let give = |path: &std::path::Path| {
        rustix::fs::chown(path, Some(Uid::from_raw(user)), Some(Gid::from_raw(user)))
            .step(|| format!("changing the owner of {}", path.display()))
    };
    give(&landlock_only.tree)?;
    let entries =
        fs::read_dir(&landlock_only.tree).step(|| format!("reading {}", landlock_only.tree.display()))?;
    entries.flatten().try_for_each(|entry| give(&entry.path()))
}

fn take_identity(user: u32) -> rustix::io::Result<()> {
    let (uid, gid) = (Uid::from_raw(user), Gid::from_raw(user));
    set_thread_groups(&[])?;
    set_thread_res_gid(gid, gid, gid)?;
    set_thread_res_uid(uid, uid, uid)
}

fn set_limits(spec: &LaunchSpec, landlock_only: &LandlockOnly, user: Option<u32>) -> Result<(), LaunchError> {
    // A hard limit can only be lowered.
    let at_most = |resource, value: u64| {
        let value = getrlimit(resource).maximum.map_or(value, |most| most.min(value));
        setrlimit(resource, Rlimit { current: Some(value), maximum: Some(value) })
    };
    at_most(Resource::Nofile, spec.limits.open_files).named("limiting open files")?;
    at_most(Resource::Core, 0).named("forbidding core dumps")?;
    at_most(Resource::Data, spec.limits.memory_bytes).named("limiting the memory of one process")?;
    // RLIMIT_NPROC counts all processes of a user. A dedicated user has only those of the sandbox.
    let others = if user.is_some() { 0 } else { threads_of_this_user() };
    at_most(Resource::Nproc, spec.limits.pids.saturating_add(others)).named("limiting processes")?;
    process_mark::apply_mark(landlock_only.mark).named("marking the sandbox's processes (RLIMIT_RTTIME)")
}

fn threads_of_this_user() -> u64 {
    const THREADS_AFTER_NAME: usize = 17;
    let own = rustix::process::geteuid().as_raw();
    let threads = |entry: fs::DirEntry| -> Option<u64> {
        entry.file_name().to_str()?.parse::<i32>().ok()?;
        if entry.metadata().ok()?.uid() != own {
            return None;
        }
        let stat = fs::read_to_string(entry.path().join("stat")).ok()?;
        let (_, fields) = stat.rsplit_once(')')?;
        fields.split_whitespace().nth(THREADS_AFTER_NAME)?.parse().ok()
    };
    fs::read_dir("/proc").into_iter().flatten().flatten().filter_map(threads).sum()
}

/// Restricts what the guest may access. The guest restricts the processes that it runs further.
fn restrict(
    landlock_only: &LandlockOnly,
    guest: BorrowedFd<'_>,
    state: BorrowedFd<'_>,
    port: u16,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let all = AccessFs::from_all(ABI::V5);
    let device = AccessFs::ReadFile | AccessFs::WriteFile | AccessFs::IoctlDev;
    let mut rules = Ruleset::default()
        .set_compatibility(CompatLevel::HardRequirement)
        .handle_access(all)?
        .handle_access(AccessNet::from_all(ABI::V4))?
        .scope(Scope::from_all(ABI::V6))?
        .create()?
        .add_rule(PathBeneath::new(guest, AccessFs::Execute | AccessFs::ReadFile))?
        .add_rule(PathBeneath::new(state, all))?
        .add_rule(PathBeneath::new(PathFd::new(&landlock_only.tree)?, all & !special_files()))?
        .add_rule(PathBeneath::new(PathFd::new("/proc")?, AccessFs::ReadFile | AccessFs::ReadDir))?
        .add_rule(NetPort::new(port, AccessNet::ConnectTcp))?;
    for path in &landlock_only.readable {
        let rights =
            if path.is_dir() { AccessFs::from_read(ABI::V5) } else { AccessFs::ReadFile | AccessFs::Execute };
        rules = rules.add_rule(PathBeneath::new(PathFd::new(path)?, rights))?;
    }
    for path in &landlock_only.devices {
        rules = rules.add_rule(PathBeneath::new(PathFd::new(path)?, device))?;
    }
    for path in TERMINALS {
        if let Ok(terminals) = PathFd::new(path) {
            rules = rules.add_rule(PathBeneath::new(terminals, device))?;
        }
    }
    rules.restrict_self()?;
    Ok(())
}

fn special_files() -> BitFlags<AccessFs> {
    AccessFs::MakeChar | AccessFs::MakeBlock
}
