//! Runs code in the live kernels of a sandbox.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use job::JobId;
use orchestrator::{CodeReply, CodeRequest, KernelAnswer, Orchestrator, OrchestratorError};
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
/// A kernel starts with its first cell and keeps variables between cells and steps. The answer comes when the cell ends or
/// its timeout expires; a timeout interrupts the kernel. Cells are recorded in the job's log and, as a notebook, in
/// `.caisson/agent.ipynb` of the workspace.
#[utoipa::path(
    post, path = "/code", tag = "sandbox", operation_id = "job_code",
    params(("id" = JobId, Path, description = "The job")),
    request_body(content = CodeRequest, example = json!({"code": "x = 6 * 7\nx", "timeout_s": 10})),
    responses(
        (status = 200, description = "The cell has ended; see `status`", body = CodeReply),
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
/// The kernels of the sandbox's image, with their state.
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
/// Interrupts the current cell, like Ctrl-C; the kernel keeps its variables.
#[utoipa::path(
    post, path = "/kernels/{name}/interrupt", tag = "sandbox", operation_id = "job_kernel_interrupt",
    params(("id" = JobId, Path, description = "The job"), ("name" = String, Path, max_length = 64, pattern = "^[A-Za-z0-9._-]+$", description = "The kernel")),
    responses((status = 204, description = "Interrupted"), JobProblems, SandboxProblems, KernelProblems)
)]
pub(crate) async fn interrupt(
    OnBehalfOfCaller(orchestrator): OnBehalfOfCaller,
    path: KernelPath,
) -> Result<StatusCode, Problem> {
    act(&orchestrator, path, KernelAction::Interrupt).await
}

/// Restart a kernel
///
/// Ends the kernel and all its processes and starts it again, without variables. The note of the next cell mentions this.
#[utoipa::path(
    post, path = "/kernels/{name}/restart", tag = "sandbox", operation_id = "job_kernel_restart",
    params(("id" = JobId, Path, description = "The job"), ("name" = String, Path, max_length = 64, pattern = "^[A-Za-z0-9._-]+$", description = "The kernel")),
    responses((status = 204, description = "Restarted"), JobProblems, SandboxProblems, KernelProblems)
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
