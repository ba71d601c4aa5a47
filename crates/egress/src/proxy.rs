//! The HTTP entrance: reads requests from a byte stream out of a sandbox and hands them on.

use std::convert::Infallible;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http_body_util::combinators::UnsyncBoxBody;
use hyper::body::Incoming;
use hyper::header::PROXY_AUTHORIZATION;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{HeaderMap, Method, Request, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

use crate::connect::Tunnel;
use crate::event::EgressEvent;
use crate::forward;
use crate::gate::{Asker, Gate};
use crate::policy::Policy;
use crate::refusal::{ReasonCode, Refusal};
use crate::target::Target;

/// The body of an answer: our own text, or what a server sends.
pub(crate) type ResponseBody = UnsyncBoxBody<Bytes, hyper::Error>;

/// The most that the head of a request may take.
const HEAD_LIMIT: usize = 64 * 1024;
/// The longest call id that is believed.
const CALL_LIMIT: usize = 128;

/// What a proxy grants its clients. All of it is per proxy, and so per sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProxySettings {
    /// Connections at a time; those beyond are answered with 503.
    pub connections: usize,
    /// How long a client may take to send the head of a request, and to send another.
    pub header_timeout: Duration,
    /// How long a name may take to resolve.
    pub resolve_timeout: Duration,
    /// How long one address may take to answer.
    pub connect_timeout: Duration,
    /// How long a connection may be without a byte before it is ended.
    pub idle_timeout: Duration,
    /// The number of the first connection; a proxy that follows another goes on where that ended.
    pub first_id: u64,
}

impl Default for ProxySettings {
    fn default() -> Self {
        Self {
            connections: 512,
            header_timeout: Duration::from_secs(30),
            resolve_timeout: Duration::from_secs(10),
            connect_timeout: Duration::from_secs(10),
            idle_timeout: Duration::from_secs(600),
            first_id: 1,
        }
    }
}

/// The way out of one sandbox. Cheap to clone; clones share policy, log and limits.
#[derive(Clone)]
pub struct Proxy {
    shared: Arc<Shared>,
}

struct Shared {
    gate: Gate,
    /// Room for connections that are served.
    served: Arc<Semaphore>,
    /// Room for connections that are told that there is no room.
    turned_away: Arc<Semaphore>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Room {
    Free,
    Full,
}

impl Proxy {
    /// A proxy that asks this policy and tells this log. Connections wait while the log is full.
    #[must_use]
    pub fn new(policy: Policy, log: mpsc::Sender<EgressEvent>, settings: ProxySettings) -> Self {
        let room = || Arc::new(Semaphore::new(settings.connections.min(Semaphore::MAX_PERMITS)));
        let (served, turned_away) = (room(), room());
        Self { shared: Arc::new(Shared { gate: Gate::new(policy, log, settings), served, turned_away }) }
    }

    /// The policy of now.
    #[must_use]
    pub fn policy(&self) -> Arc<Policy> {
        self.shared.gate.policy()
    }

    /// Puts another policy in force for every request from now on. Connections that stand are left alone.
    pub fn set_policy(&self, policy: Policy) {
        self.shared.gate.set_policy(policy);
    }

    /// Serves one connection out of the sandbox: HTTP/1.1 with `CONNECT`, or plain HTTP with as many requests as the
    /// client likes, each of them checked anew. Ends with the connection; dropped, it ends the connection.
    pub fn serve<S>(&self, stream: S) -> impl Future<Output = ()> + Send + use<S>
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let shared = Arc::clone(&self.shared);
        async move {
            // Beyond twice the limit a connection is dropped unread, so that refusing costs no memory either.
            if let Some((room, permit)) = shared.take_place() {
                Box::pin(serve(shared, room, stream)).await;
                drop(permit);
            }
        }
    }
}

impl Shared {
    fn take_place(&self) -> Option<(Room, OwnedSemaphorePermit)> {
        if let Ok(permit) = Arc::clone(&self.served).try_acquire_owned() {
            return Some((Room::Free, permit));
        }
        Some((Room::Full, Arc::clone(&self.turned_away).try_acquire_owned().ok()?))
    }

    async fn answer(
        &self,
        room: Room,
        slot: &TunnelSlot,
        request: Request<Incoming>,
    ) -> Response<ResponseBody> {
        match self.try_answer(room, slot, request).await {
            Ok(response) => response,
            Err(refusal) => refusal.response(),
        }
    }

    async fn try_answer(
        &self,
        room: Room,
        slot: &TunnelSlot,
        request: Request<Incoming>,
    ) -> Result<Response<ResponseBody>, Refusal> {
        let asker = Asker { call: read_call(request.headers()), method: request.method().to_string() };
        let target = match read_target(&request) {
            Ok(target) => target,
            Err(refusal) => {
                self.gate.refuse(asker, None, &refusal).await;
                return Err(refusal);
            }
        };
        if room == Room::Full {
            let most = self.gate.settings().connections;
            let reason =
                format!("{target} must wait, this sandbox has {most} connections open, the most it may have");
            let refusal = Refusal::failure(ReasonCode::TooManyConnections, reason);
            self.gate.refuse(asker, Some(&target), &refusal).await;
            return Err(refusal);
        }
        let admitted = self.gate.admit(asker, &target).await?;
        let idle_timeout = self.gate.settings().idle_timeout;
        if request.method() == Method::CONNECT {
            let tunnel = Tunnel::new(hyper::upgrade::on(request), admitted, idle_timeout);
            *slot.lock().unwrap_or_else(PoisonError::into_inner) = Some(tunnel);
            return Ok(Response::new(ResponseBody::default()));
        }
        forward::forward(request, &target, admitted, idle_timeout).await
    }

