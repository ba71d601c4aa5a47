//! Checks whether a service is ready, and connects to services.

use std::io;
use std::path::Path;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use protocol::{Endpoint, Readiness};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::Instant;

use super::Service;
use crate::ports;

/// How often to check a starting service: frequently during `FAST_PROBE_PERIOD`, then less often.
const FIRST_PAUSE: Duration = Duration::from_millis(4);
const LATER_PAUSE: Duration = Duration::from_millis(40);
const FAST_PROBE_PERIOD: Duration = Duration::from_secs(1);

/// Waits until the service is ready. Has no time limit.
pub(super) async fn wait_until_ready(service: &Service, ready: &Readiness) {
    if let Readiness::Printed(text) = ready {
        let mut printed = service.printed.subscribe();
        while !service.log.borrow().since_start().contains(text.as_str()) {
            if printed.changed().await.is_err() {
                return;
            }
        }
        return;
    }
    let started = Instant::now();
    while !is_ready(ready).await {
        let pause = if started.elapsed() < FAST_PROBE_PERIOD { FIRST_PAUSE } else { LATER_PAUSE };
        tokio::time::sleep(pause).await;
    }
}

async fn is_ready(ready: &Readiness) -> bool {
    match ready {
        Readiness::Started | Readiness::Printed(_) => true,
        Readiness::File(path) => Path::new(path).exists(),
        Readiness::Accepts(endpoint) => connect(endpoint).await.is_ok(),
    }
}

/// Connects to an endpoint in the sandbox.
pub(crate) async fn connect(endpoint: &Endpoint) -> io::Result<Connection> {
    match endpoint {
        Endpoint::Unix(path) => Ok(Connection::Unix(UnixStream::connect(path).await?)),
        Endpoint::Port(port) => {
            let connection = ports::dial(*port).await?;
            let _ = connection.set_nodelay(true);
            Ok(Connection::Tcp(connection))
        }
    }
}

/// A connection to a service.
pub(crate) enum Connection {
    Unix(UnixStream),
    Tcp(TcpStream),
}

impl AsyncRead for Connection {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Unix(stream) => Pin::new(stream).poll_read(cx, buf),
            Self::Tcp(stream) => Pin::new(stream).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Connection {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Unix(stream) => Pin::new(stream).poll_write(cx, buf),
            Self::Tcp(stream) => Pin::new(stream).poll_write(cx, buf),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Unix(stream) => Pin::new(stream).poll_flush(cx),
            Self::Tcp(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Unix(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Tcp(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}
