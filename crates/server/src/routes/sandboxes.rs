//! Bare sandboxes: create, list, get, extend and delete. Their insides are reached like those of a job's sandbox.

use std::collections::BTreeMap;

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use job::{JobFilter, JobId, JobKind, JobState};
use orchestrator::{NewSandbox, SandboxView};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::access::{Caller, parse_job_id};
use crate::answers::detail_of;
use crate::clock::timestamp;
use crate::extract::{AppState, JobPath, JsonBody, OnBehalfOfCaller, Parameters};
use crate::openapi::{BodyProblems, CreateSandboxProblems, QueryProblems, SandboxIdProblems, StateProblems};
use crate::problem::Problem;
use crate::routes::jobs::{parse_label, parse_limit};

/// The state of a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum SandboxStatus {
    /// The server is creating it.
    Starting,
    /// It is ready.
    Running,
    /// It has ended; see `reason`.
    Ended,
}

impl From<JobState> for SandboxStatus {
    fn from(state: JobState) -> Self {
        match state {
            JobState::Draft | JobState::Queued | JobState::Starting => Self::Starting,
            JobState::Running | JobState::Paused | JobState::Collecting => Self::Running,
            JobState::Complete | JobState::Failed | JobState::Cancelled => Self::Ended,
        }
    }
}

/// A bare sandbox.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct SandboxAnswer {
    /// Names it.
    sandbox_id: JobId,
    /// Its state.
    status: SandboxStatus,
    /// The exact state, with its reason.
    #[schema(example = "running")]
    detail: String,
    /// Code of the reason why it ended: `ttl`, `cancelled`, ...
    code: Option<String>,
    /// Why it ended.
    reason: Option<String>,
    /// The name.
    name: Option<String>,
    /// The labels.
    labels: BTreeMap<String, String>,
    /// When it was requested.
    #[schema(format = DateTime)]
    created_at: String,
    /// When it ends if it is not used.
    #[schema(format = DateTime)]
    expires_at: Option<String>,
    /// Seconds without use until it ends.
    ttl_s: Option<f64>,
}

impl SandboxAnswer {
    fn new(SandboxView { view, expires_ms }: SandboxView) -> Self {
        Self {
            sandbox_id: view.job_id,
            status: view.state.into(),
            detail: detail_of(&view),
            created_at: timestamp(view.created_ms),
            expires_at: expires_ms.filter(|_| !view.state.is_over()).map(timestamp),
            #[expect(
                clippy::cast_precision_loss,
                reason = "a time that a caller has written as such a number"
            )]
            ttl_s: view.idle_ms.map(|idle_ms| idle_ms as f64 / 1000.0),
            code: view.code,
            reason: view.reason,
            name: view.name,
            labels: view.labels,
        }
    }
}

/// A page of sandboxes, newest first.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct SandboxListAnswer {
    /// The sandboxes.
    sandboxes: Vec<SandboxAnswer>,
    /// `before` of the next page; null on the last one.
    next: Option<JobId>,
}

/// Create a sandbox
///
/// The answer comes when the sandbox runs, or after 30 seconds. A sandbox ends when it has not been used for `ttl_s`
/// seconds. Commands that a client waits for, open WebSockets and file transfers count as use.
#[utoipa::path(
    post, path = "/v1/sandboxes", tag = "sandboxes", operation_id = "create_sandbox",
    request_body(content = NewSandbox, example = json!({"ttl_s": 600, "limits": {"memory_mib": 512}})),
    responses(
        (status = 201, description = "The sandbox; if `status` is `ended`, it could not be created, see `reason`",
            body = SandboxAnswer, headers(("Location" = String, description = "URL of the sandbox"))),
        BodyProblems,
        CreateSandboxProblems
    )
)]
pub(crate) async fn create(
    State(state): State<AppState>,
    caller: Caller,
    JsonBody(new): JsonBody<NewSandbox>,
) -> Result<Response, Problem> {
    let orchestrator = state.orchestrator;
    // If the caller disconnects, creating the sandbox must not stop halfway.
    let making = tokio::spawn(async move { orchestrator.create_sandbox(new, caller.submitter()).await });
    let sandbox = making.await.map_err(|_| Problem::internal("creating the sandbox was interrupted"))??;
    let location = HeaderValue::try_from(format!("/v1/sandboxes/{}", sandbox.view.job_id)).ok();
    let mut response = (StatusCode::CREATED, Json(SandboxAnswer::new(sandbox))).into_response();
    if let Some(location) = location {
        response.headers_mut().insert(header::LOCATION, location);
    }
    Ok(response)
}

