//! Streamable HTTP through a job's egress proxy: every request is subject to the job's policy and appears in its log.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use egress::{Proxy, ServerResponseBody, Upstream};
use futures::StreamExt;
use futures::stream::BoxStream;
use http::header::{ACCEPT, CONTENT_TYPE};
use http::{HeaderName, HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use rmcp::model::{ClientJsonRpcMessage, ServerJsonRpcMessage};
use rmcp::transport::StreamableHttpClientTransport;
use rmcp::transport::common::client_side_sse::SseRetryPolicy;
use rmcp::transport::common::http_header::{
    EVENT_STREAM_MIME_TYPE, HEADER_LAST_EVENT_ID, HEADER_SESSION_ID, JSON_MIME_TYPE,
};
use rmcp::transport::streamable_http_client::{
    SseError, StreamableHttpClient, StreamableHttpClientTransportConfig, StreamableHttpError,
    StreamableHttpPostResponse,
};
use sse_stream::{Sse, SseStream};

use crate::outcome::short;
use crate::spec::Headers;

/// The maximum size of a response, and of one event of a stream.
const MAX_BYTES: usize = 16 * 1024 * 1024;
/// How many times in a row a broken stream of events is opened again, and the pause before each attempt.
const MAX_RECONNECTS: usize = 4;
const RECONNECT_DELAY: Duration = Duration::from_millis(500);

/// An error in words that a user and the model may read.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{0}")]
pub(crate) struct HttpClientError(String);

pub(crate) type Failure = StreamableHttpError<HttpClientError>;

/// Gives up a stream of events after a few seconds, so that a call ends soon after its server.
#[derive(Debug)]
struct Reconnects;

impl SseRetryPolicy for Reconnects {
    fn retry(&self, attempts: usize) -> Option<Duration> {
        (attempts < MAX_RECONNECTS).then_some(RECONNECT_DELAY)
    }
}

/// The last error of a connection.
#[derive(Clone, Default)]
pub(crate) struct LastError(Arc<Mutex<Option<String>>>);

impl LastError {
    pub(crate) fn last(&self) -> Option<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn note(&self, text: &str) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(text.to_owned());
    }
}

/// An HTTP client for one server.
#[derive(Clone)]
pub(crate) struct HttpClient {
    proxy: Proxy,
    upstream: Upstream,
    headers: Arc<Headers>,
    call: String,
    last_error: LastError,
}

/// The transport of a session.
pub(crate) fn transport(http_client: HttpClient, url: &str) -> StreamableHttpClientTransport<HttpClient> {
    let mut config = StreamableHttpClientTransportConfig::with_uri(url);
    config.max_sse_event_size = MAX_BYTES;
    config.retry_config = Arc::new(Reconnects);
    StreamableHttpClientTransport::with_client(http_client, config)
}

impl HttpClient {
    pub(crate) fn new(proxy: Proxy, upstream: Upstream, headers: Headers, call: String) -> Self {
        Self { proxy, upstream, headers: Arc::new(headers), call, last_error: LastError::default() }
    }

    pub(crate) fn last_error(&self) -> LastError {
        self.last_error.clone()
    }

    /// Reports an error message of the server or the proxy, with the secrets from the request headers removed.
    fn failure(&self, text: &str) -> Failure {
        let hidden = self.headers.iter().fold(text.to_owned(), |text, (_, secret)| secret.redact(&text));
        self.last_error.note(&hidden);
        StreamableHttpError::Client(HttpClientError(hidden))
    }

    async fn send(
        &self,
        method: Method,
        url: &str,
        headers: Vec<(HeaderName, HeaderValue)>,
        body: Vec<u8>,
    ) -> Result<Response<ServerResponseBody>, Failure> {
        let mut request = Request::new(Full::new(Bytes::from(body)));
        *request.method_mut() = method;
        *request.uri_mut() = url.parse().map_err(|_| self.failure("its address is not valid"))?;
        let own = self.headers.iter().filter_map(|(name, value)| {
            let mut value = HeaderValue::from_str(value.reveal()).ok()?;
            value.set_sensitive(true);
            Some((HeaderName::from_bytes(name.as_bytes()).ok()?, value))
        });
        request.headers_mut().extend(own.chain(headers));
        let answered = self.proxy.send_server_request(&self.upstream, Some(self.call.clone()), request).await;
        answered.map_err(|refusal| self.failure(&format!("{} ({})", refusal.reason, refusal.code.as_str())))
    }

    async fn text_of(&self, response: Response<ServerResponseBody>) -> Result<Bytes, Failure> {
        match Limited::new(response.into_body(), MAX_BYTES).collect().await {
            Ok(body) => Ok(body.to_bytes()),
            Err(error) if error.is::<LengthLimitError>() => {
                Err(self.failure(&format!("its answer has more than {MAX_BYTES} bytes")))
            }
            Err(error) => {
                tracing::debug!(%error, "the answer of an MCP server broke off");
                Err(self.failure("its answer broke off"))
            }
        }
    }

