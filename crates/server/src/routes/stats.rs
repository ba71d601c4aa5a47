//! Resource usage of a sandbox, now and over time.

use axum::Json;
use axum::extract::State;
use job::JobId;
use orchestrator::{SandboxStats, StatsHistory};

use crate::extract::{AppState, JobPath};
use crate::openapi::{JobProblems, SandboxProblems};
use crate::problem::Problem;

/// Get resource usage of a sandbox
#[utoipa::path(
    get, path = "/stats", tag = "sandbox", operation_id = "job_stats",
    params(("id" = JobId, Path, description = "The job")),
    responses((status = 200, description = "The current usage", body = SandboxStats), JobProblems, SandboxProblems)
)]
pub(crate) async fn stats(
    State(state): State<AppState>,
    JobPath(id): JobPath,
) -> Result<Json<SandboxStats>, Problem> {
    Ok(Json(state.orchestrator.stats(id).await?))
}

/// Get the history of resource usage
///
/// From the start of the job, also after its end. Samples older than an hour of work are merged.
#[utoipa::path(
    get, path = "/stats/history", tag = "sandbox", operation_id = "job_stats_history",
    params(("id" = JobId, Path, description = "The job")),
    responses((status = 200, description = "Samples and limits", body = StatsHistory), JobProblems)
)]
pub(crate) async fn history(
    State(state): State<AppState>,
    JobPath(id): JobPath,
) -> Result<Json<StatsHistory>, Problem> {
    Ok(Json(state.orchestrator.stats_history(id).await?))
}
