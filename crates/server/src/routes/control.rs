//! Actions on a running job: message, pause, resume, extend, take over, hand back, answer.

use axum::Json;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use job::{JobId, JobView};
use orchestrator::{Budget, ExtendedJob, Handback, InputAnswer, InputRequest, Message, TakenOver, Takeover};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::access::takeover_gate::{self, TakeoverGate};
use crate::answers::JobAnswer;
use crate::clock::{now_ms, timestamp};
use crate::extract::{AppState, BaseUrl, JobPath, JsonBody, OnBehalfOfCaller, OptionalBody, RequestPath};
use crate::guard::ClientInfo;
use crate::openapi::{BodyProblems, JobProblems, StateProblems};
use crate::problem::Problem;

fn accepted(view: JobView, base: &BaseUrl) -> Response {
    (StatusCode::ACCEPTED, Json(JobAnswer::new(view, base, now_ms()))).into_response()
}

/// Send a message to the agent
///
/// The agent reads the message in its next turn. A job that is paused with the code `stuck` resumes.
#[utoipa::path(
    post, path = "/v1/jobs/{id}/message", tag = "jobs", operation_id = "message_job",
    params(("id" = JobId, Path, description = "The job")),
    request_body(content = Message, example = json!({"text": "Use SQLite instead of a file."})),
    responses((status = 202, description = "Accepted", body = JobAnswer), JobProblems, BodyProblems, StateProblems)
)]
pub(crate) async fn message(
    OnBehalfOfCaller(orchestrator): OnBehalfOfCaller,
    JobPath(id): JobPath,
    base: BaseUrl,
    JsonBody(message): JsonBody<Message>,
) -> Result<Response, Problem> {
    Ok(accepted(orchestrator.message(id, message).await?, &base))
}

/// Pause a job
///
/// The job pauses after the current call. The sandbox and its processes keep running.
#[utoipa::path(
    post, path = "/v1/jobs/{id}/pause", tag = "jobs", operation_id = "pause_job",
    params(("id" = JobId, Path, description = "The job")),
    responses((status = 202, description = "The job will pause", body = JobAnswer), JobProblems, StateProblems)
)]
pub(crate) async fn pause(
    OnBehalfOfCaller(orchestrator): OnBehalfOfCaller,
    JobPath(id): JobPath,
    base: BaseUrl,
) -> Result<Response, Problem> {
    Ok(accepted(orchestrator.pause(id).await?, &base))
}

/// How a job continues.
#[derive(Debug, Default, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct ResumeRequest {
    /// The new total budget; omitted values do not change.
    #[serde(skip_serializing_if = "Option::is_none")]
    budget: Option<Budget>,
}

/// Resume a job
///
/// To resume a job that has used up its budget, set a larger one.
#[utoipa::path(
    post, path = "/v1/jobs/{id}/resume", tag = "jobs", operation_id = "resume_job",
    params(("id" = JobId, Path, description = "The job")),
    request_body(content = Option<ResumeRequest>, example = json!({"budget": {"turns": 400}})),
    responses((status = 202, description = "The job will resume", body = JobAnswer), JobProblems, BodyProblems, StateProblems)
)]
pub(crate) async fn resume(
    OnBehalfOfCaller(orchestrator): OnBehalfOfCaller,
    JobPath(id): JobPath,
    base: BaseUrl,
    OptionalBody(request): OptionalBody<ResumeRequest>,
) -> Result<Response, Problem> {
    Ok(accepted(orchestrator.resume(id, request.budget).await?, &base))
}

/// How much time to add.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ExtendJobRequest {
    /// Seconds to add to the time limit.
    #[schema(example = 1800)]
    seconds: f64,
}

/// A job with its new time limit.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ExtendedJobAnswer {
    /// The job.
    #[serde(flatten)]
    job: JobAnswer,
    /// The new time limit: seconds that the job may work in total.
    time_limit_s: f64,
    /// When the job ends at the latest. Null while its time does not run: before it starts, and while it waits.
    #[schema(format = DateTime)]
    deadline_at: Option<String>,
}

/// Extend the time limit of a job
///
/// Adds seconds to the time limit, also while a call runs or the job is paused. The new limit may not exceed the maximum
/// for `wall_clock_s`.
#[utoipa::path(
    post, path = "/v1/jobs/{id}/extend", tag = "jobs", operation_id = "extend_job",
    params(("id" = JobId, Path, description = "The job")),
    request_body(content = ExtendJobRequest, example = json!({"seconds": 1800})),
    responses(
        (status = 200, description = "The job with its new time limit", body = ExtendedJobAnswer),
        JobProblems,
        BodyProblems,
        StateProblems
    )
)]
pub(crate) async fn extend(
    OnBehalfOfCaller(orchestrator): OnBehalfOfCaller,
    JobPath(id): JobPath,
    base: BaseUrl,
    JsonBody(request): JsonBody<ExtendJobRequest>,
) -> Result<Json<ExtendedJobAnswer>, Problem> {
    let ExtendedJob { view, time_limit, deadline_ms } = orchestrator.extend_job(id, request.seconds).await?;
    Ok(Json(ExtendedJobAnswer {
        job: JobAnswer::new(view, &base, now_ms()),
        time_limit_s: time_limit.as_secs_f64(),
        deadline_at: deadline_ms.map(timestamp),
    }))
}

