//! The entry point: reads HTTP or SOCKS5 requests from a byte stream out of a sandbox and dispatches them.

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
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::timeout;

use crate::approval::Approver;
use crate::connect::Tunnel;
use crate::event::EgressEvent;
use crate::forward::{Surroundings, forward};
use crate::gate::{Admitted, Asker, Gate};
use crate::headers::check_single;
use crate::intercept::{Interception, intercept};
use crate::ledger::{Allowance, Used};
use crate::policy::{Policy, Sight};
use crate::prefixed::Prefixed;
use crate::redact::Redactor;
use crate::refusal::{ReasonCode, Refusal};
use crate::secret::Secrets;
use crate::socks;
use crate::stray::{WatchedBody, Way};
use crate::target::Target;

/// A response body: the proxy's own text, or the server's response.
pub(crate) type ResponseBody = UnsyncBoxBody<Bytes, hyper::Error>;

/// The maximum size of a request head.
const HEAD_LIMIT: usize = 64 * 1024;
/// The maximum length of a call id.
const CALL_LIMIT: usize = 128;

/// Limits of a proxy. All of them apply per proxy, and therefore per sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProxySettings {
    /// Maximum number of concurrent connections; further ones are answered with 503.
    pub connections: usize,
    /// How long a client may take to send a request head, also for subsequent requests.
    pub header_timeout: Duration,
    /// The time limit for resolving a name.
    pub resolve_timeout: Duration,
    /// The time limit for connecting to one address.
    pub connect_timeout: Duration,
    /// After how much time without a byte a connection is ended.
    pub idle_timeout: Duration,
    /// The id of the first connection. A proxy that replaces another continues its numbering.
    pub first_id: u64,
    /// The job's network limits.
    pub allowance: Allowance,
    /// What the job has already used.
    pub used: Used,
    /// How long a connection waits for a person's answer.
    pub approval_patience: Duration,
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
            allowance: Allowance::default(),
            used: Used::default(),
            approval_patience: Duration::ZERO,
        }
    }
}

/// The egress proxy of one sandbox. Cheap to clone; clones share policy, log and limits.
#[derive(Clone)]
pub struct Proxy {
    shared: Arc<Shared>,
}

struct Shared {
    gate: Gate,
    interception: Option<Interception>,
    no_secrets: Arc<Secrets>,
    /// Limits the connections that are served.
    served: Arc<Semaphore>,
    /// Limits the connections that are answered with "too many connections".
    turned_away: Arc<Semaphore>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Room {
    Free,
    Full,
}

impl Proxy {
    /// A proxy with this policy and log. Connections wait while the log is full.
    #[must_use]
    pub fn new(policy: Policy, log: mpsc::Sender<EgressEvent>, settings: ProxySettings) -> Self {
        let room = || Arc::new(Semaphore::new(settings.connections.min(Semaphore::MAX_PERMITS)));
        let (served, turned_away) = (room(), room());
        Self {
            shared: Arc::new(Shared {
                gate: Gate::new(policy, log, settings),
                interception: None,
                no_secrets: Arc::default(),
                served,
                turned_away,
            }),
        }
    }

    /// Terminates TLS for the hosts of secrets. Call it before the first connection.
    #[must_use]
    pub fn with_interception(mut self, interception: Interception) -> Self {
        if let Some(shared) = Arc::get_mut(&mut self.shared) {
            shared.interception = Some(interception);
        }
        self
    }

    /// Sends refusals to a person for approval. Call it before the first connection.
    #[must_use]
    pub fn with_approver(mut self, approver: Arc<dyn Approver>) -> Self {
        if let Some(shared) = Arc::get_mut(&mut self.shared) {
            shared.gate.set_approver(approver);
        }
        self
    }

    /// The current policy.
    #[must_use]
    pub fn policy(&self) -> Arc<Policy> {
        self.shared.gate.policy()
    }

    /// Replaces the policy for all later requests. Established connections are not affected.
    pub fn set_policy(&self, policy: Policy) {
        self.shared.gate.set_policy(policy);
    }

    /// Logs the repeated refusals counted so far, because there may be no further refusal to report them with.
    pub async fn tell_held(&self) {
        self.shared.gate.tell_held().await;
    }

    pub(crate) fn gate(&self) -> &Gate {
        &self.shared.gate
    }

