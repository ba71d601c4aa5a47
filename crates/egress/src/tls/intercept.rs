//! Terminates TLS for the hosts of a job's secrets: reads requests, replaces placeholders by values, and forwards
//! everything over a separate TLS connection to the real server, whose certificate is verified.

use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper::header::{CONNECTION, EXPECT, HOST, HeaderValue, SEC_WEBSOCKET_EXTENSIONS, UPGRADE};
use hyper::service::service_fn;
use hyper::{HeaderMap, Request, Response, StatusCode, Uri, Version};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::{Mutex, oneshot};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

use super::first_bytes::{HANDSHAKE, check_server_name};
use super::job_ca::Authority;
use super::upstream::Upstream;
use crate::event::{EgressEvent, Fetch, now_ms};
use crate::gate::{Admitted, Gate, Requester};
use crate::http::{
    AuditedBody, BodyGuard, RefusalForm, ResponseBody, Scheme, Upgrade, ask_for_searchable, check_host,
    check_searchable, check_unique_headers, fetch_of, host_header, is_web_socket, redact_head,
    refusal_response, restore_placeholders, serialized_refusal, strip,
};
use crate::policy::{Grant, Visibility};
use crate::prefixed::Prefixed;
use crate::refusal::{ReasonCode, Refusal};
use crate::secrets::{LeakScanBody, Redactor, Secrets, Transport};
use crate::target::Target;

/// The time limit of the handshake with the client.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(15);
/// The maximum size of a request or response head.
const HEAD_LIMIT: usize = 256 * 1024;

/// What the proxy needs to terminate TLS for the hosts of a job's secrets.
#[derive(Clone)]
pub struct TlsInterception {
    secrets: Arc<Secrets>,
    redactor: Redactor,
    authority: Arc<Authority>,
    upstream: Upstream,
}

impl TlsInterception {
    /// Interception for these secrets, with the job's authority.
    #[must_use]
    pub fn new(secrets: Secrets, authority: Arc<Authority>, upstream: Upstream) -> Self {
        Self { redactor: secrets.redactor(), secrets: Arc::new(secrets), authority, upstream }
    }

    pub(crate) fn secrets(&self) -> &Arc<Secrets> {
        &self.secrets
    }

    /// Masks values in a target's plain HTTP responses; idle if no secret names the host.
    pub(crate) fn redactor_of(&self, target: &Target) -> Redactor {
        if self.concerns(target) { self.redactor.clone() } else { Redactor::new([]) }
    }

    /// Whether TLS to this target is terminated here.
    pub(crate) fn concerns(&self, target: &Target) -> bool {
        self.secrets.name_host(target)
    }
}

/// A connection whose TLS is terminated here.
struct InterceptedConnection<'a> {
    gate: &'a Gate,
    interception: &'a TlsInterception,
    requester: &'a Requester,
    target: &'a Target,
    connection: u64,
    /// The permission of the connection itself.
    grant: Grant,
    /// The connection to the server, or why there is none.
    server: Mutex<Result<SendRequest<LeakScanBody<Incoming>>, Refusal>>,
    /// Both ends, once they have switched protocols.
    upgraded: Mutex<Option<Upgrade>>,
}

