//! The network report of a job.

use axum::Json;
use axum::extract::State;
use orchestrator::{JobId, NetworkReport};

use crate::extract::{AppState, JobPath};
use crate::openapi::JobProblems;
use crate::problem::Problem;

/// What a job has reached
///
/// Its policy, its newest connections with verdict and rule, sums, the downloads that the proxy could read with their
/// digests, and the narrowest policy that would have sufficed. `.caisson/audit/network.jsonl` in the zip has every
/// connection at its opening and its end.
#[utoipa::path(
    get, path = "/network", tag = "jobs", operation_id = "job_network",
    params(("id" = JobId, Path, description = "The job or sandbox")),
    responses((status = 200, description = "What was reached", body = NetworkReport), JobProblems)
)]
pub(crate) async fn network(
    State(state): State<AppState>,
    JobPath(id): JobPath,
) -> Result<Json<NetworkReport>, Problem> {
    Ok(Json(state.orchestrator.network(id).await?))
}
