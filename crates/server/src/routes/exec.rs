//! Runs commands in the sandbox of a job.

use axum::Json;
use job::JobId;
use orchestrator::{ExecReply, ExecRequest};

use crate::extract::{JobPath, JsonBody, OnBehalfOfCaller};
use crate::openapi::{BodyProblems, JobProblems, SandboxProblems, StateProblems};
use crate::problem::Problem;

/// Run a command in a sandbox
///
/// The sandbox must be running. The answer comes when the command ends or its timeout expires. The log records the call.
#[utoipa::path(
    post, path = "/exec", tag = "sandbox", operation_id = "job_exec",
    params(("id" = JobId, Path, description = "The job")),
    request_body(content = ExecRequest, example = json!({"command": "ls -la", "timeout_s": 10})),
    responses(
        (status = 200, description = "The command has ended; see `status`", body = ExecReply),
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
