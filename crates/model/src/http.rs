//! HTTP access to a provider: one client, the key in a header, responses read event by event with a silence timeout.

use std::time::Duration;

use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderValue, RETRY_AFTER};
use reqwest::{Client, Method, Response};
use serde::Serialize;
use serde_json::Value;
use tokio::time::{Instant, timeout_at};

use crate::error::ModelError;
use crate::error_response::{self, ErrorResponse};
use crate::name::ModelName;
use crate::secret::Secret;
use crate::sse::{SseDecoder, SseEvent};
use crate::usage::Usage;

/// The maximum size of a response that is not a stream.
const MAX_BODY: usize = 32 * 1024 * 1024;
/// The maximum bytes read of an error response.
const MAX_ERROR: usize = 64 * 1024;
/// A server that only sends keep-alives may do so for this many times the silence timeout.
const KEEPALIVE_FACTOR: u32 = 10;

/// The header that carries the key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum KeyHeader {
    /// `Authorization: Bearer KEY`
    Bearer,
    /// `x-api-key: KEY`
    Anthropic,
    /// `x-goog-api-key: KEY`
    Google,
}

/// An API endpoint.
#[derive(Debug, Clone)]
pub(crate) struct Endpoint {
    pub(crate) client: Client,
    /// The name used in errors.
    pub(crate) name: ModelName,
    /// Without a trailing slash.
    pub(crate) base_url: String,
    pub(crate) key: Option<Secret>,
    pub(crate) key_header: KeyHeader,
    /// Additional headers of every request.
    pub(crate) headers: &'static [(&'static str, &'static str)],
    /// The maximum time without any data.
    pub(crate) silence: Duration,
}

/// Where the server runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ServerLocation {
    /// On this machine; requests bypass any proxy.
    Local,
    /// Elsewhere; requests use the proxy from the environment, if any.
    Remote,
}

/// Creates a client. It does not follow redirects, which would send the key to another server.
pub(crate) fn client(connect_timeout: Duration, reach: ServerLocation) -> Result<Client, ModelError> {
    // `reqwest` is built without a TLS crypto provider. An error means that one is already installed.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let mut builder =
        Client::builder().connect_timeout(connect_timeout).redirect(reqwest::redirect::Policy::none());
    if reach == ServerLocation::Local {
        // Certificate authorities are not needed either; a small host may not have them.
        builder = builder.no_proxy().tls_certs_only([]);
    }
    builder.user_agent(concat!("caisson-model/", env!("CARGO_PKG_VERSION"))).build().map_err(|error| {
        ModelError::Settings {
            key: "model".into(),
            detail: format!("preparing the HTTP client: {}", root_cause(&error)),
        }
    })
}

impl Endpoint {
    /// Sends a request whose response is an event stream.
    pub(crate) async fn post(&self, path: &str, body: &impl Serialize) -> Result<Events, ModelError> {
        let deadline = Instant::now() + self.silence;
        let body = serde_json::to_string(body).map_err(|error| ModelError::Malformed {
            model: self.name.to_string(),
            detail: format!("the request cannot be written: {error}"),
        })?;
        let request_size = body.len();
        let request = self
            .client
            .request(Method::POST, format!("{}{path}", self.base_url))
            .headers(self.head()?)
            .header(CONTENT_TYPE, "application/json")
            .body(body);
        let response = self.send(request, deadline).await?;
        let is_stream = response
            .headers()
            .get(CONTENT_TYPE)
            .and_then(|value| value.to_str().ok())
            .is_some_and(|value| value.starts_with("text/event-stream"));
        Ok(Events {
            endpoint: self.clone(),
            response: Some(response),
            decoder: SseDecoder::default(),
            ready: Vec::new().into_iter(),
            is_stream,
            request_size,
            keepalive_deadline: Instant::now() + self.silence * KEEPALIVE_FACTOR,
        })
    }

    /// Fetches a JSON document, with a timeout.
    pub(crate) async fn get(&self, path: &str, timeout: Duration) -> Result<Value, ModelError> {
        self.fetch(Method::GET, path, None, timeout).await
    }

