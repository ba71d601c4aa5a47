//! The connection to the engine, and what its complaints mean.

use std::error::Error as _;
use std::io;

use bollard::errors::Error;
use bollard::models::SystemVersion;
use bollard::{API_DEFAULT_VERSION, Docker};

use super::DockerConfig;
use crate::error::SandboxError;

/// The oldest version of the engine's interface that has all that is needed; Docker 20.10.
const OLDEST_VERSION: (u32, u32) = (1, 41);
/// Not there.
pub(super) const NOT_FOUND: u16 = 404;
/// There already, or in a state that does not fit.
pub(super) const CONFLICT: u16 = 409;
/// In that state already.
pub(super) const UNCHANGED: u16 = 304;

/// Opens a client and checks that an engine answers that is new enough.
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
        _ => Err(SandboxError::HostUnfit {
            what: format!(
                "the Docker engine {} at {host} is too old: it speaks version `{spoken}` of the engine's interface, \
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

/// The status with which the engine answered, where it did.
pub(super) fn status(error: &Error) -> Option<u16> {
    match error {
        Error::DockerResponseServerError { status_code, .. } => Some(*status_code),
        _ => None,
    }
}

/// What the engine said, without the words of the library around it.
pub(super) fn message(error: &Error) -> String {
    match error {
        Error::DockerResponseServerError { message, .. } => message.trim().to_owned(),
        other => other.to_string(),
    }
}

/// A complaint of the engine, or about it, in words that say what to do.
pub(super) fn explain(config: &DockerConfig, doing: &str, error: Error) -> SandboxError {
    let host = &config.host;
    if let Error::SocketNotFoundError(_) = error {
        return missing(host);
    }
    match cause(&error) {
        Some(io::ErrorKind::NotFound) => missing(host),
        Some(io::ErrorKind::ConnectionRefused) => SandboxError::HostUnfit {
            what: format!("the Docker engine at {host} is stopped: nobody listens there"),
            remedy: "start it (systemctl start docker)".into(),
        },
        Some(io::ErrorKind::PermissionDenied) => SandboxError::HostUnfit {
            what: format!("this user may not open the Docker engine at {host}"),
            remedy:
                "start the server as root, or let the user in (usermod -aG docker USER, then log in again)"
                    .into(),
        },
        _ => SandboxError::Io {
            doing: format!("{doing}: {}", message(&error)),
            source: io::Error::other(error),
        },
    }
}

fn missing(host: &str) -> SandboxError {
    SandboxError::HostUnfit {
        what: format!("there is no Docker engine at {host}"),
        remedy: format!(
            "install and start Docker ({}), or set [docker] host",
            crate::packages::install("docker.io", "moby-engine")
        ),
    }
}

/// The kind of the operating system's error that lies under this one.
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

    #[test]
    fn an_engine_that_is_too_old_is_named_with_what_is_needed() {
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
