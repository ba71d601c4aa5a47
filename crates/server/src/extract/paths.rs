//! Extractors for the ids and names in the path of a request.

use axum::extract::rejection::PathRejection;
use axum::extract::{FromRef, FromRequestParts, MatchedPath, Path};
use axum::http::request::Parts;
use job::{JobId, JobKind, ShareId};
use orchestrator::{Orchestrator, OrchestratorError, StoreError};

use super::workspace_path::WorkspacePath;
use crate::access::{Caller, parse_job_id};
use crate::problem::Problem;

/// Routes below this prefix also exist for jobs, so the id must be checked to be a sandbox's.
const SANDBOX_PREFIX: &str = "/v1/sandboxes/{id}/";

/// Routes below this prefix also accept the ids of bare sandboxes, because both kinds share one id type.
const JOB_PREFIX: &str = "/v1/jobs/{id}/";
const JOB_ONLY_ACTIONS: [&str; 6] = ["cancel", "pause", "resume", "message", "takeover", "handback"];

/// Rejects a job that this caller may not see. The access check has already done so; this second check uses the id
/// that the handler uses.
pub(crate) async fn check_owner(
    orchestrator: &Orchestrator,
    caller: Option<&Caller>,
    id: JobId,
) -> Result<(), Problem> {
    match caller.and_then(Caller::restricted_to) {
        Some(own) if orchestrator.submitter(id).await?.as_ref() != Some(&own) => {
            Err(OrchestratorError::Store(StoreError::NoJob(id)).into())
        }
        _ => Ok(()),
    }
}

/// Parses an id and checks that the caller may see it. Below `/v1/sandboxes` it must be the id of a sandbox.
async fn resolve_job<S>(parts: &Parts, state: &S, text: &str) -> Result<JobId, Problem>
where
    Orchestrator: FromRef<S>,
{
    let id = parse_job_id(text)?;
    check_owner(&Orchestrator::from_ref(state), parts.extensions.get(), id).await?;
    let route = parts.extensions.get::<MatchedPath>().map_or("", MatchedPath::as_str);
    if route.starts_with(SANDBOX_PREFIX) {
        Orchestrator::from_ref(state).sandbox(id).await?;
    }
    if JOB_ONLY_ACTIONS.iter().any(|action| route.strip_prefix(JOB_PREFIX) == Some(action))
        && Orchestrator::from_ref(state).job(id).await?.kind == JobKind::Sandbox
    {
        return Err(OrchestratorError::Store(StoreError::NoJob(id)).into());
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
            Path::<String>::from_request_parts(parts, state).await.map_err(|error| invalid_path(&error))?;
        resolve_job(parts, state, &text).await.map(Self)
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
            .map_err(|error| invalid_path(&error))?;
        let job = resolve_job(parts, state, &job).await?;
        match port.parse() {
            Ok(port) if port != 0 => Ok(Self { job, port }),
            _ => {
                let detail = format!("`{}` is not a port from 1 to 65535", port.escape_debug());
                Err(Problem::bad_request("invalid_path", detail))
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
            .map_err(|error| invalid_path(&error))?;
        Ok(Self { job: resolve_job(parts, state, &job).await?, kernel })
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
            .map_err(|error| invalid_path(&error))?;
        Ok(Self { job: resolve_job(parts, state, &job).await?, request })
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
            .map_err(|error| invalid_path(&error))?;
        Ok(Self { job: resolve_job(parts, state, &job).await?, share: ShareId::from(share) })
    }
}

/// The job and screenshot digest in the path.
#[derive(Debug, Clone)]
pub(crate) struct ScreenshotPath {
    pub(crate) job: JobId,
    pub(crate) digest: String,
}

impl<S> FromRequestParts<S> for ScreenshotPath
where
    S: Send + Sync,
    Orchestrator: FromRef<S>,
{
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let Path((job, digest)) = Path::<(String, String)>::from_request_parts(parts, state)
            .await
            .map_err(|error| invalid_path(&error))?;
        let job = resolve_job(parts, state, &job).await?;
        let is_digest = digest.len() == 64 && digest.bytes().all(|byte| byte.is_ascii_hexdigit());
        if is_digest {
            return Ok(Self { job, digest });
        }
        let detail = format!("`{}` is not a digest of 64 hexadecimal digits", digest.escape_debug());
        Err(Problem::bad_request("invalid_path", detail))
    }
}

/// The job and file in the path.
#[derive(Debug)]
pub(crate) struct FilePath {
    pub(crate) job: JobId,
    pub(crate) path: WorkspacePath,
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
            .map_err(|error| invalid_path(&error))?;
        Ok(Self { job: resolve_job(parts, state, &job).await?, path: WorkspacePath::parse(&path)? })
    }
}

/// The job and the name of a download in the path.
#[derive(Debug)]
pub(crate) struct DownloadPath {
    pub(crate) job: JobId,
    pub(crate) name: String,
}

impl<S> FromRequestParts<S> for DownloadPath
where
    S: Send + Sync,
    Orchestrator: FromRef<S>,
{
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let Path((job, name)) = Path::<(String, String)>::from_request_parts(parts, state)
            .await
            .map_err(|error| invalid_path(&error))?;
        Ok(Self { job: resolve_job(parts, state, &job).await?, name })
    }
}

fn invalid_path(error: &PathRejection) -> Problem {
    Problem::bad_request("invalid_path", format!("the request path is not valid: {}", error.body_text()))
}
