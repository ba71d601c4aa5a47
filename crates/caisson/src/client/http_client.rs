//! The HTTP client of all commands: sends requests and turns problem documents into errors.
//!
//! A client talks to a server at an address, or to one in this process without any port.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use futures::future::BoxFuture;
use reqwest::header::{AUTHORIZATION, HeaderMap, HeaderValue};
use reqwest::{Method, RequestBuilder, Response, StatusCode};
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite, DuplexStream};
use tokio::net::TcpStream;

use crate::arguments::ServerArguments;
use crate::coded_error::CodedError;
use crate::config::client_environment;
use crate::tls::{Trust, install_tls_provider};

/// How long to probe the default address before assuming that no server runs there.
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);
/// The URL of in-process requests: the server checks the host name in requests.
const IN_PROCESS_URL: &str = "http://localhost";

/// The header with the token of a takeover by this client.
const TAKEOVER: &str = "x-caisson-takeover";

/// A client of one server. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Client {
    http: reqwest::Client,
    url: String,
    /// The `Authorization` header.
    key: Option<HeaderValue>,
    /// The trusted certificates for https.
    trust: Option<Trust>,
    transport: Transport,
}

/// How requests reach the server.
#[derive(Clone)]
enum Transport {
    Network,
    InProcess(InProcess),
}

/// Handles requests inside this process.
pub(crate) type RequestHandler =
    Arc<dyn Fn(reqwest::Request) -> BoxFuture<'static, Result<Response>> + Send + Sync>;

/// A server inside this process.
#[derive(Clone)]
pub(crate) struct InProcess {
    pub(crate) handle: RequestHandler,
    /// Opens a byte stream to the server, for protocols beyond request and response.
    pub(crate) connect: Arc<dyn Fn() -> DuplexStream + Send + Sync>,
}

/// A byte stream to a server.
pub(crate) trait ByteStream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> ByteStream for T {}

impl Client {
    /// A client of the server given by the flag, `CAISSON_URL` or the default.
    pub(crate) fn new(arguments: &ServerArguments) -> Result<Self> {
        let url = client_environment::server_url(arguments.url.as_deref());
        let key =
            client_environment::key(arguments.key_file.as_deref())?.map(|key| bearer(&key)).transpose()?;
        let trust = match url.split_once("://") {
            Some(("http", _)) => None,
            Some(("https", _)) => {
                Some(Trust::load(client_environment::ca_file(arguments.ca_file.as_deref()))?)
            }
            _ => bail!("`{url}` is not a server URL, such as http://127.0.0.1:8000"),
        };
        Ok(Self {
            http: http_client(key.as_ref(), trust.as_ref())?,
            url,
            key,
            trust,
            transport: Transport::Network,
        })
    }

    /// A client of a server inside this process.
    pub(crate) fn in_process(application: InProcess) -> Result<Self> {
        let url = IN_PROCESS_URL.into();
        Ok(Self {
            http: http_client(None, None)?,
            url,
            key: None,
            trust: None,
            transport: Transport::InProcess(application),
        })
    }

