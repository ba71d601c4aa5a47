//! The audit of a job's log: verification and signed heads.

use axum::Json;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use orchestrator::{JobAudit, JobId, SignedHead};

use crate::extract::{AppState, JobPath};
use crate::openapi::JobProblems;
use crate::problem::Problem;
use crate::streams::{Description, send_file};

/// Check the log of a job
///
/// Every event's hash covers the one before; the newest is signed at intervals and at the end. `faults` is empty where
/// nothing was changed or removed. Heads that were kept elsewhere are compared by `caisson audit verify --head`.
#[utoipa::path(
    get, path = "/audit", tag = "jobs", operation_id = "job_audit",
    params(("id" = JobId, Path, description = "The job or sandbox")),
    responses((status = 200, description = "What the check found", body = JobAudit), JobProblems)
)]
pub(crate) async fn audit(
    State(state): State<AppState>,
    JobPath(id): JobPath,
) -> Result<Json<JobAudit>, Problem> {
    Ok(Json(state.orchestrator.audit(id).await?))
}

/// Signed heads of a job's log
///
/// Oldest first; the end of the log is signed now. Keep the last one elsewhere: it pins every event up to it.
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

/// Files that a job touched
///
/// A line of JSON each: made, written, renamed, deleted, and opened outside the image's own directories, with process and call where they
/// could still be told. The first line says how the list is made: `fanotify`, as it happens, or `difference`, the workspace at the
/// end against its start. A `gap` says that something is missing. Also in the zip, as `.caisson/audit/files.jsonl`.
#[utoipa::path(
    get, path = "/audit/files", tag = "jobs", operation_id = "job_audit_files",
    params(("id" = JobId, Path, description = "The job or sandbox")),
    responses((status = 200, description = "The list", body = String, content_type = "application/x-ndjson"), JobProblems)
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
