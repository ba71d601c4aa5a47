//! Connecting to the engine, and interpreting its errors.

use std::error::Error as _;
use std::io;

use async_trait::async_trait;
use bollard::errors::Error;
use bollard::models::SystemVersion;
use bollard::{API_DEFAULT_VERSION, Docker};

use super::{DockerBackend, DockerConfig};
use crate::Engine;
use crate::error::SandboxError;

/// The oldest supported version of the engine's API; Docker 20.10.
const OLDEST_VERSION: (u32, u32) = (1, 41);
pub(super) const NOT_FOUND: u16 = 404;
/// The name is taken, or the state does not allow the operation.
pub(super) const CONFLICT: u16 = 409;
const SERVICE_UNAVAILABLE: u16 = 503;
/// The container is already in that state.
pub(super) const UNCHANGED: u16 = 304;

#[async_trait]
impl Engine for DockerBackend {
    async fn ping(&self) -> Result<(), SandboxError> {
        let answer = self.ready().await?.client.ping().await;
        answer.map(drop).map_err(|error| explain(&self.inner.config, "asking whether it is there", error))
    }
}

/// Opens a client, and checks that the engine answers and is new enough.
pub(super) async fn open(config: &DockerConfig) -> Result<Docker, SandboxError> {
    let seconds = config.engine_timeout.as_secs();
    let host = &config.host;
    let client = if let Some(path) = host.strip_prefix("unix://") {
        Docker::connect_with_unix(path, seconds, API_DEFAULT_VERSION)
    } else {
        Docker::connect_with_http(host, seconds, API_DEFAULT_VERSION)
    };
    let client = client.map_err(|error| explain(config, "opening the Docker engine", error))?;
    let version = client.version().await.map_err(|error| explain(config, "asking its version", error))?;
    check_version(&version, host)?;
    Ok(client)
}

fn check_version(version: &SystemVersion, host: &str) -> Result<(), SandboxError> {
    let spoken = version.api_version.as_deref().unwrap_or_default();
    match parse_version(spoken) {
        Some(number) if number >= OLDEST_VERSION => Ok(()),
        _ => Err(SandboxError::HostUnsupported {
            what: format!(
                "the Docker engine {} at {host} is too old: it supports API version `{spoken}`, \
                 {}.{} is needed",
                version.version.as_deref().unwrap_or("of unknown version"),
                OLDEST_VERSION.0,
                OLDEST_VERSION.1,
            ),
            remedy: "install Docker 20.10 or newer".into(),
        }),
    }
}