    async fn log_unreadable(&self, error: &hyper::Error) {
        let asker = Asker { call: None, method: String::new() };
        let code = if error.is_timeout() { ReasonCode::Timeout } else { ReasonCode::BadRequest };
        let refusal = Refusal::failure(code, format!("a request could not be read: {error}"));
        self.gate.refuse(asker, None, &refusal).await;
    }
}

/// Where the answer to `CONNECT` leaves the tunnel, to be run when the answer is sent. Run here and not in a task of
/// its own, it ends with the connection and holds the connection's place.
type TunnelSlot = Mutex<Option<Tunnel>>;

async fn serve<S>(shared: Arc<Shared>, room: Room, stream: S)
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let slot: Arc<TunnelSlot> = Arc::default();
    let service = service_fn(|request| {
        let (shared, slot) = (Arc::clone(&shared), Arc::clone(&slot));
        async move { Ok::<_, Infallible>(shared.answer(room, &slot, request).await) }
    });
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(shared.gate.settings().header_timeout)
        .keep_alive(room == Room::Free)
        .max_buf_size(HEAD_LIMIT)
        .serve_connection(TokioIo::new(stream), service)
        .with_upgrades()
        .await;
    match served {
        Err(error) if error.is_parse() || error.is_timeout() => shared.log_unreadable(&error).await,
        Err(error) => tracing::debug!(%error, "a connection out of a sandbox broke"),
        Ok(()) => {}
    }
    let tunnel = slot.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some(tunnel) = tunnel {
        tunnel.run().await;
    }
}

fn read_target<B>(request: &Request<B>) -> Result<Target, Refusal> {
    let bad = |reason: String| Refusal::failure(ReasonCode::BadRequest, reason);
    let uri = request.uri();
    let Some(authority) = uri.authority() else {
        return Err(bad("this is a proxy, it serves CONNECT and requests with a whole URL".into()));
    };
    let default_port = match (request.method() == Method::CONNECT, uri.scheme_str()) {
        (true, _) => None,
        (false, Some("http")) => Some(80),
        (false, _) => {
            return Err(bad(format!("only http:// is served as plain HTTP, {uri:.80} needs CONNECT")));
        }
    };
    Target::from_authority(authority.as_str(), default_port).map_err(|error| bad(error.to_string()))
}

/// The call that a client belongs to: the user name of its proxy setting. Written by whatever runs in the sandbox, so
/// it is a hint and only plain words are taken.
fn read_call(headers: &HeaderMap) -> Option<String> {
    let value = headers.get(PROXY_AUTHORIZATION)?.to_str().ok()?;
    let (scheme, encoded) = value.split_once(' ')?;
    if !scheme.eq_ignore_ascii_case("basic") {
        return None;
    }
    let decoded = String::from_utf8(STANDARD.decode(encoded.trim()).ok()?).ok()?;
    let call = decoded.split_once(':').map_or(decoded.as_str(), |(user, _)| user);
    let plain = call.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
    (plain && !call.is_empty() && call.len() <= CALL_LIMIT).then(|| call.to_owned())
}

#[cfg(test)]
mod tests {
    use hyper::header::HeaderValue;
    use proptest::prelude::*;

    use super::*;

    fn call_of(value: &[u8]) -> Option<String> {
        let mut headers = HeaderMap::new();
        headers.insert(PROXY_AUTHORIZATION, HeaderValue::from_bytes(value).ok()?);
        read_call(&headers)
    }

    #[test]
    fn the_call_is_the_user_name() {
        assert_eq!(call_of(b"Basic Y2FsbC0xOng=").as_deref(), Some("call-1"));
        assert_eq!(call_of(b"basic Y2FsbC0xOg==").as_deref(), Some("call-1"));
        for value in ["Bearer Y2FsbC0xOng=", "Basic", "Basic !!!", "Basic Og=="] {
            assert_eq!(call_of(value.as_bytes()), None, "{value}");
        }
        assert_eq!(call_of(format!("Basic {}", STANDARD.encode("a b\r\n:x")).as_bytes()), None);
        assert_eq!(call_of(format!("Basic {}", STANDARD.encode("a".repeat(129))).as_bytes()), None);
    }

    proptest! {
        #[test]
        fn reading_a_call_never_panics(value in proptest::collection::vec(any::<u8>(), 0..80), text in "\\PC{0,40}") {
            call_of(&value);
            let mut basic = b"Basic ".to_vec();
            basic.extend(value);
            call_of(&basic);
            let call = call_of(format!("Basic {}", STANDARD.encode(&text)).as_bytes());
            prop_assert!(call.is_none_or(|call| text.starts_with(&call)));
        }
    }
}
