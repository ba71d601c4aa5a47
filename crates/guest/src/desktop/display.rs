//! The connection to the X server. It stays on one thread. Every wait on it has a time limit.

use std::cell::{Cell, RefCell};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use protocol::{GuiError, GuiErrorCode};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use x11rb::connection::Connection;
use x11rb::errors::{ConnectionError, ReplyError, ReplyOrIdError};
use x11rb::protocol::xproto::{Atom, ConnectionExt, Window};
use x11rb::rust_connection::{DefaultStream, PollMode, RustConnection, Stream};
use x11rb::utils::RawFdContainer;

use super::manager_probe::ManagerProbe;
use super::screenshot::SharedPixels;
use super::{X_SOCKET, wallpaper};

/// How long one action may wait for the X server.
const X_TIMEOUT: Duration = Duration::from_secs(20);

x11rb::atom_manager! {
    /// Atoms that window managers and clients share.
    pub(super) Atoms: AtomsCookie {
        UTF8_STRING,
        _NET_ACTIVE_WINDOW,
        _NET_CLIENT_LIST,
        _NET_CLOSE_WINDOW,
        _NET_FRAME_EXTENTS,
        _NET_REQUEST_FRAME_EXTENTS,
        _NET_SUPPORTED,
        _NET_SUPPORTING_WM_CHECK,
        _NET_WM_NAME,
        _XROOTPMAP_ID,
    }
}

/// A stream with a deadline, because the program at the other end may never respond.
pub(super) struct DeadlineStream {
    inner: DefaultStream,
    deadline: Cell<Instant>,
}