/// Serves a client that believes it is connected to the server itself.
pub(crate) async fn intercept<C>(
    client: C,
    gate: &Gate,
    interception: &TlsInterception,
    requester: &Requester,
    target: &Target,
    admitted: Admitted,
) where
    C: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let Admitted { stream, meter, record, grant } = admitted;
    let idle_timeout = gate.settings().idle_timeout;
    let connection = record.id();
    let serving = async {
        let acceptor = match interception.authority.server_config(&target.host.to_string()) {
            Ok(config) => TlsAcceptor::from(config),
            Err(error) => return (None, error.to_string()),
        };
        let Some(client) = begins_with_tls(client, target).await else {
            return (Some(ReasonCode::BadRequest), "the client did not begin with TLS".into());
        };
        let client = match timeout(HANDSHAKE_TIMEOUT, acceptor.accept(client)).await {
            Ok(Ok(client)) => client,
            Ok(Err(error)) => return (None, format!("the client aborted the TLS handshake: {error}")),
            Err(_) => {
                return (Some(ReasonCode::Timeout), "the client did not finish the TLS handshake".into());
            }
        };
        let (connection_alive, mut server_ends) = oneshot::channel();
        // A client that names another server gets an error response; nothing is forwarded.
        let server = match check_server_name(client.get_ref().1.server_name(), target) {
            Ok(()) => reach_server(&interception.upstream, target, stream, connection_alive).await,
            Err(refusal) => Err(refusal),
        };
        let bad = server.as_ref().err().map(|refusal| (refusal.code, refusal.reason.clone()));
        let server = Mutex::new(server);
        let upgraded = Mutex::default();
        let session = InterceptedConnection {
            gate,
            interception,
            requester,
            target,
            connection,
            grant,
            server,
            upgraded,
        };
        let service = service_fn(|request| {
            let session = &session;
            async move { Ok::<_, Infallible>(session.answer(request).await) }
        });
        let serving = hyper::server::conn::http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(gate.settings().header_timeout.max(idle_timeout))
            .max_buf_size(HEAD_LIMIT)
            .serve_connection(TokioIo::new(client), service)
            .with_upgrades();
        let mut serving = pin!(serving);
        let served = tokio::select! {
            served = &mut serving => served,
            // The server closed the connection. Close the client's too, so that the client opens a new one.
            _ = &mut server_ends, if bad.is_none() => {
                serving.as_mut().graceful_shutdown();
                serving.await
            }
        };
        // Runs here instead of in a separate task, so that it is counted, ended and logged like everything else.
        let upgraded = session.upgraded.lock().await.take();
        if let (Ok(()), Some(upgraded)) = (&served, upgraded) {
            return upgraded.run(interception.redactor.stream()).await;
        }
        match (bad, served) {
            (Some((code, reason)), _) => (Some(code), reason),
            (None, Ok(())) => (None, "closed by the client".into()),
            (None, Err(error)) => (None, format!("broken: {error}")),
        }
    };
    let (code, reason) = tokio::select! {
        ended = serving => ended,
        () = gate.ledger().limit_reached() => gate.ledger().ending(),
        () = meter.idle(idle_timeout) => {
            (Some(ReasonCode::Timeout), format!("ended, no byte passed for {idle_timeout:?}"))
        }
    };
    record.close(code, reason).await;
}

/// Checks the first byte. A client that does not speak TLS gets an error that HTTP clients display.
async fn begins_with_tls<C>(mut client: C, target: &Target) -> Option<Prefixed<C>>
where
    C: AsyncRead + AsyncWrite + Unpin,
{
    let mut first = [0];
    timeout(HANDSHAKE_TIMEOUT, client.read_exact(&mut first)).await.ok()?.ok()?;
    if first[0] == HANDSHAKE {
        return Some(Prefixed { first: Bytes::copy_from_slice(&first), stream: client });
    }
    let refusal = Refusal {
        remedy: "use https".into(),
        ..Refusal::failure(
            ReasonCode::BadRequest,
            format!("{target} is a host of a secret and may only be used with TLS"),
        )
    };
    let _ = timeout(HANDSHAKE_TIMEOUT, client.write_all(serialized_refusal(&refusal).as_bytes())).await;
    let _ = timeout(HANDSHAKE_TIMEOUT, client.shutdown()).await;
    None
}

async fn reach_server<S>(
    upstream: &Upstream,
    target: &Target,
    stream: S,
    on_end: oneshot::Sender<Infallible>,
) -> Result<SendRequest<LeakScanBody<Incoming>>, Refusal>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let failed = |code, what: String| Refusal::failure(code, format!("{target} {what}"));
    let stream = upstream.secure(target, stream).await?;
    let (sender, connection) =
        http1::Builder::new().max_buf_size(HEAD_LIMIT).handshake(TokioIo::new(stream)).await.map_err(
            |error| failed(ReasonCode::ConnectFailed, format!("sent an invalid response: {error}")),
        )?;
    // Ends with the sender, which lives as long as the session, or when the server closes the connection.
    drop(tokio::spawn(async move {
        let _ = connection.with_upgrades().await;
        drop(on_end);
    }));
    Ok(sender)
}

