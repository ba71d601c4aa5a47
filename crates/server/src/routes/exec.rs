//! Runs commands in the sandbox of a job.

use axum::Json;
use orchestrator::{ExecReply, ExecRequest, JobId};

use crate::extract::{JobPath, JsonBody, OnBehalfOfCaller};
use crate::openapi::{BodyProblems, JobProblems, SandboxProblems, StateProblems};
use crate::problem::Problem;

/// Run a command in the sandbox of a job
///
/// The job must have a sandbox. The answer comes when the command has ended or its time is up; the call is in the
/// job's log.
#[utoipa::path(
    post, path = "/exec", tag = "sandbox", operation_id = "job_exec",
    params(("id" = JobId, Path, description = "The job")),
    request_body(content = ExecRequest, example = json!({"command": "ls -la", "timeout_s": 10})),
    responses(
        (status = 200, description = "It has ended, well or not", body = ExecReply),
        JobProblems,
        BodyProblems,
        StateProblems,
        SandboxProblems
    )
)]
pub(crate) async fn exec(
    OnBehalfOfCaller(orchestrator): OnBehalfOfCaller,
    JobPath(id): JobPath,
    JsonBody(request): JsonBody<ExecRequest>,
) -> Result<Json<ExecReply>, Problem> {
    Ok(Json(orchestrator.exec(id, request).await?))
}