/// Which sandboxes to list.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct SandboxQuery {
    /// Include sandboxes that have ended.
    #[serde(default)]
    all: bool,
    /// Only sandboxes with this label, written `key:value`.
    #[param(pattern = r"^[^:]+:[\s\S]*$")]
    label: Option<String>,
    /// Maximum number of sandboxes; default 100.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<usize>,
    /// Only sandboxes older than this one: `next` of the previous page.
    #[param(value_type = Option<JobId>)]
    before: Option<String>,
}

impl SandboxQuery {
    fn into_filter(self) -> Result<JobFilter, Problem> {
        let living = vec![
            JobState::Queued,
            JobState::Starting,
            JobState::Running,
            JobState::Paused,
            JobState::Collecting,
        ];
        Ok(JobFilter {
            kind: JobKind::Sandbox,
            states: if self.all { Vec::new() } else { living },
            label: parse_label(self.label)?,
            submitter: None,
            before: self.before.as_deref().map(parse_job_id).transpose()?,
            limit: parse_limit(self.limit)?,
        })
    }
}

/// List sandboxes
///
/// Newest first. While `next` is not null there are more sandboxes: pass it as `before`.
#[utoipa::path(
    get, path = "/v1/sandboxes", tag = "sandboxes", operation_id = "list_sandboxes",
    params(SandboxQuery),
    responses((status = 200, description = "A page of sandboxes", body = SandboxListAnswer), QueryProblems)
)]
pub(crate) async fn list(
    State(state): State<AppState>,
    Parameters(query): Parameters<SandboxQuery>,
    caller: Caller,
) -> Result<Json<SandboxListAnswer>, Problem> {
    let filter = JobFilter { submitter: caller.restricted_to(), ..query.into_filter()? };
    let (sandboxes, next) = state.orchestrator.sandboxes(filter).await?;
    Ok(Json(SandboxListAnswer { sandboxes: sandboxes.into_iter().map(SandboxAnswer::new).collect(), next }))
}

/// Get a sandbox
#[utoipa::path(
    get, path = "/v1/sandboxes/{id}", tag = "sandboxes", operation_id = "get_sandbox",
    params(("id" = JobId, Path, description = "The sandbox")),
    responses((status = 200, description = "The sandbox", body = SandboxAnswer), SandboxIdProblems)
)]
pub(crate) async fn get(
    State(state): State<AppState>,
    JobPath(id): JobPath,
) -> Result<Json<SandboxAnswer>, Problem> {
    Ok(Json(SandboxAnswer::new(state.orchestrator.sandbox(id).await?)))
}

/// For how long to keep a sandbox.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ExtendRequest {
    /// The new time to live: seconds without use until the sandbox ends, counted from now.
    #[schema(example = 600)]
    ttl_s: f64,
}

/// Extend a sandbox
///
/// Sets its `ttl_s`, and counts as a use.
#[utoipa::path(
    post, path = "/v1/sandboxes/{id}/extend", tag = "sandboxes", operation_id = "extend_sandbox",
    params(("id" = JobId, Path, description = "The sandbox")),
    request_body = ExtendRequest,
    responses(
        (status = 200, description = "The sandbox", body = SandboxAnswer),
        SandboxIdProblems,
        BodyProblems,
        StateProblems
    )
)]
pub(crate) async fn extend(
    OnBehalfOfCaller(orchestrator): OnBehalfOfCaller,
    JobPath(id): JobPath,
    JsonBody(request): JsonBody<ExtendRequest>,
) -> Result<Json<SandboxAnswer>, Problem> {
    Ok(Json(SandboxAnswer::new(orchestrator.extend_sandbox(id, request.ttl_s).await?)))
}

/// End a sandbox
///
/// Deletes everything in it and collects nothing. Idempotent.
#[utoipa::path(
    delete, path = "/v1/sandboxes/{id}", tag = "sandboxes", operation_id = "delete_sandbox",
    params(("id" = JobId, Path, description = "The sandbox")),
    responses((status = 204, description = "Ended"), SandboxIdProblems)
)]
pub(crate) async fn delete(
    OnBehalfOfCaller(orchestrator): OnBehalfOfCaller,
    JobPath(id): JobPath,
) -> Result<StatusCode, Problem> {
    orchestrator.end_sandbox(id).await?;
    Ok(StatusCode::NO_CONTENT)
}
