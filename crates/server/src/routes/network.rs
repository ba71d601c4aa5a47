//! The network report of a job.

use axum::Json;
use axum::extract::State;
use job::JobId;
use orchestrator::NetworkReport;

use crate::extract::{AppState, JobPath};
use crate::openapi::JobProblems;
use crate::problem::Problem;

/// List connections
///
/// The egress policy, the newest connections with verdict and rule, totals, the downloads that the proxy could read with
/// their digests, and the narrowest policy that would have sufficed. The download `audit/network.jsonl` lists every
/// connection.
#[utoipa::path(
    get, path = "/network", tag = "jobs", operation_id = "job_network",
    params(("id" = JobId, Path, description = "The job or sandbox")),
    responses((status = 200, description = "The connections", body = NetworkReport), JobProblems)
)]
pub(crate) async fn network(
    State(state): State<AppState>,
    JobPath(id): JobPath,
) -> Result<Json<NetworkReport>, Problem> {
    Ok(Json(state.orchestrator.network(id).await?))
}
