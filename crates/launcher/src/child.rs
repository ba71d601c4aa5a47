//! The first process of a sandbox, from its clone into new namespaces until it becomes the guest.

use std::convert::Infallible;
use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use rustix::process::{Resource, Rlimit, Signal, getrlimit, set_parent_process_death_signal, setrlimit};
use rustix::thread::{Gid, Uid, set_thread_groups, set_thread_res_gid, set_thread_res_uid};

use crate::cgroup;
use crate::channel::{Channel, Message};
use crate::error::{LaunchError, Step};
use crate::layers::{Ids, Layers};
use crate::mounts;
use crate::privileges;
use crate::spec::{LISTEN_FD, LaunchSpec, Network, Report, STATE_FD, Users};
use crate::sys;
use crate::trace::Stopwatch;

/// What the first process inherits from its owner.
pub(crate) struct InheritedFds {
    /// Connects to the owner.
    pub(crate) channel: Channel,
    /// The guest executable.
    pub(crate) guest: OwnedFd,
    /// Receives the guest's log output.
    pub(crate) log: OwnedFd,
    pub(crate) null: OwnedFd,
}

/// The first process of the sandbox, as seen by its owner.
pub(crate) struct Child {
    pub(crate) pid: i32,
    pub(crate) pidfd: OwnedFd,
    pub(crate) channel: Channel,
    pub(crate) log: OwnedFd,
}

impl Child {
    /// Waits until the process has become the guest or exited; returns the error if it reported one.
    pub(crate) fn reported_error(&self) -> Option<LaunchError> {
        let Ok(Some(Report::Failed { step, cause, errno })) = self.channel.wait_for_guest() else {
            return None;
        };
        let source = errno.map_or_else(|| io::Error::other(cause), io::Error::from_raw_os_error);
        Some(LaunchError::new(step, source))
    }
}

/// Becomes the guest. On failure, reports the error to the owner and exits.
pub(crate) fn child_main(spec: &LaunchSpec, inherited: &InheritedFds, watch: Stopwatch) -> ! {
    let Err(error) = become_guest(spec, inherited, watch);
    inherited.channel.report_error(&error);
    sys::exit_now(1)
}

fn become_guest(
    spec: &LaunchSpec,
    inherited: &InheritedFds,
    mut watch: Stopwatch,
) -> Result<Infallible, LaunchError> {
    let channel = &inherited.channel;
    channel.recv(Message::Mapped).named("waiting for user ids")?;
    become_root(&spec.users).named("becoming user 0 of the namespace")?;
    // Must follow the change of user, which clears the setting. If the owner is already gone, the next message never
    // arrives.
    set_parent_process_death_signal(Some(Signal::KILL)).named("tying the sandbox to its launcher")?;
    watch.lap("identity");
    let parts = mounts::prepare(spec)?;
    rustix::system::sethostname(b"caisson").named("setting the host name")?;
    if spec.network == Network::Own {
        bring_up_loopback()?;
    }
    set_limits(spec)?;
    watch.lap("parts");

    let layers = match spec.users {
        Users::Ranges(_) => {
            Layers::received(spec, channel.recv(Message::Layers).named("waiting for layers")?)?
        }
        Users::Lent { .. } | Users::Single => Layers::open(spec, Ids::Own)?,
    };
    watch.lap("layers came");
    mounts::enter(spec, &layers, &parts)?;
    let Layers { listener, guest: state, .. } = layers;
    drop(parts);
    watch.lap("root entered");

    for task_file in channel.recv(Message::Limited).named("waiting for limits")? {
        cgroup::enter_v1(&task_file)?;
    }
    sys::enter_cgroup_namespace().named("entering a cgroup namespace")?;
    watch.lap("limits came");
    privileges::drop_privileges(spec, inherited.guest.as_fd(), state.as_fd())?;
    watch.lap("privileges given up");
    execute(spec, inherited, &[(&listener, LISTEN_FD), (&state, STATE_FD)])
}

fn bring_up_loopback() -> Result<(), LaunchError> {
    let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)
        .named("opening a socket")?;
    sys::bring_up_loopback(&socket).named("raising the loopback device")
}

pub(crate) fn become_root(users: &Users) -> rustix::io::Result<()> {
    // The kernel does not allow dropping groups if only the process's own id is mapped, because groups can deny
    // access.
    if !matches!(users, Users::Single) {
        set_thread_groups(&[])?;
    }
    set_thread_res_gid(Gid::ROOT, Gid::ROOT, Gid::ROOT)?;
    set_thread_res_uid(Uid::ROOT, Uid::ROOT, Uid::ROOT)
}

fn set_limits(spec: &LaunchSpec) -> Result<(), LaunchError> {
    let exactly = |value| Rlimit { current: Some(value), maximum: Some(value) };
    setrlimit(Resource::Nofile, exactly(spec.limits.open_files)).named("limiting open files")?;
    // RLIMIT_NPROC counts per user and user namespace, so other sandboxes of the same user do not count.
    let most = getrlimit(Resource::Nproc).maximum.map_or(spec.limits.pids, |most| most.min(spec.limits.pids));
    setrlimit(Resource::Nproc, exactly(most)).named("limiting processes")?;
    setrlimit(Resource::Core, exactly(0)).named("forbidding core dumps")
}

/// Executes the guest with the standard descriptors plus these at fixed numbers.
pub(crate) fn execute(
    spec: &LaunchSpec,
    inherited: &InheritedFds,
    placed: &[(&OwnedFd, i32)],
) -> Result<Infallible, LaunchError> {
    let strings = |texts: &[String]| -> Result<Vec<CString>, LaunchError> {
        texts
            .iter()
            .map(|text| CString::new(text.as_str()))
            .collect::<Result<_, _>>()
            .named("reading arguments")
    };
    let mut arguments = vec![CString::from(c"caisson-guest")];
    arguments.extend(strings(&spec.guest_arguments)?);
    let environment = strings(&[
        "PATH=/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin".into(),
        "LC_CTYPE=C.UTF-8".into(),
    ])?;
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    place_descriptors(inherited, placed).named("placing the guest's descriptors")?;
    Err(LaunchError::new("executing the guest", sys::execute(&inherited.guest, &arguments, &environment)))
}

/// Only the standard descriptors and those in `placed` survive. The owner has kept these numbers free.
fn place_descriptors(inherited: &InheritedFds, placed: &[(&OwnedFd, i32)]) -> io::Result<()> {
    sys::place_descriptor(&inherited.null, 0)?;
    sys::place_descriptor(&inherited.log, 1)?;
    sys::place_descriptor(&inherited.log, 2)?;
    sys::close_on_exec_from(LISTEN_FD as u32)?;
    placed.iter().try_for_each(|(descriptor, number)| sys::place_descriptor(descriptor, *number))
}
