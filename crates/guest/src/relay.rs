//! `caisson-guest relay`: forwards a link over standard input and output, for container engines whose only access is
//! `exec`.
//!
//! The relay may start together with the guest, so it waits a while for the guest to listen.

use std::io;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::error::GuestError;

/// Size of the copy buffer for each direction.
const COPY_BYTES: usize = 64 * 1024;
/// How long to wait for the guest to listen, and how often to retry.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(2);

/// Copies standard input to the socket and the socket to standard output until the guest closes the connection.
pub(crate) fn relay(socket: &Path) -> Result<(), GuestError> {
    let doing = || format!("connecting to {}", socket.display());
    let stream = connect(socket).map_err(GuestError::io(doing()))?;
    let mut writer = stream.try_clone().map_err(GuestError::io(doing()))?;
    let incoming = move || {
        let _ = copy(&mut io::stdin(), &mut writer);
        let _ = writer.shutdown(Shutdown::Write);
    };
    let spawned = std::thread::Builder::new().stack_size(COPY_BYTES * 2 + 32 * 1024).spawn(incoming);
    spawned.map_err(GuestError::io("starting a thread"))?;
    copy(&mut { stream }, &mut io::stdout()).map_err(GuestError::io("copying the link"))
}

fn connect(socket: &Path) -> io::Result<UnixStream> {
    let end = Instant::now() + CONNECT_TIMEOUT;
    loop {
        match UnixStream::connect(socket) {
            Err(error) if is_early(&error) && Instant::now() < end => std::thread::sleep(PAUSE),
            other => return other,
        }
    }
}

/// Whether the socket does not exist yet or has no listener yet.
fn is_early(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused)
}

/// Flushes each piece immediately, because the other side waits for replies.
fn copy(from: &mut impl io::Read, to: &mut impl io::Write) -> io::Result<()> {
    let mut buffer = vec![0; COPY_BYTES];
    loop {
        match from.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(count) => {
                to.write_all(buffer.get(..count).unwrap_or_default())?;
                to.flush()?;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}
