//! Accepts links, performs the handshake and dispatches streams. A new link replaces the previous one.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use protocol::{
    CallKey, DesktopRequest, IncomingStreams, Link, MessageStream, OLDEST_VERSION, ProtocolError, Reply,
    Request, Side, VERSION, Welcome, negotiate,
};
use tokio::net::UnixListener;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::spawn_local;
use tokio::time::timeout;

use crate::files::pack::PackRequest;
use crate::guest::Guest;
use crate::reply::send_reply;
use crate::{desktop, files, ports, requests, services};

/// How long a new link may take to send its handshake, and a stream to send its request.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(20);
/// How long a rejected link stays open, so that the other side can read the reason.
const REJECTED_LINK_TIMEOUT: Duration = Duration::from_secs(5);
/// The most links whose handshake is pending.
const MAX_PENDING_HANDSHAKES: usize = 8;
/// The most requests being received at once. Each may have the maximum message size.
const MAX_RECEIVING: usize = 16;

/// Accepts links until the guest exits.
pub(crate) async fn accept(guest: Rc<Guest>, listener: UnixListener) {
    let pending_handshakes = Arc::new(Semaphore::new(MAX_PENDING_HANDSHAKES));
    loop {
        let Ok(permit) = Arc::clone(&pending_handshakes).acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, _)) => {
                spawn_local(serve_link(Rc::clone(&guest), Link::start(stream, Side::Guest), permit));
            }
            // Probably out of file descriptors: wait until some are closed.
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
}

async fn serve_link(
    guest: Rc<Guest>,
    (link, mut streams): (Link, IncomingStreams),
    permit: OwnedSemaphorePermit,
) {
    if !matches!(timeout(HANDSHAKE_TIMEOUT, handshake(&guest, &mut streams)).await, Ok(true)) {
        // Let the other side read the reason and disconnect. If this side closed immediately, the other side's next
        // write would fail before it has read the reply.
        let _ = timeout(REJECTED_LINK_TIMEOUT, link.closed()).await;
        link.close();
        return;
    }
    drop(permit);
    guest.request_served.notify_one();
    if let Some(older) = guest.newest_link.send_replace(Some(link.clone())) {
        older.close();
    }
    let receiving = Arc::new(Semaphore::new(MAX_RECEIVING));
    loop {
        let Ok(permit) = Arc::clone(&receiving).acquire_owned().await else { return };
        let Some(stream) = streams.next().await else { break };
        spawn_local(serve_stream(Rc::clone(&guest), stream, permit));
    }
}

/// Serves the first stream, which must start with a handshake. Returns whether the link is accepted: the credentials fit,
/// and both sides have a version in common.
async fn handshake(guest: &Guest, streams: &mut IncomingStreams) -> bool {
    let Some(mut stream) = streams.next().await else { return false };
    let Ok(Request::Hello(hello)) = stream.receive_message::<Request>().await else {
        let message = "a link starts with a greeting".to_owned();
        let _ = stream.send(&Reply::Refused { message }).await;
        let _ = stream.close().await;
        return false;
    };
    let admitted = guest.link_owner.borrow_mut().admit(hello.credentials);
    if let Err(refusal) = admitted {
        let _ = send_reply(&mut stream, &Reply::LinkRefused(refusal)).await;
        return false;
    }
    let has_common_version =
        negotiate(hello.newest_version, hello.oldest_version, VERSION, OLDEST_VERSION).is_some();
    send_reply(&mut stream, &welcome(guest)).await.is_ok() && has_common_version
}

fn welcome(guest: &Guest) -> Reply {
    Reply::Welcome(Welcome {
        newest_version: VERSION,
        oldest_version: OLDEST_VERSION,
        boot_id: guest.boot_id.clone(),
        build: env!("CARGO_PKG_VERSION").to_owned(),
    })
}

