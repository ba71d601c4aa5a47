//! Extractors for handlers: state, paths, bodies, queries and the base URL. Each failure is a [`Problem`].

mod body;
mod json;
mod paths;
mod workspace_path;

use std::convert::Infallible;
use std::sync::Arc;

use axum::extract::{FromRef, FromRequestParts, Query};
use axum::http::request::Parts;
use axum::http::{HeaderMap, header};
use orchestrator::Orchestrator;
use serde::de::DeserializeOwned;
use tokio_util::sync::CancellationToken;

use crate::access::{Access, Caller};
use crate::guard::{ClientInfo, ConnectionInfo, Transport};
use crate::host_reports::HostReports;
use crate::problem::Problem;
use crate::settings::ServerSettings;

pub(crate) use self::body::{BodyLimits, JobBody, JsonBody, OptionalBody, parse_task};
pub(crate) use self::json::{parse_json, parse_list};
pub(crate) use self::paths::{
    DownloadPath, FilePath, JobPath, KernelPath, PortPath, RequestPath, ScreenshotPath, SharePath,
    check_owner,
};
pub(crate) use self::workspace_path::WorkspacePath;

/// The state that all handlers share.
#[derive(Clone)]
pub(crate) struct AppState {
    pub(crate) orchestrator: Orchestrator,
    pub(crate) settings: Arc<ServerSettings>,
    pub(crate) limits: BodyLimits,
    pub(crate) host: HostReports,
    /// The access check.
    pub(crate) access: Arc<Access>,
    /// The serialized OpenAPI document.
    pub(crate) document: bytes::Bytes,
}

impl FromRef<AppState> for BodyLimits {
    fn from_ref(state: &AppState) -> Self {
        state.limits.clone()
    }
}

impl FromRef<AppState> for Orchestrator {
    fn from_ref(state: &AppState) -> Self {
        state.orchestrator.clone()
    }
}

impl FromRef<AppState> for Arc<ServerSettings> {
    fn from_ref(state: &AppState) -> Self {
        Arc::clone(&state.settings)
    }
}

/// The orchestrator on behalf of the caller, for handlers that change a job: the job's log records the caller as the
/// actor.
pub(crate) struct OnBehalfOfCaller(pub(crate) Orchestrator);

impl<S> FromRequestParts<S> for OnBehalfOfCaller
where
    S: Send + Sync,
    Orchestrator: FromRef<S>,
{
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Infallible> {
        let caller = parts.extensions.get().cloned().unwrap_or(Caller::Nobody);
        Ok(Self(Orchestrator::from_ref(state).acting_for(caller.actor())))
    }
}

/// The query of a request. Invalid parameters are rejected by name, and so are unknown ones if `T` denies unknown
/// fields.
pub(crate) struct Parameters<T>(pub(crate) T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for Parameters<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        match Query::<T>::try_from_uri(&parts.uri) {
            Ok(Query(value)) => Ok(Self(value)),
            Err(error) => Err(Problem::bad_request("invalid_query", plain_query_error(&error.body_text()))),
        }
    }
}

/// The error of a query without the words of axum and serde.
fn plain_query_error(text: &str) -> String {
    let text = text.strip_prefix("Failed to deserialize query string: ").unwrap_or(text);
    let (path, message) = match text.split_once(": ") {
        Some((path, message)) if !path.contains([' ', '`']) => (path, message),
        _ => ("", text),
    };
    job::explain(path, message).sentence("query parameter", "the query")
}

/// The URL under which the caller reaches this server, such as `http://localhost:8000`, without a trailing slash.
pub(crate) struct BaseUrl(pub(crate) String);

impl BaseUrl {
    pub(crate) fn of(settings: &ServerSettings, client_info: &ClientInfo, headers: &HeaderMap) -> Self {
        if let Some(url) = &settings.public_url {
            return Self(url.trim_end_matches('/').to_owned());
        }
        // The guard has already rejected malformed hosts.
        let host = headers.get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or("localhost");
        let scheme = if client_info.transport(settings) == Transport::Encrypted { "https" } else { "http" };
        Self(format!("{scheme}://{host}"))
    }
}

impl<S> FromRequestParts<S> for BaseUrl
where
    S: Send + Sync,
    Arc<ServerSettings>: FromRef<S>,
{
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Infallible> {
        let client_info = ClientInfo::new(parts.extensions.get::<ConnectionInfo>().copied(), &parts.headers);
        Ok(Self::of(&Arc::<ServerSettings>::from_ref(state), &client_info, &parts.headers))
    }
}

/// Tells long responses that the server is shutting down.
#[derive(Debug, Clone, Default)]
pub(crate) struct Shutdown(pub(crate) CancellationToken);

impl<S: Send + Sync> FromRequestParts<S> for Shutdown {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        Ok(parts.extensions.get::<Self>().cloned().unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    #[derive(Debug, Default, serde::Deserialize)]
    #[serde(deny_unknown_fields, default)]
    struct Filter {
        limit: Option<u32>,
        follow: bool,
        after: i64,
        state: Option<job::OnLoss>,
    }

    #[tokio::test]
    async fn query_errors_name_the_parameter_in_plain_words() {
        for (query, detail) in [
            ("limt=3", "there is no query parameter `limt`; did you mean `limit`?"),
            ("limit=many", "`limit` must be a whole number"),
            ("limit=-1", "`limit` must be a whole number"),
            ("limit=99999999999", "`limit` must be a smaller number"),
            ("after=", "`after` must be a whole number, not empty"),
            ("follow=maybe", "`follow` must be true or false"),
            ("state=retyr", "`state` must be `retry` or `fail`, not `retyr`; did you mean `retry`?"),
            ("limit=1&limit=2", "`limit` is given twice"),
        ] {
            let request = axum::http::Request::get(format!("/v1/jobs?{query}")).body(()).unwrap();
            let (mut parts, ()) = request.into_parts();
            let read = Parameters::<Filter>::from_request_parts(&mut parts, &()).await;
            let problem = read.map(|Parameters(filter)| filter).unwrap_err();
            assert_eq!((problem.code(), problem.detail()), ("invalid_query", detail), "{query}");
        }
        let request =
            axum::http::Request::get("/v1/jobs?limit=3&after=-1&follow=true&state=fail").body(()).unwrap();
        let (mut parts, ()) = request.into_parts();
        let Parameters(filter) = Parameters::<Filter>::from_request_parts(&mut parts, &()).await.unwrap();
        assert_eq!((filter.limit, filter.after, filter.follow), (Some(3), -1, true));
        assert!(filter.state.is_some());
    }

    #[test]
    fn base_url_comes_from_host_header_or_settings() {
        let mut headers = HeaderMap::new();
        headers.insert(header::HOST, HeaderValue::from_static("127.0.0.1:3001"));
        let mut settings = ServerSettings::default();
        assert_eq!(BaseUrl::of(&settings, &ClientInfo::default(), &headers).0, "http://127.0.0.1:3001");
        settings.public_url = Some("https://caisson.example/".into());
        assert_eq!(BaseUrl::of(&settings, &ClientInfo::default(), &headers).0, "https://caisson.example");
    }
}
