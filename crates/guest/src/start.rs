//! Prepares the process and starts all long-running tasks.

use std::cell::{Cell, RefCell};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

use rustix::fs::{Mode, OFlags};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::{Notify, watch};
use tokio::task::{LocalSet, spawn_local};

use crate::arguments::{Egress, LinkAccess, Listen, Serve, State};
use crate::desktop::Desktop;
use crate::error::GuestError;
use crate::files::Files;
use crate::files::resolve::Workspace;
use crate::files::worker::Workers;
use crate::forker::Forker;
use crate::guest::Guest;
use crate::journal::Journal;
use crate::kernels::Kernels;
use crate::random::random_hex;
use crate::reap::Reaper;
use crate::resources::Resources;
use crate::services::Services;
use crate::spawn::Spawner;
use crate::sys;
use crate::{connect_redirect, egress, home, idle_memory, kernels, serve};

/// Runs the guest until the process is killed.
pub(crate) fn serve(options: Serve) -> Result<(), GuestError> {
    sys::harden_process();
    sys::close_others(inherited(&options));
    let state = open_state(&options.state)?;
    let null = fill_standard_descriptors()?;
    let is_root = rustix::process::geteuid().is_root();
    let agent = is_root.then_some(options.agent).filter(|agent| agent.uid != 0);
    if agent.is_some() {
        sys::clear_groups();
    }
    let journal = Journal::open(&state)?;
    restrict_access(&state, options.link_access)?;
    rustix::process::umask(Mode::from_raw_mode(0o022));
    // Block these signals before threads start, so that no thread receives them.
    let signals = sys::child_signals().map_err(GuestError::io("listening for ended children"))?;
    let workspace = Arc::new(Workspace::open(&options.workspace)?);
    if let Some(home) = &options.home {
        home::create_folders(home, agent);
    }
    let workers = Workers::start(agent)?;
    let (forker, notifications) = match &options.landlock_only {
        Some(landlock_only) => Forker::landlock_only_forker(landlock_only)
            .map(|(forker, notifications)| (forker, Some(notifications)))?,
        None if agent.is_some() => (Forker::OnCallingThread, None),
        None => (Forker::start_fork_thread()?, None),
    };
    let directory = options.workspace.to_string_lossy().into_owned();
    let spawner = Spawner { agent, forker, directory, null, landlock_only: options.landlock_only };
    let files = Files { workspace, workers };
    let resources = Rc::new(Resources { journal, spawner, reaper: Reaper::default(), files });
    let services = Rc::new(Services::new(Rc::clone(&resources)));
    let guest = Rc::new(Guest {
        boot_id: random_hex().map_err(GuestError::io("reading random bytes"))?,
        kernels: Rc::new(Kernels::new(Rc::clone(&resources))),
        desktop: Rc::new(Desktop::new(Rc::clone(&resources), Rc::clone(&services))),
        resources,
        services,
        newest_link: watch::Sender::new(None),
        request_served: Notify::new(),
        link_owner: RefCell::default(),
        egress_connections: Cell::new(0),
    });
    let entrance = options.egress.map(open_egress_listener).transpose()?;
    // Listen last: a client that connects finds everything ready.
    let listener = listen(options.listen, options.link_access)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(GuestError::io("starting the event loop"))?;
    LocalSet::new()
        .block_on(&runtime, run(guest, listener, signals, EgressSources { entrance, notifications }))
}

/// The sources of outgoing connections.
struct EgressSources {
    /// The listener of the egress proxy port.
    entrance: Option<std::net::TcpListener>,
    /// The seccomp listener for `connect` calls.
    notifications: Option<OwnedFd>,
}

async fn run(
    guest: Rc<Guest>,
    listener: std::os::unix::net::UnixListener,
    signals: OwnedFd,
    egress_sources: EgressSources,
) -> Result<(), GuestError> {
    let signals = sys::register(signals).map_err(GuestError::io("listening for ended children"))?;
    let listener = UnixListener::from_std(listener).map_err(GuestError::io("listening for links"))?;
    if let Some(entrance) = egress_sources.entrance {
        let port = entrance.local_addr().map_err(GuestError::io("asking for the entrance's port"))?.port();
        if let Some(notifications) = egress_sources.notifications {
            let notifications = sys::register(notifications)
                .map_err(GuestError::io("listening for questions of the kernel"))?;
            spawn_local(connect_redirect::answer(notifications, port));
        }
        let entrance =
            TcpListener::from_std(entrance).map_err(GuestError::io("listening for outgoing connections"))?;
        spawn_local(egress::accept(Rc::clone(&guest), entrance));
    }
    // Without namespaces, the name of the abstract socket would be visible on the whole host.
    if guest.resources.spawner.landlock_only.is_none()
        && let Ok(provisioner) = kernels::provisioner::open()
    {
        spawn_local(kernels::provisioner::answer(Rc::clone(&guest.kernels), provisioner));
    }
    spawn_local(idle_memory::watch(Rc::clone(&guest)));
    let reaper = guest.resources.reaper.clone();
    tokio::join!(reaper.run(signals), serve::accept(guest, listener));
    Ok(())
}

