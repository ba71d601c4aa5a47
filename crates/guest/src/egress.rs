//! The egress listener: forwards each outgoing connection on a stream of the newest link. The host decides which
//! destinations are allowed; the guest does not parse the proxy protocol.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use protocol::{GuestRequest, Link, MessageStream};
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional_with_sizes};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::spawn_local;
use tokio::time::{Instant, timeout_at};

use crate::guest::Guest;
use crate::ports::COPY_BYTES;

/// The most concurrent connections, and the fraction of the guest's file descriptors that they may use. Connecting
/// programs must not exhaust the descriptors that the guest needs for calls. Further connections wait in the backlog.
const MAX_CONNECTIONS: usize = 512;
const DESCRIPTOR_SHARE: u64 = 4;
/// How long a connection waits for a link.
const LINK_TIMEOUT: Duration = Duration::from_secs(30);
/// The response to a client if there is no link.
const UNAVAILABLE_RESPONSE: &str = "HTTP/1.1 503 Service Unavailable\r\nContent-Type: text/plain\r\nConnection: close\r\n\r\n\
    The server that carries this sandbox's outgoing connections is away. Try again in a moment.\n";

/// Accepts connections until the guest exits.
pub(crate) async fn accept(guest: Rc<Guest>, listener: TcpListener) {
    let slots = Arc::new(Semaphore::new(max_connections()));
    loop {
        let Ok(slot) = Arc::clone(&slots).acquire_owned().await else { return };
        match listener.accept().await {
            Ok((connection, _)) => {
                let guest = Rc::clone(&guest);
                spawn_local(async move {
                    guest.egress_connections.set(guest.egress_connections.get() + 1);
                    forward(&guest, connection).await;
                    guest.egress_connections.set(guest.egress_connections.get().saturating_sub(1));
                    drop(slot);
                });
            }
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
}

fn max_connections() -> usize {
    let descriptors = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    let part = descriptors.map_or(u64::MAX, |descriptors| descriptors / DESCRIPTOR_SHARE);
    usize::try_from(part).unwrap_or(usize::MAX).clamp(1, MAX_CONNECTIONS)
}

async fn forward(guest: &Guest, mut connection: TcpStream) {
    let _ = connection.set_nodelay(true);
    match open_stream(guest).await {
        Some(stream) => {
            let mut stream = stream.into_raw();
            let _ = copy_bidirectional_with_sizes(&mut connection, &mut stream, COPY_BYTES, COPY_BYTES).await;
        }
        None => reply_unavailable(&mut connection).await,
    }
}

/// Sends the response so that it survives the close: unread input would turn the close into a reset.
async fn reply_unavailable(connection: &mut TcpStream) {
    let mut request = [0u8; 4096];
    let deadline = Instant::now() + Duration::from_secs(1);
    let _ = timeout_at(deadline, connection.read(&mut request)).await;
    let _ = connection.write_all(UNAVAILABLE_RESPONSE.as_bytes()).await;
    let _ = connection.shutdown().await;
}

async fn open_stream(guest: &Guest) -> Option<MessageStream> {
    let deadline = Instant::now() + LINK_TIMEOUT;
    let mut links = guest.newest_link.subscribe();
    loop {
        let link = links.borrow_and_update().clone();
        if let Some(link) = link
            && !link.is_closed()
            && let Some(stream) = open_egress_stream(&link).await
        {
            return Some(stream);
        }
        timeout_at(deadline, links.changed()).await.ok()?.ok()?;
    }
}

async fn open_egress_stream(link: &Link) -> Option<MessageStream> {
    let mut stream = link.open().await.ok()?;
    stream.send(&GuestRequest::Egress).await.ok()?;
    Some(stream)
}