fn parse_version(text: &str) -> Option<(u32, u32)> {
    let (major, minor) = text.split_once('.')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

/// The HTTP status of the engine's answer, if it answered.
pub(super) fn status(error: &Error) -> Option<u16> {
    match error {
        Error::DockerResponseServerError { status_code, .. } => Some(*status_code),
        _ => None,
    }
}

/// The engine's error message, without the client library's prefix.
pub(super) fn message(error: &Error) -> String {
    match error {
        Error::DockerResponseServerError { message, .. } => message.trim().to_owned(),
        other => other.to_string(),
    }
}

/// The connection error behind a failed request; `None` if the request failed for another reason. The engine may be
/// stopped and may come back.
fn connection_error(error: &Error) -> Option<io::ErrorKind> {
    match error {
        Error::SocketNotFoundError(_) => Some(io::ErrorKind::NotFound),
        Error::RequestTimeoutError => Some(io::ErrorKind::TimedOut),
        Error::HyperLegacyError { .. } | Error::HyperResponseError { .. } => {
            Some(cause(error).unwrap_or(io::ErrorKind::ConnectionAborted))
        }
        // An unreadable archive is also an `IOError`.
        Error::IOError { err } if CONNECTION.contains(&err.kind()) => Some(err.kind()),
        Error::DockerResponseServerError { status_code, message }
            if lacks_containerd(*status_code, message) =>
        {
            Some(io::ErrorKind::ConnectionAborted)
        }
        _ => None,
    }
}

/// Operating system errors that concern a connection.
const CONNECTION: [io::ErrorKind; 10] = [
    io::ErrorKind::NotFound,
    io::ErrorKind::PermissionDenied,
    io::ErrorKind::ConnectionRefused,
    io::ErrorKind::ConnectionReset,
    io::ErrorKind::ConnectionAborted,
    io::ErrorKind::NotConnected,
    io::ErrorKind::BrokenPipe,
    io::ErrorKind::TimedOut,
    io::ErrorKind::HostUnreachable,
    io::ErrorKind::NetworkUnreachable,
];

/// An engine that is starting or stopping answers while containerd does not.
fn lacks_containerd(status: u16, message: &str) -> bool {
    let is_refused = message.contains("connection refused") || message.contains("no such file or directory");
    status == SERVICE_UNAVAILABLE || status >= 500 && message.contains("containerd.sock") && is_refused
}

/// Whether a request failed because the engine is unreachable, not because of the request itself.
pub(super) fn is_unreachable(error: &Error) -> bool {
    connection_error(error).is_some()
}

/// Turns an engine error into a [`SandboxError`] that says what to do.
pub(super) fn explain(config: &DockerConfig, doing: &str, error: Error) -> SandboxError {
    let host = &config.host;
    let (what, remedy) = match connection_error(&error) {
        None => {
            return SandboxError::Io {
                doing: format!("{doing}: {}", message(&error)),
                source: io::Error::other(error),
            };
        }
        Some(io::ErrorKind::NotFound) => (
            format!("no Docker engine at {host}"),
            format!(
                "install and start Docker ({}), or set [docker] host",
                crate::host::packages::install("docker.io", "moby-engine")
            ),
        ),
        Some(io::ErrorKind::ConnectionRefused) => (
            format!("the Docker engine at {host} is not running"),
            "start it (systemctl start docker)".into(),
        ),
        // An engine that is starting up also refuses access until it has set the socket's permissions.
        Some(io::ErrorKind::PermissionDenied) => (
            format!("this user may not access the Docker engine at {host}"),
            "start the server as root, or add the user to the group docker (usermod -aG docker USER, then log in again)"
                .into(),
        ),
        Some(_) => (
            format!("the Docker engine at {host} does not answer ({doing}: {})", message(&error)),
            "start it (systemctl start docker), or check its log (journalctl -u docker)".into(),
        ),
    };
    SandboxError::Unavailable { what, remedy }
}

/// The kind of the I/O error at the root of this error.
fn cause(error: &Error) -> Option<io::ErrorKind> {
    let mut source: Option<&(dyn std::error::Error + 'static)> = match error {
        Error::IOError { err } => Some(err),
        Error::HyperLegacyError { err } => Some(err),
        other => other.source(),
    };
    while let Some(error) = source {
        if let Some(io) = error.downcast_ref::<io::Error>() {
            return Some(io.kind());
        }
        source = error.source();
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answered(status_code: u16, message: &str) -> Error {
        Error::DockerResponseServerError { status_code, message: message.into() }
    }

    #[test]
    fn unreachable_engine_differs_from_refused_request() {
        let config = DockerConfig::new("/nowhere", "/nowhere");
        let explained = |error: Error| explain(&config, "looking at sandbox 1", error);
        let broken = |kind: io::ErrorKind| Error::IOError { err: kind.into() };
        for (error, words) in [
            (Error::SocketNotFoundError("x".into()), "no Docker engine"),
            (broken(io::ErrorKind::NotFound), "no Docker engine"),
            (broken(io::ErrorKind::ConnectionRefused), "is not running"),
            (broken(io::ErrorKind::PermissionDenied), "may not access"),
            (broken(io::ErrorKind::ConnectionReset), "does not answer"),
            (broken(io::ErrorKind::BrokenPipe), "does not answer"),
            (Error::RequestTimeoutError, "does not answer"),
            (answered(503, "starting"), "does not answer"),
            (
                answered(
                    500,
                    "dial unix /run/containerd/containerd.sock: connect: connection refused: unavailable",
                ),
                "does not answer",
            ),
        ] {
            assert!(is_unreachable(&error), "{error}");
            let explained = explained(error);
            assert!(explained.is_unavailable() && explained.is_retryable(), "{explained}");
            assert!(explained.to_string().contains(words), "{explained}");
        }
        for error in [
            answered(NOT_FOUND, "No such container: 1"),
            answered(CONFLICT, "Container 1 is not running"),
            answered(500, "OCI runtime create failed: no such file or directory"),
            broken(io::ErrorKind::UnexpectedEof),
            broken(io::ErrorKind::InvalidData),
        ] {
            assert!(!is_unreachable(&error), "{error}");
            assert!(!explained(error).is_unavailable());
        }
    }

    #[test]
    fn too_old_engine_error_names_the_required_version() {
        let version = |api: &str| SystemVersion {
            version: Some("19.03.1".into()),
            api_version: Some(api.into()),
            ..SystemVersion::default()
        };
        let error = check_version(&version("1.40"), "unix:///x").unwrap_err().to_string();
        assert!(error.contains("19.03.1") && error.contains("1.41 is needed"), "{error}");
        assert!(check_version(&version("1.41"), "unix:///x").is_ok());
        assert!(check_version(&version("1.100"), "unix:///x").is_ok());
        assert!(check_version(&version(""), "unix:///x").is_err());
    }
}