impl Stream for DeadlineStream {
    fn poll(&self, mode: PollMode) -> io::Result<()> {
        let mut wanted = PollFlags::empty();
        wanted.set(PollFlags::IN, mode.readable());
        wanted.set(PollFlags::OUT, mode.writable());
        let mut fds = [PollFd::from_borrowed_fd(self.inner.as_fd(), wanted)];
        loop {
            let left = self.deadline.get().saturating_duration_since(Instant::now());
            let limit = Timespec::try_from(left).unwrap_or(Timespec { tv_sec: 0, tv_nsec: 0 });
            match poll(&mut fds, Some(&limit)) {
                Ok(0) => return Err(io::ErrorKind::TimedOut.into()),
                Ok(_) => return Ok(()),
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn read(&self, buffer: &mut [u8], fds: &mut Vec<RawFdContainer>) -> io::Result<usize> {
        self.inner.read(buffer, fds)
    }

    fn write(&self, buffer: &[u8], fds: &mut Vec<RawFdContainer>) -> io::Result<usize> {
        self.inner.write(buffer, fds)
    }

    fn write_vectored(
        &self,
        buffers: &[io::IoSlice<'_>],
        fds: &mut Vec<RawFdContainer>,
    ) -> io::Result<usize> {
        self.inner.write_vectored(buffers, fds)
    }
}

/// A connection to the X server.
pub(crate) struct Display {
    pub(super) connection: RustConnection<DeadlineStream>,
    pub(super) root: Window,
    pub(super) width: u16,
    pub(super) height: u16,
    pub(super) names: Atoms,
    /// Unassigned keys that the guest has given a temporary meaning.
    pub(super) assigned_keys: Vec<u8>,
    /// The memory into which the server writes screenshots.
    pub(super) shared: Option<SharedPixels>,
    /// The window manager that is known to handle events.
    pub(super) manager: ManagerProbe,
}

thread_local! {
    static DISPLAY: RefCell<Option<Display>> = const { RefCell::new(None) };
}

/// Runs `work` with this thread's display. Connects first if needed. Drops a connection that failed.
pub(super) fn with_display<T>(work: impl FnOnce(&mut Display) -> Result<T, GuiError>) -> Result<T, GuiError> {
    DISPLAY.with_borrow_mut(|slot| {
        if let Some(display) = slot {
            display.reset_deadline();
            // The server may have restarted since the last use.
            if display.ping().is_err() {
                *slot = None;
            }
        }
        let display = match slot.take() {
            Some(display) => slot.insert(display),
            None => slot.insert(Display::open()?),
        };
        let done = work(display);
        if matches!(&done, Err(error) if error.code == GuiErrorCode::NoDesktop) {
            *slot = None;
        }
        done
    })
}

impl Display {
    fn open() -> Result<Self, GuiError> {
        let socket = socket_with(
            AddressFamily::UNIX,
            SocketType::STREAM,
            // If the connection queue is full, fail instead of waiting.
            SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
            None,
        );
        let connected = socket.and_then(|socket| {
            connect(&socket, &SocketAddrUnix::new(X_SOCKET)?)?;
            Ok(socket)
        });
        let stream = connected.map_err(|error| lost(&error))?;
        let (inner, _) =
            DefaultStream::from_unix_stream(UnixStream::from(stream)).map_err(|error| lost(&error))?;
        let stream_with_deadline = DeadlineStream { inner, deadline: Cell::new(Instant::now() + X_TIMEOUT) };
        let connection =
            RustConnection::connect_to_stream(stream_with_deadline, 0).map_err(|error| lost(&error))?;
        let screen = connection.setup().roots.first().ok_or_else(|| lost("it has no screen"))?;
        let (root, width, height) = (screen.root, screen.width_in_pixels, screen.height_in_pixels);
        let names = Atoms::new(&connection).map_err(|error| lost(&error))?;
        let names = names.reply().map_err(|error| lost(&error))?;
        let display = Self {
            connection,
            root,
            width,
            height,
            names,
            assigned_keys: Vec::new(),
            shared: None,
            manager: ManagerProbe::default(),
        };
        wallpaper::paint(&display)?;
        Ok(display)
    }

    /// Starts a new time limit for the next action.
    pub(super) fn reset_deadline(&self) {
        self.connection.stream().deadline.set(Instant::now() + X_TIMEOUT);
    }

    /// Waits until the server has processed all requests.
    pub(super) fn ping(&self) -> Result<(), GuiError> {
        let asked = self.connection.get_input_focus().map_err(|error| lost(&error))?;
        asked.reply().map_err(|error| lost(&error))?;
        // Discard events, which would otherwise pile up.
        while let Ok(Some(_)) = self.connection.poll_for_event() {}
        Ok(())
    }

    /// Does nothing: to get here, the connection must already work.
    #[expect(
        clippy::unnecessary_wraps,
        clippy::unused_self,
        reason = "the shape of what is done on the display"
    )]
    pub(super) fn check(&mut self) -> Result<(), GuiError> {
        Ok(())
    }

    /// Reads a property with numbers, at most `most` of them.
    pub(super) fn numbers(&self, window: Window, name: Atom, most: u32) -> Result<Vec<u32>, GuiError> {
        let asked = self.connection.get_property(false, window, name, 0u32, 0, most);
        match asked.map_err(|error| lost(&error))?.reply() {
            Ok(property) => Ok(property.value32().map(Iterator::collect).unwrap_or_default()),
            // The window is gone.
            Err(ReplyError::X11Error(_)) => Ok(Vec::new()),
            Err(error) => Err(lost(&error)),
        }
    }
}

/// The error for an X server that is gone or does not respond.
pub(super) fn lost(error: &(impl std::fmt::Display + ?Sized)) -> GuiError {
    GuiError { code: GuiErrorCode::NoDesktop, message: format!("the X server does not answer: {error}") }
}

/// Converts the error of a request without a reply.
pub(super) fn sent<T>(result: Result<T, ConnectionError>) -> Result<(), GuiError> {
    result.map(drop).map_err(|error| lost(&error))
}

/// Converts the error of a request with a reply.
pub(super) fn answered<T>(result: Result<T, ReplyError>) -> Result<T, GuiError> {
    result.map_err(|error| lost(&error))
}

/// Allocates a resource ID on the server.
pub(super) fn new_id(display: &Display) -> Result<u32, GuiError> {
    let made: Result<u32, ReplyOrIdError> = display.connection.generate_id();
    made.map_err(|error| lost(&error))
}