/// A sandbox that was taken over.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct TakeoverAnswer {
    /// The job.
    #[serde(flatten)]
    job: JobAnswer,
    /// The token for the holder's requests: header `X-Caisson-Takeover`, cookie `caisson-takeover` or query parameter
    /// `takeover`. It is returned only once.
    token: String,
}

/// Take over the sandbox
///
/// The agent pauses before its next call until the sandbox is handed back. One person at a time holds the sandbox. Only
/// the holder may use commands, code, files, the terminal, the desktop and the notebook. Other callers have read-only
/// access; their requests get 409 `taken_over`. The holder's requests carry the `token`; browsers receive it as a cookie.
#[utoipa::path(
    post, path = "/v1/jobs/{id}/takeover", tag = "jobs", operation_id = "take_over_job",
    params(("id" = JobId, Path, description = "The job")),
    request_body(content = Option<Takeover>, example = json!({"by": "Ada"})),
    responses(
        (status = 202, description = "Taken over", body = TakeoverAnswer),
        JobProblems,
        BodyProblems,
        StateProblems
    )
)]
pub(crate) async fn takeover(
    State(state): State<AppState>,
    OnBehalfOfCaller(orchestrator): OnBehalfOfCaller,
    JobPath(id): JobPath,
    (base, client_info): (BaseUrl, ClientInfo),
    OptionalBody(takeover): OptionalBody<Takeover>,
) -> Result<Response, Problem> {
    let TakenOver { view, token } = orchestrator.takeover(id, takeover).await?;
    let transport = client_info.transport(&state.settings);
    let cookie = takeover_gate::cookie(&token, &format!("/v1/jobs/{id}"), transport);
    let answer = TakeoverAnswer { job: JobAnswer::new(view, &base, now_ms()), token };
    let mut response = (StatusCode::ACCEPTED, Json(answer)).into_response();
    if let Some(cookie) = cookie {
        response.headers_mut().insert(header::SET_COOKIE, cookie);
    }
    Ok(response)
}

/// Hand back the sandbox
///
/// The agent receives a list of changed files and executed commands, then continues. Only the holder may do this, or any
/// caller with `force`.
#[utoipa::path(
    post, path = "/v1/jobs/{id}/handback", tag = "jobs", operation_id = "hand_back_job",
    params(("id" = JobId, Path, description = "The job")),
    request_body(content = Option<Handback>, example = json!({"force": false})),
    responses(
        (status = 202, description = "Handed back", body = JobAnswer),
        JobProblems,
        BodyProblems,
        StateProblems
    )
)]
pub(crate) async fn handback(
    OnBehalfOfCaller(orchestrator): OnBehalfOfCaller,
    JobPath(id): JobPath,
    base: BaseUrl,
    gate: TakeoverGate,
    OptionalBody(handback): OptionalBody<Handback>,
) -> Result<Response, Problem> {
    Ok(accepted(orchestrator.handback(id, &gate.caller(), &handback).await?, &base))
}

/// What waits for a person.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct RequestListAnswer {
    /// Oldest first.
    requests: Vec<InputRequest>,
}

/// List open input requests
///
/// Questions, plans, commands and connections that wait for a person.
#[utoipa::path(
    get, path = "/v1/jobs/{id}/requests", tag = "jobs", operation_id = "job_requests",
    params(("id" = JobId, Path, description = "The job")),
    responses((status = 200, description = "The open requests", body = RequestListAnswer), JobProblems)
)]
pub(crate) async fn requests(
    State(state): State<AppState>,
    JobPath(id): JobPath,
) -> Result<Json<RequestListAnswer>, Problem> {
    Ok(Json(RequestListAnswer { requests: state.orchestrator.requests(id).await? }))
}

/// Answer an input request
///
/// Answer a question with `text`, a command with `accept`, a plan with `accept` or the edited `plan`, and a connection (kind
/// `egress`) with `accept` and `scope`: `once`, or `rest` for the rest of the job.
#[utoipa::path(
    post, path = "/v1/jobs/{id}/requests/{request}", tag = "jobs", operation_id = "answer_request",
    params(
        ("id" = JobId, Path, description = "The job"),
        ("request" = String, Path, description = "Id of the request, such as request-1")
    ),
    request_body(content = InputAnswer, example = json!({"accept": true})),
    responses((status = 202, description = "Answered", body = JobAnswer), JobProblems, BodyProblems)
)]
pub(crate) async fn answer(
    OnBehalfOfCaller(orchestrator): OnBehalfOfCaller,
    RequestPath { job, request }: RequestPath,
    base: BaseUrl,
    JsonBody(answer): JsonBody<InputAnswer>,
) -> Result<Response, Problem> {
    Ok(accepted(orchestrator.answer(job, &request, answer).await?, &base))
}
