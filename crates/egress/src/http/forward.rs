//! Plain HTTP: sends one request to its server and streams the response back. Every request uses a new connection.

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

use super::response_body::{AuditedBody, BodyGuard, ResponseBody};
use super::response_head::{ask_for_searchable, check_searchable, redact_head};
use crate::event::{EventSender, Fetch};
use crate::gate::{Admitted, Requester};
use crate::log::Record;
use crate::refusal::{ReasonCode, Refusal};
use crate::secrets::{Found, LeakScanBody, Redactor};
use crate::target::Target;
use crate::usage::{Ledger, Meter};

/// The maximum size of a response head.
const HEAD_LIMIT: usize = 256 * 1024;

/// Hop-by-hop headers, which belong to one connection and not to the message.
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

/// The context of a request.
pub(crate) struct ForwardContext {
    pub(crate) idle_timeout: Duration,
    pub(crate) events: EventSender,
    pub(crate) ledger: std::sync::Arc<Ledger>,
    /// Masks values in the response.
    pub(crate) redactor: Redactor,
}

/// Sends a request over an admitted connection and returns the response, whose body is streamed.
pub(crate) async fn forward(
    request: Request<LeakScanBody<Incoming>>,
    requester: &Requester,
    target: &Target,
    admitted: Admitted,
    context: ForwardContext,
) -> Result<Response<ResponseBody>, Refusal> {
    let fetch = fetch_of(&request, requester, target, Scheme::Http);
    let found = request.body().found();
    let mut request = rewrite_request(request, target, Scheme::Http)?;
    if !context.redactor.is_idle() {
        ask_for_searchable(request.headers_mut());
    }
    let Admitted { stream, meter, record, .. } = admitted;
    let open = Open { meter, record, fetch, found: found.clone() };
    let answered = exchange(stream, request, target, open, context).await;
    answered.map_err(|refusal| found.refusal().unwrap_or(refusal))
}

/// An established connection and its pending log entries.
pub(crate) struct Open {
    pub(crate) meter: std::sync::Arc<Meter>,
    pub(crate) record: Record,
    pub(crate) fetch: Fetch,
    /// The placeholder found in the request body, if any.
    pub(crate) found: Found,
}

/// Sends one request over a new connection and returns the response, whose body is streamed.
pub(crate) async fn exchange<S, B>(
    stream: S,
    request: Request<B>,
    target: &Target,
    open: Open,
    context: ForwardContext,
) -> Result<Response<ResponseBody>, Refusal>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    B: Body<Data = Bytes> + Send + Unpin + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let Open { meter, record, mut fetch, found } = open;
    let ForwardContext { idle_timeout, events, ledger, redactor } = context;
    fetch.connection = record.id();
    let failed = |error: &hyper::Error| {
        let what = if error.is_incomplete_message() || error.is_canceled() || error.is_closed() {
            "closed the connection before its response was complete".into()
        } else {
            format!("sent an invalid response: {error}")
        };
        Refusal::failure(ReasonCode::ConnectFailed, format!("{target} {what}"))
    };
    let (mut sender, connection) = http1::Builder::new()
        .max_buf_size(HEAD_LIMIT)
        .handshake(TokioIo::new(stream))
        .await
        .map_err(|error| failed(&error))?;
    let counters = record.meter();
    let mut driver = ConnectionTask(Some(tokio::spawn(async move {
        let (code, reason) = tokio::select! {
            ended = connection => match ended {
                Ok(()) => (None, "answered".into()),
                Err(error) => (None, format!("broken: {error}")),
            },
            () = ledger.limit_reached() => ledger.ending(),
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
                driver.on_body_end();
                return Err(refusal);
            }
            let (mut head, body) = response.into_parts();
            head.version = Version::HTTP_11;
            strip(&mut head.headers);
            redact_head(&mut head, &redactor);
            let body = AuditedBody::new(body, driver, redactor.stream(), fetch, events).boxed_unsync();
            return Ok(Response::from_parts(head, body));
        }
        Ok(_) => {
            let reason = format!("{target} switched protocols without a request");
            return Err(Refusal::failure(ReasonCode::ConnectFailed, reason));
        }
        Err(error) => error,
    };
    driver.on_body_end();
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
    // The proxy has already sent "100 Continue" to the client.
    headers.remove(EXPECT);
    headers.insert(HOST, host);
    headers.insert(CONNECTION, HeaderValue::from_static("close"));
    Ok(request)
}

/// The `Host` header for a target.
pub(crate) fn host_header(target: &Target, scheme: Scheme) -> Result<HeaderValue, Refusal> {
    let authority = target.to_string();
    let host = authority.strip_suffix(scheme.usual_port()).unwrap_or(&authority);
    HeaderValue::try_from(host)
        .map_err(|_| Refusal::failure(ReasonCode::BadRequest, format!("{target}: the host is not valid")))
}

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

    /// The port suffix that may be omitted.
    fn usual_port(self) -> &'static str {
        match self {
            Self::Http => ":80",
            Self::Https => ":443",
        }
    }
}

/// The log entry for a response. It omits the query, which may contain confidential data.
pub(crate) fn fetch_of<B>(
    request: &Request<B>,
    requester: &Requester,
    target: &Target,
    scheme: Scheme,
) -> Fetch {
    let authority = target.to_string();
    let authority = authority.strip_suffix(scheme.usual_port()).unwrap_or(&authority);
    Fetch {
        connection: 0,
        time_ms: 0,
        call: requester.call.clone(),
        method: request.method().to_string(),
        url: format!("{}://{authority}{}", scheme.name(), request.uri().path()),
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

/// The task that drives one connection. Dropping this value aborts it unless it was released.
struct ConnectionTask(Option<JoinHandle<()>>);

impl BodyGuard for ConnectionTask {
    /// The connection now ends by itself and logs how.
    fn on_body_end(&mut self) {
        self.0 = None;
    }
}

impl Drop for ConnectionTask {
    fn drop(&mut self) {
        if let Some(task) = self.0.take() {
            task.abort();
        }
    }
}
