//! Runs code in the live kernels of a sandbox.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use orchestrator::{CodeReply, CodeRequest, JobId, KernelAnswer, Orchestrator, OrchestratorError};
use protocol::{KernelAction, ProtocolError};
use serde::Serialize;
use utoipa::ToSchema;

use crate::extract::{AppState, JobPath, JsonBody, KernelPath, OnBehalfOfCaller};
use crate::openapi::{BodyProblems, JobProblems, KernelProblems, SandboxProblems, StateProblems};
use crate::problem::Problem;

/// The kernels of a sandbox.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct KernelsAnswer {
    /// By name.
    kernels: Vec<KernelAnswer>,
}

/// Run code in a live kernel
///
/// Variables last from cell to cell, those of steps included: a kernel is started at its first cell. The answer comes
/// when the cell has ended or its time is up; then the kernel is interrupted. What ran is in the job's log and, as a
/// notebook, in `.caisson/agent.ipynb` of the workspace.
#[utoipa::path(
    post, path = "/code", tag = "sandbox", operation_id = "job_code",
    params(("id" = JobId, Path, description = "The job")),
    request_body(content = CodeRequest, example = json!({"code": "x = 6 * 7\nx", "timeout_s": 10})),
    responses(
        (status = 200, description = "It has ended, well or not", body = CodeReply),
        JobProblems,
        BodyProblems,
        StateProblems,
        SandboxProblems
    )
)]
pub(crate) async fn run(
    OnBehalfOfCaller(orchestrator): OnBehalfOfCaller,
    JobPath(id): JobPath,
    JsonBody(request): JsonBody<CodeRequest>,
) -> Result<Json<CodeReply>, Problem> {
    Ok(Json(orchestrator.run_code(id, request).await?))
}

/// List kernels
///
/// The kernels of the sandbox's image, and which of them run.
#[utoipa::path(
    get, path = "/kernels", tag = "sandbox", operation_id = "job_kernels",
    params(("id" = JobId, Path, description = "The job")),
    responses((status = 200, description = "The kernels", body = KernelsAnswer), JobProblems, SandboxProblems)
)]
pub(crate) async fn list(
    State(state): State<AppState>,
    JobPath(id): JobPath,
) -> Result<Json<KernelsAnswer>, Problem> {
    Ok(Json(KernelsAnswer { kernels: state.orchestrator.kernels(id).await? }))
}

/// Interrupt a kernel
///
/// Ends what it does now, as Ctrl-C would; its variables stay.
#[utoipa::path(
    post, path = "/kernels/{name}/interrupt", tag = "sandbox", operation_id = "job_kernel_interrupt",
    params(("id" = JobId, Path, description = "The job"), ("name" = String, Path, description = "The kernel")),
    responses((status = 204, description = "It was told"), JobProblems, SandboxProblems, KernelProblems)
)]
pub(crate) async fn interrupt(
    OnBehalfOfCaller(orchestrator): OnBehalfOfCaller,
    path: KernelPath,
) -> Result<StatusCode, Problem> {
    act(&orchestrator, path, KernelAction::Interrupt).await
}

/// Restart a kernel
///
/// Ends it with all its processes and starts it anew, without variables. The next cell says so in its note.
#[utoipa::path(
    post, path = "/kernels/{name}/restart", tag = "sandbox", operation_id = "job_kernel_restart",
    params(("id" = JobId, Path, description = "The job"), ("name" = String, Path, description = "The kernel")),
    responses((status = 204, description = "It answers again"), JobProblems, SandboxProblems, KernelProblems)
)]
pub(crate) async fn restart(
    OnBehalfOfCaller(orchestrator): OnBehalfOfCaller,
    path: KernelPath,
) -> Result<StatusCode, Problem> {
    act(&orchestrator, path, KernelAction::Restart).await
}

async fn act(
    orchestrator: &Orchestrator,
    path: KernelPath,
    action: KernelAction,
) -> Result<StatusCode, Problem> {
    match orchestrator.act_on_kernel(path.job, &path.kernel, action).await {
        Ok(()) => Ok(StatusCode::NO_CONTENT),
        Err(OrchestratorError::Link(ProtocolError::Refused(why))) => {
            Err(Problem::new(StatusCode::CONFLICT, "kernel_not_running", why))
        }
        Err(other) => Err(other.into()),
    }
}