fn inherited(options: &Serve) -> Vec<RawFd> {
    let listen = match options.listen {
        Listen::Descriptor(fd) => Some(fd),
        Listen::Path(_) => None,
    };
    let state = match options.state {
        State::Descriptor(fd) => Some(fd),
        State::Path(_) => None,
    };
    let egress = match options.egress {
        Some(Egress::Descriptor(fd)) => Some(fd),
        Some(Egress::Port(_)) | None => None,
    };
    listen.into_iter().chain(state).chain(egress).collect()
}

/// Returns a path to the state directory that only this process can resolve.
fn open_state(state: &State) -> Result<PathBuf, GuestError> {
    match state {
        State::Path(path) => Ok(path.clone()),
        State::Descriptor(fd) => {
            let directory =
                sys::inherit(*fd).map_err(GuestError::io(format!("taking over descriptor {fd}")))?;
            // Keep the descriptor open for the life of the process: the directory is reachable only through it.
            std::mem::forget(directory);
            Ok(format!("/proc/self/fd/{fd}").into())
        }
    }
}

/// Opens `/dev/null` for each of the descriptors 0, 1 and 2 that is closed, and once more above them.
fn fill_standard_descriptors() -> Result<OwnedFd, GuestError> {
    loop {
        let opened = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty());
        let null = opened.map_err(GuestError::io("opening /dev/null"))?;
        if null.as_raw_fd() > 2 {
            return Ok(null);
        }
        // Keep it open for the life of the process.
        std::mem::forget(null);
    }
}

fn open_egress_listener(egress: Egress) -> Result<std::net::TcpListener, GuestError> {
    let (bound, place) = match egress {
        Egress::Port(port) => {
            (std::net::TcpListener::bind((std::net::Ipv4Addr::LOCALHOST, port)), format!("port {port}"))
        }
        Egress::Descriptor(fd) => {
            (sys::inherit(fd).map(std::net::TcpListener::from), format!("descriptor {fd}"))
        }
    };
    let bound = bound.and_then(|listener| listener.set_nonblocking(true).map(|()| listener));
    bound.map_err(GuestError::io(format!("listening for outgoing connections on {place}")))
}

fn listen(listen: Listen, access: LinkAccess) -> Result<std::os::unix::net::UnixListener, GuestError> {
    let listener = match listen {
        Listen::Descriptor(fd) => {
            let fd = sys::inherit(fd).map_err(GuestError::io(format!("taking over descriptor {fd}")))?;
            std::os::unix::net::UnixListener::from(fd)
        }
        Listen::Path(path) => {
            bind(&path, access).map_err(GuestError::io(format!("listening on {}", path.display())))?
        }
    };
    listener.set_nonblocking(true).map_err(GuestError::io("listening for links"))?;
    Ok(listener)
}

/// Binds a socket that only the guest's own user can reach, or also the group of its directory.
fn bind(path: &Path, access: LinkAccess) -> std::io::Result<std::os::unix::net::UnixListener> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let closed = match access {
        LinkAccess::User => 0o177,
        LinkAccess::Group => 0o117,
    };
    let before = rustix::process::umask(Mode::from_raw_mode(closed));
    let listener = std::os::unix::net::UnixListener::bind(path);
    rustix::process::umask(before);
    listener
}

/// Denies other users access to the state directory.
fn restrict_access(state: &Path, access: LinkAccess) -> Result<(), GuestError> {
    let doing = || format!("closing {} to others", state.display());
    let found = std::fs::metadata(state).map_err(GuestError::io(doing()))?.permissions().mode();
    // The group may keep the execute permission, which leads to the socket, but must not list or write the directory.
    let closed = match access {
        LinkAccess::User => 0o077,
        LinkAccess::Group => 0o067,
    };
    if found & closed == 0 {
        return Ok(());
    }
    let kept = std::fs::Permissions::from_mode(found & 0o7777 & !closed);
    std::fs::set_permissions(state, kept).map_err(GuestError::io(doing()))
}
