//! Prepares the process and starts everything that runs for ever.

use std::cell::Cell;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

use rustix::fs::{Mode, OFlags};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::watch;
use tokio::task::{LocalSet, spawn_local};

use crate::arguments::{Listen, Serve, State};
use crate::calls::Journal;
use crate::error::GuestError;
use crate::fence::Forker;
use crate::files::resolve::Workspace;
use crate::files::worker::Workers;
use crate::guest::Guest;
use crate::reap::Reaper;
use crate::spawn::Spawner;
use crate::sys;
use crate::{egress, serve};

/// Is the guest until the process is killed.
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
    private(&state)?;
    rustix::process::umask(Mode::from_raw_mode(0o022));
    // Before the threads: they must not take these signals.
    let signals = sys::child_signals().map_err(GuestError::io("listening for ended children"))?;
    let workspace = Arc::new(Workspace::open(&options.workspace)?);
    let workers = Workers::start(agent)?;
    let forker = if agent.is_some() { Forker::Here } else { Forker::fenced()? };
    let spawner =
        Spawner { agent, forker, directory: options.workspace.to_string_lossy().into_owned(), null };
    let guest = Rc::new(Guest {
        boot_id: sys::random_hex(),
        journal,
        spawner,
        reaper: Reaper::default(),
        workspace,
        workers,
        newest_link: watch::Sender::new(None),
        egress_connections: Cell::new(0),
    });
    let entrance = options.egress_port.map(open_entrance).transpose()?;
    // Last: whoever can dial finds everything ready.
    let listener = listen(options.listen)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(GuestError::io("starting the event loop"))?;
    LocalSet::new().block_on(&runtime, run(guest, listener, signals, entrance))
}

async fn run(
    guest: Rc<Guest>,
    listener: std::os::unix::net::UnixListener,
    signals: OwnedFd,
    entrance: Option<std::net::TcpListener>,
) -> Result<(), GuestError> {
    let signals = sys::watched(signals).map_err(GuestError::io("listening for ended children"))?;
    let listener = UnixListener::from_std(listener).map_err(GuestError::io("listening for links"))?;
    if let Some(entrance) = entrance {
        let entrance =
            TcpListener::from_std(entrance).map_err(GuestError::io("listening for outgoing connections"))?;
        spawn_local(egress::accept(Rc::clone(&guest), entrance));
    }
    let reaper = guest.reaper.clone();
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
    listen.into_iter().chain(state).collect()
}

/// A path to the state directory that this process, and no other, can follow.
fn open_state(state: &State) -> Result<PathBuf, GuestError> {
    match state {
        State::Path(path) => Ok(path.clone()),
        State::Descriptor(fd) => {
            let directory =
                sys::inherit(*fd).map_err(GuestError::io(format!("taking over descriptor {fd}")))?;
            // Kept open for the life of the process: the directory is reached only through it.
            std::mem::forget(directory);
            Ok(format!("/proc/self/fd/{fd}").into())
        }
    }
}

/// Opens `/dev/null` for whichever of 0, 1 and 2 is closed, and once more above them.
fn fill_standard_descriptors() -> Result<OwnedFd, GuestError> {
    loop {
        let opened = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty());
        let null = opened.map_err(GuestError::io("opening /dev/null"))?;
        if null.as_raw_fd() > 2 {
            return Ok(null);
        }
        // Kept open for the life of the process.
        std::mem::forget(null);
    }
}

fn open_entrance(port: u16) -> Result<std::net::TcpListener, GuestError> {
    let bound = std::net::TcpListener::bind((std::net::Ipv4Addr::LOCALHOST, port));
    let bound = bound.and_then(|listener| listener.set_nonblocking(true).map(|()| listener));
    bound.map_err(GuestError::io(format!("listening for outgoing connections on port {port}")))
}

fn listen(listen: Listen) -> Result<std::os::unix::net::UnixListener, GuestError> {
    let listener = match listen {
        Listen::Descriptor(fd) => {
            let fd = sys::inherit(fd).map_err(GuestError::io(format!("taking over descriptor {fd}")))?;
            std::os::unix::net::UnixListener::from(fd)
        }
        Listen::Path(path) => {
            bind(&path).map_err(GuestError::io(format!("listening on {}", path.display())))?
        }
    };
    listener.set_nonblocking(true).map_err(GuestError::io("listening for links"))?;
    Ok(listener)
}

/// Binds a socket that only the guest's own user can reach.
fn bind(path: &Path) -> std::io::Result<std::os::unix::net::UnixListener> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let before = rustix::process::umask(Mode::from_raw_mode(0o177));
    let listener = std::os::unix::net::UnixListener::bind(path);
    rustix::process::umask(before);
    listener
}

/// Shuts everyone else out of the state directory.
fn private(state: &Path) -> Result<(), GuestError> {
    let doing = || format!("closing {} to others", state.display());
    let found = std::fs::metadata(state).map_err(GuestError::io(doing()))?.permissions().mode();
    if found & 0o077 == 0 {
        return Ok(());
    }
    std::fs::set_permissions(state, std::fs::Permissions::from_mode(0o700)).map_err(GuestError::io(doing()))
}