impl InterceptedConnection<'_> {
    async fn answer(&self, request: Request<Incoming>) -> Response<ResponseBody> {
        let form = RefusalForm::of(&request, Some(&self.target.host.to_string()));
        match self.try_answer(request).await {
            Ok(response) => response,
            Err(refusal) => {
                // The connection itself was allowed and logged, so the refused request must be logged too.
                self.gate.refuse(self.requester.clone(), Some(self.target), &refusal).await;
                refusal_response(&refusal, &form)
            }
        }
    }

    async fn try_answer(&self, request: Request<Incoming>) -> Result<Response<ResponseBody>, Refusal> {
        check_unique_headers(request.headers())?;
        check_host(&request, self.target)?;
        let mut fetch = fetch_of(&request, self.requester, self.target, Scheme::Https);
        fetch.connection = self.connection;
        let visibility =
            Visibility::Request { method: request.method().as_str(), path: request.uri().path() };
        let allowed = self.gate.decide_request(self.requester, self.target, visibility, &self.grant).await?;
        fetch.rule = allowed.as_ref().map(|grant| grant.rule.clone()).unwrap_or_default();
        let carried = self.forward(request, fetch).await;
        if let (Err(_), Some(grant)) = (&carried, &allowed) {
            self.gate.give_back(grant).await;
        }
        carried
    }

    /// Forwards an allowed request.
    async fn forward(
        &self,
        mut request: Request<Incoming>,
        mut fetch: Fetch,
    ) -> Result<Response<ResponseBody>, Refusal> {
        self.interception.secrets.check_text(request.uri().to_string().as_bytes(), self.target)?;
        let changes_protocol = request.headers().contains_key(UPGRADE);
        fetch.secrets = self.rewrite(&mut request)?;
        let upgrade = changes_protocol.then(|| hyper::upgrade::on(&mut request));
        let is_web_socket = request.headers().get(UPGRADE).is_some_and(is_web_socket);
        let secrets = Arc::clone(&self.interception.secrets);
        let request =
            request.map(|body| LeakScanBody::new(body, secrets, self.target.clone(), Transport::Encrypted));
        let found = request.body().found();
        let failed = |what: &str| {
            Refusal::failure(
                ReasonCode::ConnectFailed,
                format!("{} sent an invalid response: {what}", self.target),
            )
        };
        let mut response = {
            let mut server = self.server.lock().await;
            let sender = match &mut *server {
                Ok(sender) => sender,
                Err(refusal) => return Err(refusal.clone()),
            };
            sender.ready().await.map_err(|error| failed(&error.to_string()))?;
            let sent = sender.send_request(request).await;
            sent.map_err(|error| found.refusal().unwrap_or_else(|| failed(&error.to_string())))?
        };
        fetch.status = response.status().as_u16();
        if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            let Some(upgrade) = upgrade else {
                return Err(failed("it switched protocols without a request"));
            };
            let server = hyper::upgrade::on(&mut response);
            *self.upgraded.lock().await = Some(Upgrade { client: upgrade, server, is_web_socket });
            let (mut head, _) = response.into_parts();
            restore_placeholders(&mut head.headers, &self.interception.secrets);
            redact_head(&mut head, &self.interception.redactor);
            // The new protocol has no end that could be awaited, so the request is logged and its permission used up
            // now.
            fetch.time_ms = now_ms();
            let _ = self.gate.events().send(EgressEvent::Fetched(fetch)).await;
            return Ok(Response::from_parts(head, ResponseBody::default()));
        }
        // Even if this request carried no value: the server may repeat one that it received earlier.
        check_searchable(&response, self.target)?;
        let (mut head, body) = response.into_parts();
        let is_last = ends_connection(&head.headers) || head.version < Version::HTTP_11;
        strip(&mut head.headers);
        if is_last {
            head.version = Version::HTTP_11;
            head.headers.insert(CONNECTION, HeaderValue::from_static("close"));
        }
        redact_head(&mut head, &self.interception.redactor);
        let redactor = self.interception.redactor.stream();
        let body = AuditedBody::new(body, NoGuard, redactor, fetch, self.gate.events().clone());
        Ok(Response::from_parts(head, body.boxed_unsync()))
    }

    fn rewrite(&self, request: &mut Request<Incoming>) -> Result<Vec<String>, Refusal> {
        let bad = |what: &str| Refusal::failure(ReasonCode::BadRequest, format!("{}: {what}", self.target));
        let path = request.uri().path_and_query().map_or("/", |path| path.as_str());
        let path: Uri = path.parse().map_err(|_| bad("the path is not valid"))?;
        *request.uri_mut() = path;
        let headers = request.headers_mut();
        if !headers.contains_key(UPGRADE) {
            strip(headers);
        }
        // WebSocket frames are searched for values too, so they must not be compressed.
        headers.remove(SEC_WEBSOCKET_EXTENSIONS);
        headers.remove(EXPECT);
        // The host in the form that was checked.
        headers.insert(HOST, host_header(self.target, Scheme::Https)?);
        ask_for_searchable(headers);
        Ok(self.interception.secrets.insert_values(headers, self.target)?.names)
    }
}

/// Whether the server will close this connection after the response.
fn ends_connection(headers: &HeaderMap) -> bool {
    let values = headers.get_all(CONNECTION).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).any(|word| word.trim().eq_ignore_ascii_case("close"))
}

struct NoGuard;

impl BodyGuard for NoGuard {
    fn on_body_end(&mut self) {}
}
