//! Extractors for handlers: state, ids, paths, queries and the base URL. Each failure is a [`Problem`].

use std::convert::Infallible;
use std::sync::Arc;

use axum::extract::rejection::PathRejection;
use axum::extract::{FromRef, FromRequestParts, MatchedPath, Path, Query};
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode, header};
use orchestrator::{JobId, JobKind, Orchestrator, OrchestratorError, ShareId};
use serde::de::DeserializeOwned;
use tokio_util::sync::CancellationToken;

use crate::access::{Access, Caller, Transport};
use crate::arrival::{Arrival, Connected};
use crate::body::BodyLimits;
use crate::host::HostReports;
use crate::problem::Problem;
use crate::settings::ServerSettings;

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
pub(crate) struct Acting(pub(crate) Orchestrator);

impl<S> FromRequestParts<S> for Acting
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

pub(crate) fn parse_job_id(text: &str) -> Result<JobId, Problem> {
    text.parse().map_err(|_| {
        let detail = format!(
            "`{}` is not the id of a job or a sandbox; ids look like {EXAMPLE_ID}",
            text.escape_debug()
        );
        Problem::bad_request("bad_job_id", detail)
    })
}

const EXAMPLE_ID: &str = "01930d5e-7b1a-7c3e-9f00-3a5b1c2d4e6f";

/// Routes below this prefix also exist for jobs, so the id must be checked to be a sandbox's.
const BELOW_SANDBOXES: &str = "/v1/sandboxes/{id}/";

/// Routes below this prefix also accept the ids of bare sandboxes, because both kinds share one id type.
const BELOW_JOBS: &str = "/v1/jobs/{id}/";
const OF_JOBS_ALONE: [&str; 6] = ["cancel", "pause", "resume", "message", "takeover", "handback"];

/// Rejects a job that this caller may not see. The access check has already done so; this second check uses the id
/// that the handler uses.
pub(crate) async fn check_owner(
    orchestrator: &Orchestrator,
    caller: Option<&Caller>,
    id: JobId,
) -> Result<(), Problem> {
    match caller.and_then(Caller::sees_only) {
        Some(own) if orchestrator.submitter(id).await?.as_ref() != Some(&own) => {
            Err(OrchestratorError::NoJob(id).into())
        }
        _ => Ok(()),
    }
}

/// Parses an id and checks that the caller may see it. Below `/v1/sandboxes` it must be the id of a sandbox.
async fn find<S>(parts: &Parts, state: &S, text: &str) -> Result<JobId, Problem>
where
    Orchestrator: FromRef<S>,
{
    let id = parse_job_id(text)?;
    check_owner(&Orchestrator::from_ref(state), parts.extensions.get(), id).await?;
    let route = parts.extensions.get::<MatchedPath>().map_or("", MatchedPath::as_str);
    if route.starts_with(BELOW_SANDBOXES) {
        Orchestrator::from_ref(state).sandbox(id).await?;
    }
    if OF_JOBS_ALONE.iter().any(|deed| route.strip_prefix(BELOW_JOBS) == Some(deed))
        && Orchestrator::from_ref(state).job(id).await?.kind == JobKind::Sandbox
    {
        return Err(OrchestratorError::NoJob(id).into());
    }
    Ok(id)
}

/// The job or sandbox in the path.
#[derive(Debug, Clone, Copy)]
pub(crate) struct JobPath(pub(crate) JobId);

impl<S> FromRequestParts<S> for JobPath
where
    S: Send + Sync,
    Orchestrator: FromRef<S>,
{
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let Path(text) =
            Path::<String>::from_request_parts(parts, state).await.map_err(|error| bad_path(&error))?;
        find(parts, state, &text).await.map(Self)
    }
}

/// The job and port in the path.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PortPath {
    pub(crate) job: JobId,
    pub(crate) port: u16,
}

impl<S> FromRequestParts<S> for PortPath
where
    S: Send + Sync,
    Orchestrator: FromRef<S>,
{
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let Path((job, port)) = Path::<(String, String)>::from_request_parts(parts, state)
            .await
            .map_err(|error| bad_path(&error))?;
        let job = find(parts, state, &job).await?;
        match port.parse() {
            Ok(port) if port != 0 => Ok(Self { job, port }),
            _ => {
                let detail = format!("`{}` is not a port from 1 to 65535", port.escape_debug());
                Err(Problem::bad_request("bad_path", detail))
            }
        }
    }
}

