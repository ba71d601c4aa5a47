//! Connecting to the guest: through a socket that server and container share, or through a relay that the engine runs
//! inside.

use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;

use bollard::container::LogOutput;
use bollard::exec::{CreateExecOptions, StartExecOptions, StartExecResults};
use bytes::Bytes;
use futures::StreamExt;
use rustix::fs::{CWD, FileType, Mode, OFlags, fstat, openat};
use tokio::net::UnixStream;
use tokio_util::io::StreamReader;

use super::config::LinkChoice;
use super::engine::{self, CONFLICT, NOT_FOUND};
use super::layout::{self, GUEST_PROGRAM, RELAY_ID, SOCKET, STATE};
use super::{Inner, Ready};
use crate::GuestStream;
use crate::error::{SandboxError, failed};
use crate::spec::SandboxId;

/// Maximum size of one read from the relay, in bytes.
const RELAY_BYTES: usize = 64 * 1024;

/// Whether the guest has created its socket.
pub(super) fn is_listening(directory: &Path) -> bool {
    std::fs::symlink_metadata(directory.join(SOCKET)).is_ok()
}

/// Opens the link.
pub(super) async fn connect(
    inner: &Inner,
    ready: &Ready,
    id: SandboxId,
) -> Result<GuestStream, SandboxError> {
    let directory = inner.layout.link_directory(id);
    if inner.config.link != LinkChoice::Exec && directory.exists() {
        return dial(id, &directory).await;
    }
    relay(inner, ready, id).await
}

/// The directory belongs to the guest, which may have put anything there. So this opens the entry, checks that it is
/// a socket in this very directory, and connects to that same inode.
async fn dial(id: SandboxId, directory: &Path) -> Result<GuestStream, SandboxError> {
    let silent = || SandboxError::NotRunning { id, why: "nothing listens on its socket".into() };
    let path = directory.join(SOCKET);
    let open = openat(CWD, &path, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty());
    let socket = match open {
        Err(rustix::io::Errno::NOENT) => return Err(silent()),
        other => other.map_err(|error| failed("opening", &path, error.into()))?,
    };
    let kind = fstat(&socket).map_err(|error| failed("looking at", &path, error.into()))?.st_mode;
    if FileType::from_raw_mode(kind) != FileType::Socket {
        return Err(SandboxError::NotRunning { id, why: "its socket was replaced".into() });
    }
    match UnixStream::connect(format!("/proc/self/fd/{}", socket.as_raw_fd())).await {
        Ok(stream) => Ok(Box::new(stream)),
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => Err(silent()),
        Err(source) => Err(failed("connecting to", &path, source)),
    }
}

/// Runs the guest's relay in the container, as a user that nothing else in there has.
async fn relay(inner: &Inner, ready: &Ready, id: SandboxId) -> Result<GuestStream, SandboxError> {
    let explain = |error: bollard::errors::Error| match engine::status(&error) {
        Some(NOT_FOUND | CONFLICT) => SandboxError::NotRunning { id, why: engine::message(&error) },
        _ => engine::explain(&inner.config, &format!("opening the link of sandbox {id}"), error),
    };
    let socket = format!("{STATE}/{SOCKET}");
    let options = CreateExecOptions {
        attach_stdin: Some(true),
        attach_stdout: Some(true),
        attach_stderr: Some(true),
        tty: Some(false),
        user: Some(format!("{RELAY_ID}:{RELAY_ID}")),
        working_dir: Some("/".to_owned()),
        cmd: Some([GUEST_PROGRAM, "relay", "--socket", &socket].map(String::from).to_vec()),
        ..CreateExecOptions::default()
    };
    let exec = ready.client.create_exec(&layout::container(id), options).await.map_err(explain)?;
    let options = StartExecOptions { detach: false, tty: false, output_capacity: Some(RELAY_BYTES) };
    match ready.client.start_exec(&exec.id, Some(options)).await.map_err(explain)? {
        StartExecResults::Attached { output, input } => {
            let pieces = output.filter_map(move |piece| std::future::ready(bytes_of(id, piece)));
            Ok(Box::new(tokio::io::join(StreamReader::new(Box::pin(pieces)), input)))
        }
        StartExecResults::Detached => {
            Err(SandboxError::NotRunning { id, why: "the engine did not connect the relay".into() })
        }
    }
}

/// The relay's stdout carries the link; its stderr goes to the log.
fn bytes_of(id: SandboxId, piece: Result<LogOutput, bollard::errors::Error>) -> Option<io::Result<Bytes>> {
    match piece {
        Ok(LogOutput::StdOut { message }) => Some(Ok(message)),
        Ok(LogOutput::StdErr { message }) => {
            tracing::warn!(sandbox = %id, "relay output: {}", String::from_utf8_lossy(&message).trim());
            None
        }
        Ok(other) => {
            let said = String::from_utf8_lossy(&other.into_bytes()).trim().to_owned();
            Some(Err(io::Error::other(format!("the engine did not run the relay: {said}"))))
        }
        Err(error) => Some(Err(io::Error::other(error))),
    }
}
