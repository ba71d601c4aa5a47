//! Plain HTTP: one request to its server, its answer back, both streamed. Every request has a connection of its own.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::{Body, Incoming};
use hyper::client::conn::http1;
use hyper::header::{
    CONNECTION, EXPECT, HOST, HeaderName, HeaderValue, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TE, TRAILER,
    TRANSFER_ENCODING, UPGRADE,
};
use hyper::{HeaderMap, Request, Response, StatusCode, Uri, Version};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::JoinHandle;

use crate::answer_body::{AnswerBody, Companion};
use crate::answer_head::{ask_for_searchable, check_searchable, cover_head};
use crate::event::{EventSender, Fetch, Record};
use crate::gate::{Admitted, Asker};
use crate::ledger::Ledger;
use crate::meter::Meter;
use crate::proxy::ResponseBody;
use crate::redact::Redactor;
use crate::refusal::{ReasonCode, Refusal};
use crate::stray::{Found, WatchedBody};
use crate::target::Target;

/// The most that the head of an answer may take.
const HEAD_LIMIT: usize = 256 * 1024;

/// Headers that concern one connection and not the message.
const HOP_BY_HOP: [HeaderName; 9] = [
    CONNECTION,
    PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION,
    TE,
    TRAILER,
    TRANSFER_ENCODING,
    UPGRADE,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
];

/// What a request needs beside its connection.
pub(crate) struct Surroundings {
    pub(crate) idle_timeout: Duration,
    pub(crate) events: EventSender,
    pub(crate) ledger: std::sync::Arc<Ledger>,
    /// Covers values in the answer.
    pub(crate) redactor: Redactor,
}

/// Sends a request over an admitted connection and returns the answer, whose body is still to come.
pub(crate) async fn forward(
    request: Request<WatchedBody<Incoming>>,
    asker: &Asker,
    target: &Target,
    admitted: Admitted,
    around: Surroundings,
) -> Result<Response<ResponseBody>, Refusal> {
    let fetch = fetch_of(&request, asker, target, Scheme::Http);
    let found = request.body().found();
    let mut request = rewrite_request(request, target, Scheme::Http)?;
    if !around.redactor.is_idle() {
        ask_for_searchable(request.headers_mut());
    }
    let Admitted { stream, meter, record, .. } = admitted;
    let open = Open { meter, record, fetch, found: found.clone() };
    let answered = exchange(stream, request, target, open, around).await;
    answered.map_err(|refusal| found.refusal().unwrap_or(refusal))
}

/// A connection that stands, and what will be told of it.
pub(crate) struct Open {
    pub(crate) meter: std::sync::Arc<Meter>,
    pub(crate) record: Record,
    pub(crate) fetch: Fetch,
    /// What is found in the body that is sent.
    pub(crate) found: Found,
}

