//! The entry point: reads HTTP or SOCKS5 requests from a byte stream out of a sandbox and dispatches them.

mod environment;
mod request;
mod server_request;
mod socks;
mod tunnel;

use std::convert::Infallible;
use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::timeout;

use crate::event::EgressEvent;
use crate::gate::{Admitted, Approver, Gate, Requester};
use crate::http::{
    ForwardContext, RefusalForm, ResponseBody, check_unique_headers, forward, refusal_response,
};
use crate::policy::{Policy, Visibility};
use crate::prefixed::Prefixed;
use crate::refusal::{ReasonCode, Refusal};
use crate::secrets::{LeakScanBody, Redactor, Secrets, Transport};
use crate::settings::ProxySettings;
use crate::target::Target;
use crate::tls::{TlsInterception, intercept};

use self::request::{plain_call, read_call, read_target};
use self::tunnel::Tunnel;

pub use self::environment::{TrustStores, environment};
pub use self::server_request::ServerResponseBody;

/// The maximum size of a request head.
const HEAD_LIMIT: usize = 64 * 1024;

/// The egress proxy of one sandbox. Cheap to clone; clones share policy, log and limits.
#[derive(Clone)]
pub struct Proxy {
    shared: Arc<Shared>,
}

struct Shared {
    gate: Gate,
    interception: Option<TlsInterception>,
    no_secrets: Arc<Secrets>,
    /// Limits the connections that are served.
    served: Arc<Semaphore>,
    /// Limits the connections that are answered with "too many connections".
    overflow_permits: Arc<Semaphore>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Capacity {
    Free,
    Full,
}

impl Proxy {
    /// A proxy with this policy and log. Connections wait while the log is full.
    #[must_use]
    pub fn new(policy: Policy, log: mpsc::Sender<EgressEvent>, settings: ProxySettings) -> Self {
        let semaphore = || Arc::new(Semaphore::new(settings.connections.min(Semaphore::MAX_PERMITS)));
        let (served, overflow_permits) = (semaphore(), semaphore());
        Self {
            shared: Arc::new(Shared {
                gate: Gate::new(policy, log, settings),
                interception: None,
                no_secrets: Arc::default(),
                served,
                overflow_permits,
            }),
        }
    }

    /// Terminates TLS for the hosts of secrets. Call it before the first connection.
    #[must_use]
    pub fn with_tls_interception(mut self, interception: TlsInterception) -> Self {
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
    pub async fn flush_refusals(&self) {
        self.shared.gate.flush_refusals().await;
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
            if let Some((capacity, permit)) = shared.acquire_permit() {
                Box::pin(serve(shared, capacity, stream)).await;
                drop(permit);
            }
        }
    }
}

impl Shared {
    fn acquire_permit(&self) -> Option<(Capacity, OwnedSemaphorePermit)> {
        if let Ok(permit) = Arc::clone(&self.served).try_acquire_owned() {
            return Some((Capacity::Free, permit));
        }
        Some((Capacity::Full, Arc::clone(&self.overflow_permits).try_acquire_owned().ok()?))
    }

    async fn answer(
        &self,
        capacity: Capacity,
        slot: &TunnelSlot,
        request: Request<Incoming>,
    ) -> Response<ResponseBody> {
        let form = RefusalForm::of(&request, None);
        match self.try_answer(capacity, slot, request).await {
            Ok(response) => response,
            Err(refusal) => refusal_response(&refusal, &form),
        }
    }