    /// Posts a JSON document and returns the response, with a timeout.
    pub(crate) async fn ask(&self, path: &str, body: &Value, timeout: Duration) -> Result<Value, ModelError> {
        self.fetch(Method::POST, path, Some(body), timeout).await
    }

    async fn fetch(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
        timeout: Duration,
    ) -> Result<Value, ModelError> {
        let deadline = Instant::now() + timeout;
        let mut request =
            self.client.request(method, format!("{}{path}", self.base_url)).headers(self.head()?);
        if let Some(body) = body {
            request = request.json(body);
        }
        let mut response = self.send(request, deadline).await?;
        let bytes = self.read_all(&mut response, deadline, MAX_BODY).await?;
        serde_json::from_slice(&bytes).map_err(|error| self.malformed(format!("{path} is not JSON: {error}")))
    }

    fn head(&self) -> Result<HeaderMap, ModelError> {
        let mut headers = HeaderMap::new();
        for (name, value) in self.headers {
            headers.insert(*name, HeaderValue::from_static(value));
        }
        let Some(key) = &self.key else { return Ok(headers) };
        let (name, text) = match self.key_header {
            KeyHeader::Bearer => ("authorization", format!("Bearer {}", key.reveal())),
            KeyHeader::Anthropic => ("x-api-key", key.reveal().to_owned()),
            KeyHeader::Google => ("x-goog-api-key", key.reveal().to_owned()),
        };
        let mut value = HeaderValue::from_str(&text).map_err(|_| ModelError::Settings {
            key: "model.key_file".into(),
            detail: "the key has characters that no key has, such as a line end in the middle".into(),
        })?;
        value.set_sensitive(true);
        headers.insert(name, value);
        Ok(headers)
    }

    async fn send(
        &self,
        request: reqwest::RequestBuilder,
        deadline: Instant,
    ) -> Result<Response, ModelError> {
        let began = Instant::now();
        let mut response = match timeout_at(deadline, request.send()).await {
            Ok(Ok(response)) => response,
            Ok(Err(error)) => return Err(self.unreachable(&error)),
            Err(_) => return Err(self.silent(began.elapsed(), Usage::default())),
        };
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        let header = |name: &str| {
            response.headers().get(name).and_then(|value| value.to_str().ok()).map(str::to_owned)
        };
        let milliseconds =
            header("retry-after-ms").and_then(|value| value.parse().ok()).map(Duration::from_millis);
        let seconds = header(RETRY_AFTER.as_str());
        let retry_after =
            milliseconds.or_else(|| error_response::retry_after(&seconds?, time::OffsetDateTime::now_utc()));
        let body = self.read_all(&mut response, deadline, MAX_ERROR).await.unwrap_or_default();
        let body = self.redact_key(&String::from_utf8_lossy(&body));
        Err(ErrorResponse { model: self.name.as_str(), status: status.as_u16(), retry_after, body: &body }
            .classify())
    }

    async fn read_all(
        &self,
        response: &mut Response,
        deadline: Instant,
        most: usize,
    ) -> Result<Vec<u8>, ModelError> {
        let mut bytes = Vec::new();
        let began = Instant::now();
        loop {
            match timeout_at(deadline, response.chunk()).await {
                Ok(Ok(Some(chunk))) if bytes.len() + chunk.len() <= most => bytes.extend_from_slice(&chunk),
                Ok(Ok(Some(_))) => return Err(self.malformed(format!("more than {most} bytes"))),
                Ok(Ok(None)) => return Ok(bytes),
                Ok(Err(error)) => return Err(self.cut(self.words(&error), Usage::default())),
                Err(_) => return Err(self.silent(began.elapsed(), Usage::default())),
            }
        }
    }

    /// Redacts the key in a text.
    pub(crate) fn redact_key(&self, text: &str) -> String {
        self.key.as_ref().map_or_else(|| text.to_owned(), |key| key.redact(text))
    }

    fn words(&self, error: &reqwest::Error) -> String {
        self.redact_key(&root_cause(error))
    }

