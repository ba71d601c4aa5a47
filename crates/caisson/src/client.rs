//! The HTTP client of all commands: one way to ask, one way to say what went wrong.
//!
//! A client speaks with a server by its address, or with one inside this process, without any port.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use futures::future::BoxFuture;
use reqwest::{Method, RequestBuilder, Response, StatusCode};
use serde_json::Value;

use crate::config_client;

/// How long a look at the default address may take before it counts as nobody there.
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);
/// The address that requests inside this process carry: the server checks by which name it is called.
const IN_PROCESS_URL: &str = "http://localhost";

/// Speaks with one server. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Client {
    http: reqwest::Client,
    url: String,
    way: Way,
}

/// How requests get to the server.
#[derive(Clone)]
enum Way {
    Network,
    InProcess(InProcess),
}

/// Answers requests inside this process.
pub(crate) type InProcess =
    Arc<dyn Fn(reqwest::Request) -> BoxFuture<'static, Result<Response>> + Send + Sync>;

impl Client {
    /// A client of the server that the flag, `CAISSON_URL` or the default names.
    pub(crate) fn new(url: Option<&str>) -> Result<Self> {
        let url = config_client::server_url(url);
        if !url.starts_with("http://") {
            bail!("`{url}` is not the address of a server, such as http://127.0.0.1:8000");
        }
        Ok(Self { http: http_client()?, url, way: Way::Network })
    }

    /// A client of a server inside this process.
    pub(crate) fn in_process(application: InProcess) -> Result<Self> {
        Ok(Self { http: http_client()?, url: IN_PROCESS_URL.into(), way: Way::InProcess(application) })
    }

    /// The address of the server.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// Whether a Caisson server answers there. Another program on the same port does not count.
    pub(crate) async fn is_answered(&self) -> bool {
        let request = self.http.get(format!("{}/healthz", self.url)).timeout(PROBE_TIMEOUT);
        match request.send().await {
            Ok(response) => {
                response.status().is_success() && response.text().await.is_ok_and(|body| body == "ok")
            }
            Err(_) => false,
        }
    }

    /// A request that a command adds to before it is sent.
    pub(crate) fn request(&self, method: Method, path: &str) -> RequestBuilder {
        self.http.request(method, format!("{}{path}", self.url))
    }

    /// Sends a request; an answer that is a problem becomes an error.
    pub(crate) async fn send(&self, request: RequestBuilder) -> Result<Response> {
        let response = self.send_any(request).await?;
        match response.status() {
            status if status.is_success() => Ok(response),
            status => Err(problem(status, &response.bytes().await.unwrap_or_default())),
        }
    }

    /// Sends a request; `None` when the server knows no such thing.
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
        match &self.way {
            Way::Network => self.http.execute(request).await.map_err(|error| self.failed(error)),
            Way::InProcess(application) => application(request).await,
        }
    }

    /// Sends a request and reads the JSON of the answer.
    pub(crate) async fn json(&self, request: RequestBuilder) -> Result<Value> {
        self.send(request)
            .await?
            .json()
            .await
            .context("the server's answer is no JSON; is it a Caisson server?")
    }

    /// Asks for JSON.
    pub(crate) async fn get(&self, path: &str) -> Result<Value> {
        self.json(self.request(Method::GET, path)).await
    }

    /// Sends JSON and reads JSON.
    pub(crate) async fn post(&self, path: &str, body: &Value) -> Result<Value> {
        self.json(self.request(Method::POST, path).json(body)).await
    }

    /// Removes something.
    pub(crate) async fn delete(&self, path: &str) -> Result<()> {
        self.send(self.request(Method::DELETE, path)).await.map(drop)
    }

    /// Said when nobody answers.
    pub(crate) fn not_reached(&self) -> anyhow::Error {
        anyhow!(
            "no server answers at {}; start one with `caisson serve`, or name another one with --url or CAISSON_URL",
            self.url
        )
    }

    fn failed(&self, error: reqwest::Error) -> anyhow::Error {
        if error.is_connect() || error.is_timeout() {
            return self.not_reached();
        }
        anyhow::Error::new(error.without_url()).context(format!("speaking with {}", self.url))
    }
}

/// The server is near: a proxy that the environment names is not for it.
fn http_client() -> Result<reqwest::Client> {
    reqwest::Client::builder().no_proxy().build().context("preparing the client")
}

/// What an answer that is a problem says.
pub(crate) fn problem(status: StatusCode, body: &[u8]) -> anyhow::Error {
    match serde_json::from_slice::<Value>(body) {
        Ok(problem) if problem["detail"].is_string() => problem_of(&problem),
        _ => anyhow!(
            "the server answered {status} where this command knows no answer; is it a Caisson server?"
        ),
    }
}

/// What a problem document says, for people; its code is at the end for those who look it up.
pub(crate) fn problem_of(problem: &Value) -> anyhow::Error {
    let field = problem["field"].as_str().map(|field| format!("{field}: ")).unwrap_or_default();
    let detail = problem["detail"].as_str().unwrap_or("no reason given");
    anyhow!("{field}{detail} ({})", problem["code"].as_str().unwrap_or("no code"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_is_told_with_its_field_and_code() {
        let body = br#"{"detail": "unknown tool `fly`", "code": "invalid_field", "field": "steps[0].tool"}"#;
        let told = problem(StatusCode::UNPROCESSABLE_ENTITY, body).to_string();
        assert_eq!(told, "steps[0].tool: unknown tool `fly` (invalid_field)");
        assert!(problem(StatusCode::BAD_GATEWAY, b"<html>").to_string().contains("502"));
    }

    #[test]
    fn an_address_that_is_none_is_refused() {
        assert!(Client::new(Some("localhost:8000")).is_err());
        assert_eq!(Client::new(Some("http://localhost:8000/")).unwrap().url(), "http://localhost:8000");
    }
}