    /// A connection to the server.
    pub(crate) async fn connect(&self) -> Result<Box<dyn ByteStream>> {
        let url = &self.url;
        let address = match &self.transport {
            Transport::InProcess(application) => return Ok(Box::new((application.connect)())),
            Transport::Network => {
                reqwest::Url::parse(url).with_context(|| format!("`{url}` is not a valid URL"))?
            }
        };
        let host = address.host_str().with_context(|| format!("`{url}` has no host"))?;
        let port = address.port_or_known_default().unwrap_or(80);
        let stream = TcpStream::connect((host.trim_matches(['[', ']']), port)).await;
        let stream = stream.map_err(|_| self.not_reached())?;
        stream.set_nodelay(true).context("preparing the connection")?;
        match &self.trust {
            Some(trust) => Ok(Box::new(trust.connect(host.trim_matches(['[', ']']), stream).await?)),
            None => Ok(Box::new(stream)),
        }
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// The header that authenticates the client.
    pub(crate) fn key(&self) -> Option<&HeaderValue> {
        self.key.as_ref()
    }

    /// Whether a Caisson server answers at the URL. Another program on the same port does not count.
    pub(crate) async fn is_answered(&self) -> bool {
        let request = self.http.get(format!("{}/healthz", self.url)).timeout(PROBE_TIMEOUT);
        match request.send().await {
            Ok(response) => {
                response.status().is_success() && response.text().await.is_ok_and(|body| body == "ok")
            }
            Err(_) => false,
        }
    }

    /// Starts a request that the command completes and sends.
    pub(crate) fn request(&self, method: Method, path: &str) -> RequestBuilder {
        self.http.request(method, format!("{}{path}", self.url))
    }

    /// Sends a request; turns a problem document into an error.
    pub(crate) async fn send(&self, request: RequestBuilder) -> Result<Response> {
        let response = self.send_any(request).await?;
        match response.status() {
            status if status.is_success() => Ok(response),
            status => Err(problem(status, &response.bytes().await.unwrap_or_default())),
        }
    }

    /// Sends a request; `None` if the server answers 404.
    pub(crate) async fn send_or_missing(&self, request: RequestBuilder) -> Result<Option<Response>> {
        let response = self.send_any(request).await?;
        match response.status() {
            StatusCode::NOT_FOUND => Ok(None),
            status if status.is_success() => Ok(Some(response)),
            status => Err(problem(status, &response.bytes().await.unwrap_or_default())),
        }
    }

    async fn send_any(&self, request: RequestBuilder) -> Result<Response> {
        let request = request.build().context("preparing the request")?;
        match &self.transport {
            Transport::Network => self.http.execute(request).await.map_err(|error| self.failed(error)),
            Transport::InProcess(application) => (application.handle)(request).await,
        }
    }

    /// Sends a request and parses the JSON of the response.
    pub(crate) async fn json(&self, request: RequestBuilder) -> Result<Value> {
        self.send(request)
            .await?
            .json()
            .await
            .context("the server's answer is not JSON; is it a Caisson server?")
    }

    pub(crate) async fn get(&self, path: &str) -> Result<Value> {
        self.json(self.request(Method::GET, path)).await
    }

    /// Sends JSON and parses the JSON of the response.
    pub(crate) async fn post(&self, path: &str, body: &Value) -> Result<Value> {
        self.json(self.request(Method::POST, path).json(body)).await
    }

    pub(crate) async fn delete(&self, path: &str) -> Result<()> {
        self.send(self.request(Method::DELETE, path)).await.map(drop)
    }

    /// The error if no server answers.
    pub(crate) fn not_reached(&self) -> anyhow::Error {
        let message = format!(
            "no server answers at {}; start one with `caisson serve`, or choose another one with --url or CAISSON_URL",
            self.url
        );
        CodedError::error("no_server", message)
    }

    fn failed(&self, error: reqwest::Error) -> anyhow::Error {
        if error.is_connect() || error.is_timeout() {
            return self.not_reached();
        }
        anyhow::Error::new(error.without_url()).context(format!("connecting to {}", self.url))
    }
}

/// The `Authorization` header for a key.
fn bearer(key: &str) -> Result<HeaderValue> {
    let mut value = HeaderValue::from_str(&format!("Bearer {key}"))
        .context("the API key contains invalid characters; check CAISSON_KEY or the key file")?;
    value.set_sensitive(true);
    Ok(value)
}

/// Ignores the proxy variables of the environment: the server is usually nearby.
fn http_client(key: Option<&HeaderValue>, trust: Option<&Trust>) -> Result<reqwest::Client> {
    let mut headers = HeaderMap::new();
    headers.extend(key.map(|key| (AUTHORIZATION, key.clone())));
    if let Some(token) = client_environment::takeover_token() {
        let value = HeaderValue::from_str(&token).context("CAISSON_TAKEOVER is not a token")?;
        headers.insert(TAKEOVER, value);
    }
    // A host without certificate authorities is fine.
    let certificates = trust.map(Trust::certificates).transpose()?.unwrap_or_default();
    install_tls_provider();
    reqwest::Client::builder()
        .default_headers(headers)
        .no_proxy()
        .tls_certs_only(certificates)
        .build()
        .context("preparing the client")
}

/// The error in a problem response.
pub(crate) fn problem(status: StatusCode, body: &[u8]) -> anyhow::Error {
    match serde_json::from_slice::<Value>(body) {
        Ok(problem) if problem["detail"].is_string() => problem_of(&problem),
        _ => CodedError::error(
            "not_a_server",
            format!("unexpected answer {status} from the server; is it a Caisson server?"),
        ),
    }
}

/// The human-readable text of a problem document, followed by its code.
pub(crate) fn problem_of(problem: &Value) -> anyhow::Error {
    let detail = problem["detail"].as_str().unwrap_or("no reason given");
    let field = problem["field"].as_str().filter(|field| !names_field(detail, field));
    let field = field.map(|field| format!("{field}: ")).unwrap_or_default();
    let code = problem["code"].as_str().unwrap_or("no code");
    CodedError::error(code, format!("{field}{detail} ({code})"))
}

/// Whether a message already says which field it is about.
fn names_field(detail: &str, field: &str) -> bool {
    let name = field.rsplit_once('.').map_or(field, |(_, name)| name);
    [field, name].iter().any(|name| detail.contains(&format!("`{name}`")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn problem_error_includes_field_and_code() {
        for (detail, field, message) in [
            ("is empty", "steps[0].command", "steps[0].command: is empty (invalid_field)"),
            ("`steps[0].tool` is missing", "steps[0].tool", "`steps[0].tool` is missing (invalid_field)"),
            (
                "`limits` has no field `speed`",
                "limits.speed",
                "`limits` has no field `speed` (invalid_field)",
            ),
        ] {
            let body = serde_json::json!({"detail": detail, "code": "invalid_field", "field": field});
            let shown = problem(StatusCode::UNPROCESSABLE_ENTITY, body.to_string().as_bytes()).to_string();
            assert_eq!(shown, message);
        }
        assert!(problem(StatusCode::BAD_GATEWAY, b"<html>").to_string().contains("502"));
    }

    #[test]
    fn invalid_server_url_is_refused() {
        let at = |url: &str| ServerArguments { url: Some(url.into()), ..ServerArguments::default() };
        assert!(Client::new(&at("localhost:8000")).is_err());
        assert_eq!(Client::new(&at("http://localhost:8000/")).unwrap().url(), "http://localhost:8000");
    }
}