    async fn refused(&self, response: Response<ServerResponseBody>) -> Failure {
        let status = response.status();
        let said = self.text_of(response).await.unwrap_or_default();
        let said = short(String::from_utf8_lossy(&said).trim());
        let hint = match status {
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
                " (are its headers in the configuration right?)"
            }
            _ if status.is_redirection() => " (redirects are not followed: name the address itself)",
            _ => "",
        };
        self.failure(&format!("it answered {status}{hint}: {said}"))
    }

    fn events(&self, response: Response<ServerResponseBody>) -> BoxStream<'static, Result<Sse, SseError>> {
        let mut held = 0;
        let bytes = response.into_body().into_data_stream().map(move |piece| {
            let piece = piece.map_err(|error| HttpClientError(error.to_string()))?;
            // An event ends with an empty line; until then it is held in memory.
            held = match piece.windows(2).rposition(|pair| pair == b"\n\n") {
                Some(at) => piece.len() - at,
                None => held + piece.len(),
            };
            if held > MAX_BYTES { Err(HttpClientError("one event is too large".into())) } else { Ok(piece) }
        });
        SseStream::from_bytes_stream(bytes).boxed()
    }
}

fn header(name: &str, value: &str) -> Result<(HeaderName, HeaderValue), Failure> {
    let bad = || StreamableHttpError::Client(HttpClientError(format!("`{name}` cannot be sent")));
    Ok((
        HeaderName::from_bytes(name.as_bytes()).map_err(|_| bad())?,
        HeaderValue::from_str(value).map_err(|_| bad())?,
    ))
}

fn kind_of(response: &Response<ServerResponseBody>) -> String {
    let kind = response.headers().get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    kind.unwrap_or_default().to_ascii_lowercase()
}

impl StreamableHttpClient for HttpClient {
    type Error = HttpClientError;

    async fn post_message(
        &self,
        uri: Arc<str>,
        message: ClientJsonRpcMessage,
        session_id: Option<Arc<str>>,
        _auth_header: Option<String>,
        custom_headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<StreamableHttpPostResponse, Failure> {
        let body = serde_json::to_vec(&message)?;
        let expects_answer = matches!(message, ClientJsonRpcMessage::Request(_));
        let mut headers: Vec<_> = custom_headers.into_iter().collect();
        headers.push((CONTENT_TYPE, HeaderValue::from_static(JSON_MIME_TYPE)));
        headers.push((ACCEPT, HeaderValue::from_static("application/json, text/event-stream")));
        if let Some(session) = &session_id {
            headers.push(header(HEADER_SESSION_ID, session)?);
        }
        let response = self.send(Method::POST, &uri, headers, body).await?;
        match response.status() {
            StatusCode::NOT_FOUND if session_id.is_some() => return Err(StreamableHttpError::SessionExpired),
            status if !status.is_success() => return Err(self.refused(response).await),
            StatusCode::ACCEPTED | StatusCode::NO_CONTENT => return Ok(StreamableHttpPostResponse::Accepted),
            _ if !expects_answer => return Ok(StreamableHttpPostResponse::Accepted),
            _ => {}
        }
        let named = response.headers().get(HEADER_SESSION_ID).and_then(|id| id.to_str().ok());
        let session = named.map(ToOwned::to_owned);
        let kind = kind_of(&response);
        if kind.starts_with(EVENT_STREAM_MIME_TYPE) {
            return Ok(StreamableHttpPostResponse::Sse(self.events(response), session));
        }
        if !kind.starts_with(JSON_MIME_TYPE) {
            return Err(self.failure(&format!("it answered with `{}`, which is not MCP", short(&kind))));
        }
        let body = self.text_of(response).await?;
        match serde_json::from_slice::<ServerJsonRpcMessage>(&body) {
            Ok(message) => Ok(StreamableHttpPostResponse::Json(message, session)),
            Err(_) => {
                let said = short(String::from_utf8_lossy(&body).trim());
                Err(self.failure(&format!("it answered with something that is not MCP: {said}")))
            }
        }
    }

    async fn delete_session(
        &self,
        uri: Arc<str>,
        session_id: Arc<str>,
        _auth_header: Option<String>,
        custom_headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<(), Failure> {
        let mut headers: Vec<_> = custom_headers.into_iter().collect();
        headers.push(header(HEADER_SESSION_ID, &session_id)?);
        // It does not matter if the server keeps the session.
        self.send(Method::DELETE, &uri, headers, Vec::new()).await.map(drop)
    }

    async fn get_stream(
        &self,
        uri: Arc<str>,
        session_id: Option<Arc<str>>,
        last_event_id: Option<String>,
        _auth_header: Option<String>,
        custom_headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<BoxStream<'static, Result<Sse, SseError>>, Failure> {
        let mut headers: Vec<_> = custom_headers.into_iter().collect();
        headers.push((ACCEPT, HeaderValue::from_static(EVENT_STREAM_MIME_TYPE)));
        if let Some(session) = &session_id {
            headers.push(header(HEADER_SESSION_ID, session)?);
        }
        if let Some(last) = &last_event_id {
            headers.push(header(HEADER_LAST_EVENT_ID, last)?);
        }
        let response = self.send(Method::GET, &uri, headers, Vec::new()).await?;
        match response.status() {
            StatusCode::METHOD_NOT_ALLOWED => Err(StreamableHttpError::ServerDoesNotSupportSse),
            StatusCode::NOT_FOUND if session_id.is_some() => Err(StreamableHttpError::SessionExpired),
            status if !status.is_success() => Err(self.refused(response).await),
            _ if !kind_of(&response).starts_with(EVENT_STREAM_MIME_TYPE) => {
                Err(StreamableHttpError::UnexpectedServerResponse(Cow::Borrowed("no stream of events")))
            }
            _ => Ok(self.events(response)),
        }
    }
}
