//! Connecting to the guest through its socket on this host.

use std::io;

use tokio::net::UnixStream;

use super::Inner;
use crate::GuestStream;
use crate::error::{SandboxError, failed};
use crate::spec::SandboxId;

/// Opens the link.
pub(super) async fn connect(inner: &Inner, id: SandboxId) -> Result<GuestStream, SandboxError> {
    let socket = inner.layout.socket(id)?;
    match UnixStream::connect(&socket).await {
        Ok(stream) => Ok(Box::new(stream)),
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) => {
            Err(SandboxError::NotRunning { id, why: "nothing listens on its socket".into() })
        }
        Err(source) => Err(failed("connecting to", &socket, source)),
    }
}