    /// Serves one connection out of the sandbox: SOCKS5, HTTP/1.1 with `CONNECT`, or plain HTTP with any number of
    /// requests, each checked separately. Returns when the connection ends; dropping the future ends the connection.
    pub fn serve<S>(&self, stream: S) -> impl Future<Output = ()> + Send + use<S>
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let shared = Arc::clone(&self.shared);
        async move {
            // Beyond twice the limit a connection is dropped unread, so that refusals use no memory either.
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
        let target = match check_single(request.headers()).and_then(|()| read_target(&request)) {
            Ok(target) => target,
            Err(refusal) => {
                self.gate.refuse(asker, None, &refusal).await;
                return Err(refusal);
            }
        };
        self.check_room(room, &asker, &target).await?;
        self.check_name(&asker, &target).await?;
        if request.method() == Method::CONNECT {
            let admitted = self.admit_stream(&asker, &target).await?;
            let waiting = Waiting { client: hyper::upgrade::on(request), asker, target, admitted };
            *slot.lock().unwrap_or_else(PoisonError::into_inner) = Some(waiting);
            return Ok(Response::new(ResponseBody::default()));
        }
        if let Err(refusal) = self.check_stray(&request, &target) {
            self.gate.refuse(asker, Some(&target), &refusal).await;
            return Err(refusal);
        }
        let sight = Sight::Request { method: request.method().as_str(), path: request.uri().path() };
        let admitted = self.gate.admit(asker.clone(), &target, sight).await?;
        let around = Surroundings {
            idle_timeout: self.gate.settings().idle_timeout,
            events: self.gate.events().clone(),
            ledger: Arc::clone(self.gate.ledger()),
            redactor: self
                .interception
                .as_ref()
                .map_or_else(|| Redactor::new([]), |interception| interception.redactor_of(&target)),
        };
        let secrets = Arc::clone(self.secrets());
        let request = request.map(|body| WatchedBody::new(body, secrets, target.clone(), Way::Plain));
        let answered = forward(request, &asker, &target, admitted, around).await;
        if let Err(refusal) = &answered
            && refusal.code == ReasonCode::UnsearchableAnswer
        {
            self.gate.refuse(asker, Some(&target), refusal).await;
        }
        answered
    }

    async fn check_room(&self, room: Room, asker: &Asker, target: &Target) -> Result<(), Refusal> {
        if room == Room::Free {
            return Ok(());
        }
        let most = self.gate.settings().connections;
        let reason =
            format!("{target} must wait, this sandbox has {most} connections open, the most it may have");
        let refusal = Refusal::failure(ReasonCode::TooManyConnections, reason);
        self.gate.refuse(asker.clone(), Some(target), &refusal).await;
        Err(refusal)
    }

    /// Refuses a name that contains a placeholder, because resolving it would leak the placeholder to name servers.
    async fn check_name(&self, asker: &Asker, target: &Target) -> Result<(), Refusal> {
        let checked = self.secrets().check_name(target);
        if let Err(refusal) = &checked {
            self.gate.refuse(asker.clone(), Some(target), refusal).await;
        }
        checked
    }

    async fn admit_socks(&self, room: Room, asker: &Asker, target: &Target) -> Result<Admitted, Refusal> {
        self.check_room(room, asker, target).await?;
        self.check_name(asker, target).await?;
        self.admit_stream(asker, target).await
    }

    /// Refuses placeholders in plain HTTP requests, which anyone on the network path could read.
    fn check_stray(&self, request: &Request<Incoming>, target: &Target) -> Result<(), Refusal> {
        match &self.interception {
            Some(interception) => interception.secrets().check_plain(request, target),
            None => Ok(()),
        }
    }

    /// Decides on and establishes a connection that carries bytes in both directions.
    async fn admit_stream(&self, asker: &Asker, target: &Target) -> Result<Admitted, Refusal> {
        let sight = if self.interception_of(target).is_some() { Sight::Requests } else { Sight::Bytes };
        self.gate.admit(asker.clone(), target, sight).await
    }

    fn secrets(&self) -> &Arc<Secrets> {
        self.interception.as_ref().map_or(&self.no_secrets, Interception::secrets)
    }

    fn interception_of(&self, target: &Target) -> Option<&Interception> {
        self.interception.as_ref().filter(|interception| interception.concerns(target))
    }