async fn serve_stream(guest: Rc<Guest>, mut stream: MessageStream, permit: OwnedSemaphorePermit) {
    let Ok(request) = timeout(HANDSHAKE_TIMEOUT, stream.receive_message::<Request>()).await else { return };
    drop(permit);
    match request {
        Ok(request) => {
            // A broken stream matters only to its other end.
            let _ = Box::pin(dispatch(&guest, stream, request)).await;
        }
        Err(ProtocolError::Decode(error)) => {
            let message = format!("the request is not understood: {error}");
            let _ = send_reply(&mut stream, &Reply::Refused { message }).await;
        }
        Err(_) => {}
    }
    guest.request_served.notify_one();
}

/// The call key of a request, if it has one.
fn key_of(request: &Request) -> Option<&CallKey> {
    match request {
        Request::Exec { exec, .. } => Some(&exec.key),
        Request::Follow { key, .. }
        | Request::CallStatus { key }
        | Request::Input { key }
        | Request::Signal { key, .. }
        | Request::Kill { key }
        | Request::Resize { key, .. }
        | Request::Forget { key } => Some(key),
        Request::File { key, .. } => key.as_ref(),
        Request::Desktop { order: DesktopRequest::Act { key, .. }, .. } => key.as_ref(),
        _ => None,
    }
}

async fn dispatch(
    guest: &Rc<Guest>,
    mut stream: MessageStream,
    request: Request,
) -> Result<(), ProtocolError> {
    if key_of(&request).is_some_and(|key| !key.is_well_formed()) {
        let message = "a call's name is 1 to 64 letters, digits and `-`".to_owned();
        return send_reply(&mut stream, &Reply::Refused { message }).await;
    }
    let reply = match request {
        Request::Hello(_) => welcome(guest),
        Request::Ping => Reply::Done,
        Request::Stats => Reply::Stats(guest.stats()),
        // Do not reveal the host's ports. Without namespaces, there are no others.
        Request::Ports if guest.resources.spawner.landlock_only.is_some() => {
            Reply::Ports { ports: Vec::new() }
        }
        Request::Ports => Reply::Ports { ports: ports::listening() },
        Request::Exec { exec, follow } => return requests::exec(guest, stream, exec, follow).await,
        Request::Follow { key, from_sequence, follow } => {
            return requests::resume(guest, stream, &key, from_sequence, follow).await;
        }
        Request::CallStatus { key } => Reply::Call(guest.resources.journal.status(&key)),
        Request::Input { key } => return requests::input(guest, stream, &key).await,
        Request::Signal { key, signal } => requests::signal(guest, &key, signal),
        Request::Kill { key } => requests::kill(guest, &key).await,
        Request::Resize { key, size } => requests::resize(guest, &key, size),
        Request::Forget { key } => requests::forget(guest, &key),
        Request::File { key, operation } => requests::file(guest, key, operation).await,
        Request::Download { path, offset, length } => {
            return files::stream::download(&guest.resources.files, stream, path, offset, length).await;
        }
        Request::Upload { path, mode } => {
            return files::stream::upload(&guest.resources.files, stream, path, mode).await;
        }
        Request::Pack { path, exclude, max_file_bytes } => {
            let order = PackRequest { path, exclude, max_file_bytes };
            return requests::pack(guest, stream, order).await;
        }
        Request::Unpack { path } => return files::stream::unpack(&guest.resources.files, stream, path).await,
        Request::Watch { path } => return files::watch::watch(&guest.resources.files, stream, path).await,
        Request::Kernels => guest.kernels.list(),
        Request::Kernel { name, action } => guest.kernels.act(&name, action).await,
        Request::Connect { .. } if guest.resources.spawner.landlock_only.is_some() => {
            let message = "this sandbox has no namespaces, so nothing can listen on a port in it".to_owned();
            Reply::Refused { message }
        }
        Request::Connect { port } => return ports::connect(stream, port).await,
        Request::Desktop { desktop, order } => {
            return desktop::serve(&guest.desktop, stream, desktop, order).await;
        }
        Request::Service { order } => return services::serve(&guest.services, stream, order).await,
    };
    send_reply(&mut stream, &reply).await
}