    async fn try_answer(
        &self,
        capacity: Capacity,
        slot: &TunnelSlot,
        request: Request<Incoming>,
    ) -> Result<Response<ResponseBody>, Refusal> {
        let requester =
            Requester { call: read_call(request.headers()), method: request.method().to_string() };
        let target = match check_unique_headers(request.headers()).and_then(|()| read_target(&request)) {
            Ok(target) => target,
            Err(refusal) => {
                self.gate.refuse(requester, None, &refusal).await;
                return Err(refusal);
            }
        };
        self.check_capacity(capacity, &requester, &target).await?;
        self.check_name(&requester, &target).await?;
        if request.method() == Method::CONNECT {
            let admitted = self.admit_stream(&requester, &target).await?;
            let waiting = Waiting { client: hyper::upgrade::on(request), requester, target, admitted };
            *slot.lock().unwrap_or_else(PoisonError::into_inner) = Some(waiting);
            return Ok(Response::new(ResponseBody::default()));
        }
        if let Err(refusal) = self.check_plain_http_leak(&request, &target) {
            self.gate.refuse(requester, Some(&target), &refusal).await;
            return Err(refusal);
        }
        let visibility =
            Visibility::Request { method: request.method().as_str(), path: request.uri().path() };
        let admitted = self.gate.admit(requester.clone(), &target, visibility).await?;
        let context = ForwardContext {
            idle_timeout: self.gate.settings().idle_timeout,
            events: self.gate.events().clone(),
            ledger: Arc::clone(self.gate.ledger()),
            redactor: self
                .interception
                .as_ref()
                .map_or_else(|| Redactor::new([]), |interception| interception.redactor_of(&target)),
        };
        let secrets = Arc::clone(self.secrets());
        let request = request.map(|body| LeakScanBody::new(body, secrets, target.clone(), Transport::Plain));
        let answered = forward(request, &requester, &target, admitted, context).await;
        if let Err(refusal) = &answered
            && refusal.code == ReasonCode::UnscannableResponse
        {
            self.gate.refuse(requester, Some(&target), refusal).await;
        }
        answered
    }

    async fn check_capacity(
        &self,
        capacity: Capacity,
        requester: &Requester,
        target: &Target,
    ) -> Result<(), Refusal> {
        if capacity == Capacity::Free {
            return Ok(());
        }
        let most = self.gate.settings().connections;
        let reason = format!(
            "cannot connect to {target}: this sandbox has reached its limit of {most} open connections"
        );
        let refusal = Refusal::failure(ReasonCode::TooManyConnections, reason);
        self.gate.refuse(requester.clone(), Some(target), &refusal).await;
        Err(refusal)
    }

    /// Refuses a name that contains a placeholder, because resolving it would leak the placeholder to name servers.
    async fn check_name(&self, requester: &Requester, target: &Target) -> Result<(), Refusal> {
        let checked = self.secrets().check_name(target);
        if let Err(refusal) = &checked {
            self.gate.refuse(requester.clone(), Some(target), refusal).await;
        }
        checked
    }

    async fn admit_socks(
        &self,
        capacity: Capacity,
        requester: &Requester,
        target: &Target,
    ) -> Result<Admitted, Refusal> {
        self.check_capacity(capacity, requester, target).await?;
        self.check_name(requester, target).await?;
        self.admit_stream(requester, target).await
    }

    /// Refuses placeholders in plain HTTP requests, which anyone on the network path could read.
    fn check_plain_http_leak(&self, request: &Request<Incoming>, target: &Target) -> Result<(), Refusal> {
        match &self.interception {
            Some(interception) => interception.secrets().check_plain(request, target),
            None => Ok(()),
        }
    }

    /// Decides on and establishes a connection that carries bytes in both directions.
    async fn admit_stream(&self, requester: &Requester, target: &Target) -> Result<Admitted, Refusal> {
        let visibility =
            if self.interception_of(target).is_some() { Visibility::Requests } else { Visibility::Bytes };
        self.gate.admit(requester.clone(), target, visibility).await
    }

    fn secrets(&self) -> &Arc<Secrets> {
        self.interception.as_ref().map_or(&self.no_secrets, TlsInterception::secrets)
    }

    fn interception_of(&self, target: &Target) -> Option<&TlsInterception> {
        self.interception.as_ref().filter(|interception| interception.concerns(target))
    }

    /// Runs an admitted connection.
    async fn run<C>(&self, client: C, requester: &Requester, target: Target, admitted: Admitted)
    where
        C: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        if let Some(interception) = self.interception_of(&target) {
            return Box::pin(intercept(client, &self.gate, interception, requester, &target, admitted)).await;
        }
        let secrets = Arc::clone(self.secrets());
        let tunnel = Tunnel { gate: &self.gate, requester, target: &target, secrets };
        Box::pin(tunnel.run(client, admitted)).await;
    }

