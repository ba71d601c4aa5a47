//! The files that a finished job leaves beside its result.

use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use job::JobId;

use crate::extract::{AppState, DownloadPath};
use crate::openapi::DownloadProblems;
use crate::problem::Problem;
use crate::streams::{Description, send_file};

/// Download a file of a finished job
///
/// One of the job's `downloads`, which are no part of `output.zip`: the manifest with the digests of its files, lists of
/// connections and touched files, the log, history and context, notebooks of what ran, and recordings of the desktop.
#[utoipa::path(
    get, path = "/v1/jobs/{id}/downloads/{*name}", tag = "jobs", operation_id = "job_download",
    params(
        ("id" = JobId, Path, description = "The job"),
        ("name" = String, Path, description = "Name of the file; may contain slashes", example = "manifest.json"),
    ),
    responses(
        (status = 200, description = "The file", body = String, content_type = "application/octet-stream"),
        DownloadProblems
    )
)]
pub(crate) async fn download(
    State(state): State<AppState>,
    DownloadPath { job, name }: DownloadPath,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let path = state.orchestrator.result_file(job, &name).await?;
    let attachment_name = name.rsplit('/').next();
    let description = Description { media_type: "application/octet-stream", attachment_name, tag: None };
    send_file(&path, description, &headers).await
}