    /// Runs an admitted connection.
    async fn carry<C>(&self, client: C, asker: &Asker, target: Target, admitted: Admitted)
    where
        C: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        if let Some(interception) = self.interception_of(&target) {
            return Box::pin(intercept(client, &self.gate, interception, asker, &target, admitted)).await;
        }
        let secrets = Arc::clone(self.secrets());
        let tunnel = Tunnel { gate: &self.gate, asker, target: &target, secrets };
        Box::pin(tunnel.carry(client, admitted)).await;
    }

    /// Serves a SOCKS5 client.
    async fn serve_socks<S>(&self, room: Room, mut stream: S)
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let patience = self.gate.settings().header_timeout;
        let wanted = match timeout(patience, socks::read_request(&mut stream)).await {
            Ok(Ok(wanted)) => wanted,
            Ok(Err(error)) => return self.log_broken(ReasonCode::BadRequest, &error.to_string()).await,
            Err(_) => return self.log_broken(ReasonCode::Timeout, "it took too long").await,
        };
        let call = wanted.user.as_deref().and_then(plain_call);
        let asker = Asker { call, method: "SOCKS5".into() };
        let admitted = match &wanted.target {
            Err(refusal) => {
                self.gate.refuse(asker.clone(), None, refusal).await;
                Err(refusal.clone())
            }
            Ok(target) => self.admit_socks(room, &asker, target).await,
        };
        match (admitted, wanted.target) {
            (Ok(admitted), Ok(target)) => {
                if socks::accept(&mut stream).await.is_ok() {
                    self.carry(stream, &asker, target, admitted).await;
                }
            }
            (Err(refusal), _) | (_, Err(refusal)) => drop(socks::refuse(&mut stream, &refusal).await),
        }
    }

    async fn log_broken(&self, code: ReasonCode, why: &str) {
        let asker = Asker { call: None, method: String::new() };
        let refusal = Refusal::failure(code, format!("a request could not be read: {why}"));
        self.gate.refuse(asker, None, &refusal).await;
    }

    async fn log_unreadable(&self, error: &hyper::Error) {
        let code = if error.is_timeout() { ReasonCode::Timeout } else { ReasonCode::BadRequest };
        self.log_broken(code, &error.to_string()).await;
    }
}

/// An admitted connection that waits for its response to be sent.
struct Waiting {
    client: hyper::upgrade::OnUpgrade,
    asker: Asker,
    target: Target,
    admitted: Admitted,
}

/// Where the response to `CONNECT` leaves the tunnel, which runs once the response is sent. It runs here instead of
/// in a separate task, so that it ends with the connection and holds the connection's permit.
type TunnelSlot = Mutex<Option<Waiting>>;

async fn serve<S>(shared: Arc<Shared>, room: Room, mut stream: S)
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    // The first byte distinguishes the two protocols.
    let mut first = [0];
    match timeout(shared.gate.settings().header_timeout, stream.read_exact(&mut first)).await {
        Ok(Ok(_)) => {}
        Ok(Err(_)) => return,
        Err(_) => return shared.log_broken(ReasonCode::Timeout, "no byte came").await,
    }
    let stream = Prefixed { first: Bytes::copy_from_slice(&first), stream };
    if first[0] == socks::VERSION {
        return shared.serve_socks(room, stream).await;
    }
    serve_http(shared, room, stream).await;
}

async fn serve_http<S>(shared: Arc<Shared>, room: Room, stream: S)
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
    let waiting = slot.lock().unwrap_or_else(PoisonError::into_inner).take();
    let Some(Waiting { client, asker, target, admitted }) = waiting else { return };
    match client.await {
        Ok(client) => shared.carry(TokioIo::new(client), &asker, target, admitted).await,
        Err(error) => admitted.record.close(None, format!("the client was gone: {error}")).await,
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

/// The call that a client belongs to: the user name of its proxy setting. Code in the sandbox sets it, so it is only
/// a hint, and only plain words are accepted.
fn read_call(headers: &HeaderMap) -> Option<String> {
    let value = headers.get(PROXY_AUTHORIZATION)?.to_str().ok()?;
    let (scheme, encoded) = value.split_once(' ')?;
    if !scheme.eq_ignore_ascii_case("basic") {
        return None;
    }
    let decoded = String::from_utf8(STANDARD.decode(encoded.trim()).ok()?).ok()?;
    plain_call(decoded.split_once(':').map_or(decoded.as_str(), |(user, _)| user))
}

fn plain_call(call: &str) -> Option<String> {
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