/// The job and kernel in the path.
#[derive(Debug, Clone)]
pub(crate) struct KernelPath {
    pub(crate) job: JobId,
    pub(crate) kernel: String,
}

impl<S> FromRequestParts<S> for KernelPath
where
    S: Send + Sync,
    Orchestrator: FromRef<S>,
{
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let Path((job, kernel)) = Path::<(String, String)>::from_request_parts(parts, state)
            .await
            .map_err(|error| bad_path(&error))?;
        Ok(Self { job: find(parts, state, &job).await?, kernel })
    }
}

/// The job and input request in the path.
#[derive(Debug, Clone)]
pub(crate) struct RequestPath {
    pub(crate) job: JobId,
    pub(crate) request: String,
}

impl<S> FromRequestParts<S> for RequestPath
where
    S: Send + Sync,
    Orchestrator: FromRef<S>,
{
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let Path((job, request)) = Path::<(String, String)>::from_request_parts(parts, state)
            .await
            .map_err(|error| bad_path(&error))?;
        Ok(Self { job: find(parts, state, &job).await?, request })
    }
}

/// The job and shared link in the path.
#[derive(Debug, Clone)]
pub(crate) struct SharePath {
    pub(crate) job: JobId,
    pub(crate) share: ShareId,
}

impl<S> FromRequestParts<S> for SharePath
where
    S: Send + Sync,
    Orchestrator: FromRef<S>,
{
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let Path((job, share)) = Path::<(String, String)>::from_request_parts(parts, state)
            .await
            .map_err(|error| bad_path(&error))?;
        Ok(Self { job: find(parts, state, &job).await?, share: ShareId::from(share) })
    }
}

/// The job and screenshot digest in the path.
#[derive(Debug, Clone)]
pub(crate) struct PicturePath {
    pub(crate) job: JobId,
    pub(crate) digest: String,
}

impl<S> FromRequestParts<S> for PicturePath
where
    S: Send + Sync,
    Orchestrator: FromRef<S>,
{
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let Path((job, digest)) = Path::<(String, String)>::from_request_parts(parts, state)
            .await
            .map_err(|error| bad_path(&error))?;
        let job = find(parts, state, &job).await?;
        let is_digest = digest.len() == 64 && digest.bytes().all(|byte| byte.is_ascii_hexdigit());
        if is_digest {
            return Ok(Self { job, digest });
        }
        let detail = format!("`{}` is not a digest of 64 hexadecimal digits", digest.escape_debug());
        Err(Problem::bad_request("bad_path", detail))
    }
}

/// The job and file in the path.
#[derive(Debug)]
pub(crate) struct FilePath {
    pub(crate) job: JobId,
    pub(crate) place: Place,
}

/// A location in the workspace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Place {
    /// The workspace root.
    Root,
    /// A path relative to the root, without `.` and double slashes.
    Inside(String),
}

impl Place {
    /// Parses a percent-decoded path of a request.
    pub(crate) fn parse(path: &str) -> Result<Self, Problem> {
        let below = ["/workspace", "/app"].iter().find_map(|root| path.strip_prefix(root)).unwrap_or(path);
        let is_absolute = below == path && path.starts_with('/');
        if !is_absolute && below.split('/').all(|part| matches!(part, "" | ".")) {
            return Ok(Self::Root);
        }
        orchestrator::workspace_path(path).map(Self::Inside).map_err(|problem| {
            let (status, code) = if path.contains('\0') || path.len() > 4096 {
                (StatusCode::BAD_REQUEST, "bad_path")
            } else {
                (StatusCode::FORBIDDEN, "path_outside_workspace")
            };
            Problem::new(status, code, format!("the path {problem}"))
        })
    }

    /// The relative path. Empty for the workspace root.
    pub(crate) fn as_str(&self) -> &str {
        match self {
            Self::Root => "",
            Self::Inside(path) => path,
        }
    }