    fn unreachable(&self, error: &reqwest::Error) -> ModelError {
        let detail = format!("{} at {}", self.words(error), self.base_url);
        ModelError::Unreachable { model: self.name.to_string(), detail }
    }

    /// The answer was cut off.
    pub(crate) fn cut(&self, detail: impl Into<String>, lost: Usage) -> ModelError {
        ModelError::Cut { model: self.name.to_string(), detail: detail.into(), lost }
    }

    fn silent(&self, silence: Duration, lost: Usage) -> ModelError {
        ModelError::Silent { model: self.name.to_string(), silence, lost }
    }

    /// The response does not match the API.
    pub(crate) fn malformed(&self, detail: impl Into<String>) -> ModelError {
        ModelError::Malformed { model: self.name.to_string(), detail: self.redact_key(&detail.into()) }
    }

    /// Classifies an error that arrived inside a stream.
    pub(crate) fn fault(&self, body: &Value) -> ModelError {
        let body = self.redact_key(&body.to_string());
        ErrorResponse { model: self.name.as_str(), status: 0, retry_after: None, body: &body }.classify()
    }
}

/// A response that arrives event by event.
pub(crate) struct Events {
    endpoint: Endpoint,
    response: Option<Response>,
    decoder: SseDecoder,
    ready: std::vec::IntoIter<SseEvent>,
    is_stream: bool,
    /// Size of the request.
    pub(crate) request_size: usize,
    keepalive_deadline: Instant,
}

impl Events {
    /// The next event as JSON; `None` at the end. `so_far` becomes part of the error if the stream is cut off.
    pub(crate) async fn next(&mut self, so_far: Usage) -> Result<Option<Value>, ModelError> {
        while let Some(event) = self.next_event(so_far).await? {
            self.keepalive_deadline = Instant::now() + self.endpoint.silence * KEEPALIVE_FACTOR;
            let data = event.data.trim();
            if data == "[DONE]" {
                return Ok(None);
            }
            if data.is_empty() {
                continue;
            }
            let value = serde_json::from_str(data).map_err(|error| {
                let shown: String = data.chars().take(200).collect();
                self.endpoint.malformed(format!("an event is not JSON ({error}): {shown}"))
            })?;
            return Ok(Some(value));
        }
        Ok(None)
    }

    async fn next_event(&mut self, so_far: Usage) -> Result<Option<SseEvent>, ModelError> {
        loop {
            if let Some(event) = self.ready.next() {
                return Ok(Some(event));
            }
            let Some(response) = &mut self.response else { return Ok(None) };
            let began = Instant::now();
            let deadline = (began + self.endpoint.silence).min(self.keepalive_deadline);
            if !self.is_stream {
                let body = self.endpoint.read_all(response, deadline, MAX_BODY).await?;
                self.response = None;
                let data = String::from_utf8_lossy(&body).into_owned();
                return Ok(Some(SseEvent { name: String::new(), data }));
            }
            match timeout_at(deadline, response.chunk()).await {
                Ok(Ok(Some(chunk))) => {
                    let events = self.decoder.push(&chunk);
                    self.ready =
                        events.map_err(|_| self.endpoint.malformed("an event has no end"))?.into_iter();
                }
                Ok(Ok(None)) => {
                    self.response = None;
                    self.ready = Vec::from_iter(std::mem::take(&mut self.decoder).finish()).into_iter();
                }
                Ok(Err(error)) => return Err(self.endpoint.cut(self.endpoint.words(&error), so_far)),
                Err(_) => {
                    return Err(self.endpoint.silent(began.elapsed().max(self.endpoint.silence), so_far));
                }
            }
        }
    }
}

/// The innermost cause of an error, without the URL, which may be long and is named elsewhere.
fn root_cause(error: &reqwest::Error) -> String {
    let mut words: Vec<String> = Vec::new();
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        words.push(cause.to_string());
        source = cause.source();
    }
    words
        .pop()
        .unwrap_or_else(|| if error.is_timeout() { "timed out".into() } else { "the request failed".into() })
}
