//! Resource usage of a sandbox.

use axum::Json;
use axum::extract::State;
use orchestrator::{JobId, SandboxStats};

use crate::extract::{AppState, JobPath};
use crate::openapi::{JobProblems, SandboxProblems};
use crate::problem::Problem;

/// Figures of a sandbox
#[utoipa::path(
    get, path = "/stats", tag = "sandbox", operation_id = "job_stats",
    params(("id" = JobId, Path, description = "The job")),
    responses((status = 200, description = "What it uses now", body = SandboxStats), JobProblems, SandboxProblems)
)]
pub(crate) async fn stats(
    State(state): State<AppState>,
    JobPath(id): JobPath,
) -> Result<Json<SandboxStats>, Problem> {
    Ok(Json(state.orchestrator.stats(id).await?))
}
