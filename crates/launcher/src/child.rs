//! The first process of a sandbox, from its birth in new namespaces until it becomes the guest.

use std::convert::Infallible;
use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use rustix::process::{Resource, Rlimit, Signal, set_parent_process_death_signal, setrlimit};
use rustix::thread::{Gid, Uid, set_thread_groups, set_thread_res_gid, set_thread_res_uid};

use crate::cgroup;
use crate::channel::{Channel, Word};
use crate::error::{LaunchError, Step};
use crate::mounts::{self, Layers};
use crate::privileges;
use crate::spec::{LISTEN_FD, LaunchSpec};
use crate::sys;
use crate::trace::Stopwatch;

/// What the first process has from its owner by birth.
pub(crate) struct Inheritance {
    /// The way to the owner.
    pub(crate) channel: Channel,
    /// The guest's program.
    pub(crate) guest: OwnedFd,
    /// Where the guest's own messages go.
    pub(crate) log: OwnedFd,
    /// `/dev/null`.
    pub(crate) null: OwnedFd,
}

/// Becomes the guest. On failure the owner is told, and the process ends.
pub(crate) fn live(spec: &LaunchSpec, inheritance: &Inheritance, watch: Stopwatch) -> ! {
    let Err(error) = become_guest(spec, inheritance, watch);
    inheritance.channel.complain(&error);
    sys::leave(1)
}

fn become_guest(
    spec: &LaunchSpec,
    inheritance: &Inheritance,
    mut watch: Stopwatch,
) -> Result<Infallible, LaunchError> {
    let channel = &inheritance.channel;
    channel.hear(Word::Mapped).named("waiting for user ids")?;
    take_root_identity().named("becoming user 0 of the namespace")?;
    // After the change of user, which clears it. Should the owner be gone already, the next word never comes.
    set_parent_process_death_signal(Some(Signal::KILL)).named("tying the sandbox to its launcher")?;
    watch.lap("identity");
    let parts = mounts::prepare(spec)?;
    rustix::system::sethostname(b"caisson").named("setting the host name")?;
    let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)
        .named("opening a socket")?;
    sys::raise_loopback(&socket).named("raising the loopback device")?;
    set_limits(spec)?;
    watch.lap("parts");

    let mut descriptors = channel.hear(Word::Layers).named("waiting for layers")?.into_iter();
    let mut next =
        || descriptors.next().ok_or_else(|| io::Error::other("too few descriptors")).named("taking layers");
    let (listener, disk, lower, guest) = (next()?, next()?, next()?, next()?);
    let layers = Layers { disk, lower, guest, binds: descriptors.collect() };
    watch.lap("layers came");
    mounts::enter(spec, &layers, &parts)?;
    drop((layers, parts, socket));
    watch.lap("root entered");

    for door in channel.hear(Word::Limited).named("waiting for limits")? {
        cgroup::pass(&door)?;
    }
    sys::enter_cgroup_namespace().named("entering a cgroup namespace")?;
    watch.lap("limits came");
    privileges::give_up(spec, inheritance.guest.as_fd())?;
    watch.lap("privileges given up");
    execute(spec, inheritance, &listener)
}

fn take_root_identity() -> rustix::io::Result<()> {
    set_thread_groups(&[])?;
    set_thread_res_gid(Gid::ROOT, Gid::ROOT, Gid::ROOT)?;
    set_thread_res_uid(Uid::ROOT, Uid::ROOT, Uid::ROOT)
}

fn set_limits(spec: &LaunchSpec) -> Result<(), LaunchError> {
    let exactly = |value| Rlimit { current: Some(value), maximum: Some(value) };
    setrlimit(Resource::Nofile, exactly(spec.limits.open_files)).named("limiting open files")?;
    setrlimit(Resource::Core, exactly(0)).named("forbidding core dumps")
}

fn execute(
    spec: &LaunchSpec,
    inheritance: &Inheritance,
    listener: &OwnedFd,
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
        "LANG=C.UTF-8".into(),
    ])?;
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    place_descriptors(inheritance, listener).named("placing the guest's descriptors")?;
    Err(LaunchError::new("executing the guest", sys::execute(&inheritance.guest, &arguments, &environment)))
}

/// Only the standard three and the listening socket survive. The owner has kept the socket's number free from the start.
fn place_descriptors(inheritance: &Inheritance, listener: &OwnedFd) -> io::Result<()> {
    sys::place_descriptor(&inheritance.null, 0)?;
    sys::place_descriptor(&inheritance.log, 1)?;
    sys::place_descriptor(&inheritance.log, 2)?;
    sys::close_on_exec_from(LISTEN_FD as u32)?;
    sys::place_descriptor(listener, LISTEN_FD)
}