    /// The relative path. An error for the workspace root.
    pub(crate) fn into_file(self) -> Result<String, Problem> {
        match self {
            Self::Root => {
                Err(Problem::bad_request("bad_path", "the path is the workspace itself; name a file in it"))
            }
            Self::Inside(path) => Ok(path),
        }
    }
}

impl<S> FromRequestParts<S> for FilePath
where
    S: Send + Sync,
    Orchestrator: FromRef<S>,
{
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let Path((job, path)) = Path::<(String, String)>::from_request_parts(parts, state)
            .await
            .map_err(|error| bad_path(&error))?;
        Ok(Self { job: find(parts, state, &job).await?, place: Place::parse(&path)? })
    }
}

fn bad_path(error: &PathRejection) -> Problem {
    Problem::bad_request("bad_path", format!("the path of the request cannot be read: {}", error.body_text()))
}

/// The query of a request. Invalid parameters are rejected by name, and so are unknown ones if `T` denies unknown
/// fields.
pub(crate) struct Parameters<T>(pub(crate) T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for Parameters<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        match Query::<T>::try_from_uri(&parts.uri) {
            Ok(Query(value)) => Ok(Self(value)),
            Err(error) => {
                let text = error.body_text();
                let detail = text.strip_prefix("Failed to deserialize query string: ").unwrap_or(&text);
                Err(Problem::bad_request("invalid_query", detail))
            }
        }
    }
}

/// The URL under which the caller reaches this server, such as `http://localhost:8000`, without a trailing slash.
pub(crate) struct BaseUrl(pub(crate) String);

impl BaseUrl {
    pub(crate) fn of(settings: &ServerSettings, arrival: &Arrival, headers: &HeaderMap) -> Self {
        if let Some(url) = &settings.public_url {
            return Self(url.trim_end_matches('/').to_owned());
        }
        // The guard has already rejected malformed hosts.
        let host = headers.get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or("localhost");
        let scheme = if arrival.transport(settings) == Transport::Secret { "https" } else { "http" };
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
        let arrival = Arrival::new(parts.extensions.get::<Connected>().copied(), &parts.headers);
        Ok(Self::of(&Arc::<ServerSettings>::from_ref(state), &arrival, &parts.headers))
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

    #[test]
    fn a_wrong_id_is_refused_with_an_example() {
        for text in ["", "1", "../x", "not-a-uuid", "01930d5e-7b1a-7c3e-9f00"] {
            let problem = parse_job_id(text).unwrap_err();
            assert_eq!((problem.status().as_u16(), problem.code()), (400, "bad_job_id"), "{text}");
        }
        assert!(parse_job_id(EXAMPLE_ID).is_ok());
    }

    #[test]
    fn paths_are_mapped_into_the_workspace_or_refused() {
        let inside = [
            ("a.txt", "a.txt"),
            ("a//b/./c", "a/b/c"),
            ("/workspace/a", "a"),
            ("/app/b", "b"),
            ("app", "app"),
        ];
        for (path, expected) in inside {
            assert_eq!(Place::parse(path).unwrap(), Place::Inside(expected.into()), "{path}");
        }
        for path in ["", ".", "./", "/workspace", "/app/"] {
            assert_eq!(Place::parse(path).unwrap(), Place::Root, "{path}");
        }
        let refused = [
            ("..", "path_outside_workspace"),
            ("a/../../b", "path_outside_workspace"),
            ("/etc/passwd", "path_outside_workspace"),
            ("/", "path_outside_workspace"),
            ("a\0b", "bad_path"),
        ];
        for (path, code) in refused {
            assert_eq!(Place::parse(path).unwrap_err().code(), code, "{path}");
        }
        assert_eq!(Place::Root.into_file().unwrap_err().code(), "bad_path");
    }

    #[test]
    fn addresses_come_from_the_host_or_from_the_settings() {
        let mut headers = HeaderMap::new();
        headers.insert(header::HOST, HeaderValue::from_static("127.0.0.1:3001"));
        let mut settings = ServerSettings::default();
        assert_eq!(BaseUrl::of(&settings, &Arrival::default(), &headers).0, "http://127.0.0.1:3001");
        settings.public_url = Some("https://caisson.example/".into());
        assert_eq!(BaseUrl::of(&settings, &Arrival::default(), &headers).0, "https://caisson.example");
    }
}