/// Sends one request over a connection of its own and returns the answer, whose body is still to come.
pub(crate) async fn exchange<S, B>(
    stream: S,
    request: Request<B>,
    target: &Target,
    open: Open,
    around: Surroundings,
) -> Result<Response<ResponseBody>, Refusal>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    B: Body<Data = Bytes> + Send + Unpin + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let Open { meter, record, mut fetch, found } = open;
    let Surroundings { idle_timeout, events, ledger, redactor } = around;
    fetch.connection = record.id();
    let failed = |error: &hyper::Error| {
        Refusal::failure(ReasonCode::ConnectFailed, format!("{target} gave no proper answer: {error}"))
    };
    let (mut sender, connection) = http1::Builder::new()
        .max_buf_size(HEAD_LIMIT)
        .handshake(TokioIo::new(stream))
        .await
        .map_err(|error| failed(&error))?;
    let counters = record.meter();
    let mut driver = Driver(Some(tokio::spawn(async move {
        let (code, reason) = tokio::select! {
            ended = connection => match ended {
                Ok(()) => (None, "answered".into()),
                Err(error) => (None, format!("broken: {error}")),
            },
            () = ledger.all_used_up() => ledger.ending(),
            () = counters.idle(idle_timeout) => {
                (Some(ReasonCode::Timeout), format!("ended, no byte passed for {idle_timeout:?}"))
            }
        };
        match found.refusal() {
            Some(refusal) => record.close(Some(refusal.code), refusal.reason).await,
            None => record.close(code, reason).await,
        }
    })));
    let error = match sender.send_request(request).await {
        Ok(response) if response.status() != StatusCode::SWITCHING_PROTOCOLS => {
            fetch.status = response.status().as_u16();
            if !redactor.is_idle()
                && let Err(refusal) = check_searchable(&response, target)
            {
                driver.let_go();
                return Err(refusal);
            }
            let (mut head, body) = response.into_parts();
            head.version = Version::HTTP_11;
            strip(&mut head.headers);
            cover_head(&mut head, &redactor);
            let body = AnswerBody::new(body, driver, redactor.stream(), fetch, events).boxed_unsync();
            return Ok(Response::from_parts(head, body));
        }
        Ok(_) => {
            let reason = format!("{target} changed the protocol without being asked");
            return Err(Refusal::failure(ReasonCode::ConnectFailed, reason));
        }
        Err(error) => error,
    };
    driver.let_go();
    if meter.is_idle(idle_timeout) {
        let reason = format!("{target} did not answer within {idle_timeout:?}");
        return Err(Refusal::failure(ReasonCode::Timeout, reason));
    }
    Err(failed(&error))
}

pub(crate) fn rewrite_request<B>(
    mut request: Request<B>,
    target: &Target,
    scheme: Scheme,
) -> Result<Request<B>, Refusal> {
    let bad = |what: &str| Refusal::failure(ReasonCode::BadRequest, format!("{target}: {what}"));
    let path = request.uri().path_and_query().map_or("/", |path| path.as_str());
    let path: Uri = path.parse().map_err(|_| bad("the path is not valid"))?;
    let host = host_header(target, scheme)?;
    *request.uri_mut() = path;
    *request.version_mut() = Version::HTTP_11;
    let headers = request.headers_mut();
    strip(headers);
    // The client has had its "100 Continue" from us.
    headers.remove(EXPECT);
    headers.insert(HOST, host);
    headers.insert(CONNECTION, HeaderValue::from_static("close"));
    Ok(request)
}

/// The header that names the host of a target.
pub(crate) fn host_header(target: &Target, scheme: Scheme) -> Result<HeaderValue, Refusal> {
    let place = target.to_string();
    let host = place.strip_suffix(scheme.usual_port()).unwrap_or(&place);
    HeaderValue::try_from(host)
        .map_err(|_| Refusal::failure(ReasonCode::BadRequest, format!("{target}: the host is not valid")))
}

/// How the client asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scheme {
    Http,
    Https,
}

impl Scheme {
    fn name(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Https => "https",
        }
    }

    /// What may be left out after a host.
    fn usual_port(self) -> &'static str {
        match self {
            Self::Http => ":80",
            Self::Https => ":443",
        }
    }
}

/// What will be told of an answer. The query is left out: it may hold what nobody else should read.
pub(crate) fn fetch_of<B>(request: &Request<B>, asker: &Asker, target: &Target, scheme: Scheme) -> Fetch {
    let place = target.to_string();
    let place = place.strip_suffix(scheme.usual_port()).unwrap_or(&place);
    Fetch {
        connection: 0,
        time_ms: 0,
        call: asker.call.clone(),
        method: request.method().to_string(),
        url: format!("{}://{place}{}", scheme.name(), request.uri().path()),
        status: 0,
        bytes: 0,
        sha256: None,
        secrets: Vec::new(),
        rule: String::new(),
    }
}

pub(crate) fn strip(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    for name in HOP_BY_HOP.iter().chain(&named) {
        headers.remove(name);
    }
}

/// The task that moves the bytes of one connection; ends with this value unless it is let go.
struct Driver(Option<JoinHandle<()>>);

impl Companion for Driver {
    /// The connection ends by itself now, and tells the log how.
    fn let_go(&mut self) {
        self.0 = None;
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        if let Some(task) = self.0.take() {
            task.abort();
        }
    }
}