    /// Serves a SOCKS5 client.
    async fn serve_socks<S>(&self, capacity: Capacity, mut stream: S)
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let limit = self.gate.settings().header_timeout;
        let request = match timeout(limit, socks::read_request(&mut stream)).await {
            Ok(Ok(request)) => request,
            Ok(Err(error)) => return self.log_broken(ReasonCode::BadRequest, &error.to_string()).await,
            Err(_) => return self.log_broken(ReasonCode::Timeout, "the request took too long").await,
        };
        let call = request.user.as_deref().and_then(plain_call);
        let requester = Requester { call, method: "SOCKS5".into() };
        let admitted = match &request.target {
            Err(refusal) => {
                self.gate.refuse(requester.clone(), None, refusal).await;
                Err(refusal.clone())
            }
            Ok(target) => self.admit_socks(capacity, &requester, target).await,
        };
        match (admitted, request.target) {
            (Ok(admitted), Ok(target)) => {
                if socks::accept(&mut stream).await.is_ok() {
                    self.run(stream, &requester, target, admitted).await;
                }
            }
            (Err(refusal), _) | (_, Err(refusal)) => drop(socks::refuse(&mut stream, &refusal).await),
        }
    }

    async fn log_broken(&self, code: ReasonCode, why: &str) {
        let requester = Requester { call: None, method: String::new() };
        let refusal = Refusal::failure(code, format!("invalid request: {why}"));
        self.gate.refuse(requester, None, &refusal).await;
    }

    async fn log_unreadable(&self, error: &hyper::Error) {
        let code = if error.is_timeout() { ReasonCode::Timeout } else { ReasonCode::BadRequest };
        self.log_broken(code, &error.to_string()).await;
    }
}

/// An admitted connection that waits for its response to be sent.
struct Waiting {
    client: hyper::upgrade::OnUpgrade,
    requester: Requester,
    target: Target,
    admitted: Admitted,
}

/// Where the response to `CONNECT` leaves the tunnel, which runs once the response is sent. It runs here instead of
/// in a separate task, so that it ends with the connection and holds the connection's permit.
type TunnelSlot = Mutex<Option<Waiting>>;

async fn serve<S>(shared: Arc<Shared>, capacity: Capacity, mut stream: S)
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    // The first byte distinguishes the two protocols.
    let mut first = [0];
    match timeout(shared.gate.settings().header_timeout, stream.read_exact(&mut first)).await {
        Ok(Ok(_)) => {}
        Ok(Err(_)) => return,
        Err(_) => return shared.log_broken(ReasonCode::Timeout, "no data received").await,
    }
    let stream = Prefixed { first: Bytes::copy_from_slice(&first), stream };
    if first[0] == socks::VERSION {
        return shared.serve_socks(capacity, stream).await;
    }
    serve_http(shared, capacity, stream).await;
}

async fn serve_http<S>(shared: Arc<Shared>, capacity: Capacity, stream: S)
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let slot: Arc<TunnelSlot> = Arc::default();
    let has_requested = AtomicBool::new(false);
    let service = service_fn(|request| {
        has_requested.store(true, Ordering::Relaxed);
        let (shared, slot) = (Arc::clone(&shared), Arc::clone(&slot));
        async move { Ok::<_, Infallible>(shared.answer(capacity, &slot, request).await) }
    });
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(shared.gate.settings().header_timeout)
        .keep_alive(capacity == Capacity::Free)
        .max_buf_size(HEAD_LIMIT)
        .serve_connection(TokioIo::new(stream), service)
        .with_upgrades()
        .await;
    match served {
        // A client that keeps its connection for a next request, which does not come.
        Err(error) if error.is_timeout() && has_requested.load(Ordering::Relaxed) => {}
        Err(error) if error.is_parse() || error.is_timeout() => shared.log_unreadable(&error).await,
        Err(error) => tracing::debug!(%error, "a connection from a sandbox broke"),
        Ok(()) => {}
    }
    let waiting = slot.lock().unwrap_or_else(PoisonError::into_inner).take();
    let Some(Waiting { client, requester, target, admitted }) = waiting else { return };
    match client.await {
        Ok(client) => shared.run(TokioIo::new(client), &requester, target, admitted).await,
        Err(error) => admitted.record.close(None, format!("the client disconnected: {error}")).await,
    }
}
