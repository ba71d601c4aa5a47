//! The audit of a job's log: verification and signed heads.

use axum::Json;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use job::JobId;
use orchestrator::{JobAudit, SignedHead};

use crate::extract::{AppState, JobPath};
use crate::openapi::JobProblems;
use crate::problem::Problem;
use crate::streams::{Description, send_file};

/// Verify the log of a job
///
/// The hash of every event covers the previous event. The server signs the newest hash at intervals and at the end.
/// `faults` is empty if nothing was changed or removed. To compare heads kept elsewhere, use `caisson audit verify --head`.
#[utoipa::path(
    get, path = "/audit", tag = "jobs", operation_id = "job_audit",
    params(("id" = JobId, Path, description = "The job or sandbox")),
    responses((status = 200, description = "The result of the verification", body = JobAudit), JobProblems)
)]
pub(crate) async fn audit(
    State(state): State<AppState>,
    JobPath(id): JobPath,
) -> Result<Json<JobAudit>, Problem> {
    Ok(Json(state.orchestrator.audit(id).await?))
}

/// List the signed heads of a job's log
///
/// Oldest first. The request signs the end of the log. Keep the last head elsewhere: it proves every event up to it.
#[utoipa::path(
    get, path = "/audit/heads", tag = "jobs", operation_id = "job_audit_heads",
    params(("id" = JobId, Path, description = "The job or sandbox")),
    responses((status = 200, description = "The heads", body = Vec<SignedHead>), JobProblems)
)]
pub(crate) async fn heads(
    State(state): State<AppState>,
    JobPath(id): JobPath,
) -> Result<Json<Vec<SignedHead>>, Problem> {
    Ok(Json(state.orchestrator.heads(id).await?))
}

/// List the files that a job touched
///
/// One line of JSON per file that was created, written, renamed, deleted, or opened outside of the image's directories, with process
/// and call if they are known. The first line names the source: `fanotify`, recorded live, or `difference`, the workspace at the end
/// compared with its start. A `gap` reports missing entries. Also the download `audit/files.jsonl`.
#[utoipa::path(
    get, path = "/audit/files", tag = "jobs", operation_id = "job_audit_files",
    params(("id" = JobId, Path, description = "The job or sandbox")),
    responses((status = 200, description = "The list", body = String, content_type = "application/x-ndjson"),
        (status = 409, description = "`no_file_list`: there is no list yet", body = crate::problem::ProblemAnswer<'_>, content_type = "application/problem+json"), JobProblems)
)]
pub(crate) async fn files(
    State(state): State<AppState>,
    JobPath(id): JobPath,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let path = state.orchestrator.file_list(id).await?;
    send_file(
        &path,
        Description { media_type: "application/x-ndjson", attachment_name: None, tag: None },
        &headers,
    )
    .await
}
