//! Actions on a running job: message, pause, resume, take over, hand back, answer.

use axum::Json;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use orchestrator::{
    Budget, Handback, JobId, JobView, Message, PersonAnswer, PersonRequest, TakenOver, Takeover,
};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::access::takeover_gate::{self, TakeoverGate};
use crate::answers::JobAnswer;
use crate::clock::now_ms;
use crate::extract::{AppState, BaseUrl, JobPath, JsonBody, OnBehalfOfCaller, OptionalBody, RequestPath};
use crate::guard::ClientInfo;
use crate::openapi::{BodyProblems, JobProblems, StateProblems};
use crate::problem::Problem;

fn accepted(view: JobView, base: &BaseUrl) -> Response {
    (StatusCode::ACCEPTED, Json(JobAnswer::new(view, base, now_ms()))).into_response()
}

/// Say something to the agent
///
/// It reads the message in its next turn.
#[utoipa::path(
    post, path = "/v1/jobs/{id}/message", tag = "jobs", operation_id = "message_job",
    params(("id" = JobId, Path, description = "The job")),
    request_body(content = Message, example = json!({"text": "Use SQLite instead of a file."})),
    responses((status = 202, description = "It will be read", body = JobAnswer), JobProblems, BodyProblems, StateProblems)
)]
pub(crate) async fn message(
    OnBehalfOfCaller(orchestrator): OnBehalfOfCaller,
    JobPath(id): JobPath,
    base: BaseUrl,
    JsonBody(message): JsonBody<Message>,
) -> Result<Response, Problem> {
    Ok(accepted(orchestrator.message(id, message).await?, &base))
}

/// Let a job wait
///
/// It takes effect between two calls; what runs is not stopped. The sandbox stays.
#[utoipa::path(
    post, path = "/v1/jobs/{id}/pause", tag = "jobs", operation_id = "pause_job",
    params(("id" = JobId, Path, description = "The job")),
    responses((status = 202, description = "It will wait", body = JobAnswer), JobProblems, StateProblems)
)]
pub(crate) async fn pause(
    OnBehalfOfCaller(orchestrator): OnBehalfOfCaller,
    JobPath(id): JobPath,
    base: BaseUrl,
) -> Result<Response, Problem> {
    Ok(accepted(orchestrator.pause(id).await?, &base))
}

/// How a job goes on.
#[derive(Debug, Default, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct ResumeRequest {
    /// What it may spend from now on, in all; what is left out stays.
    #[serde(skip_serializing_if = "Option::is_none")]
    budget: Option<Budget>,
}

/// Let a job go on
///
/// Also one that has reached its budget: give it a larger one.
#[utoipa::path(
    post, path = "/v1/jobs/{id}/resume", tag = "jobs", operation_id = "resume_job",
    params(("id" = JobId, Path, description = "The job")),
    request_body(content = Option<ResumeRequest>, example = json!({"budget": {"turns": 400}})),
    responses((status = 202, description = "It will go on", body = JobAnswer), JobProblems, BodyProblems, StateProblems)
)]
pub(crate) async fn resume(
    OnBehalfOfCaller(orchestrator): OnBehalfOfCaller,
    JobPath(id): JobPath,
    base: BaseUrl,
    OptionalBody(request): OptionalBody<ResumeRequest>,
) -> Result<Response, Problem> {
    Ok(accepted(orchestrator.resume(id, request.budget).await?, &base))
}

/// A sandbox that was taken over.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct TakeoverAnswer {
    /// The job.
    #[serde(flatten)]
    job: JobAnswer,
    /// What the holder's clients show, as header `X-Caisson-Takeover`, cookie `caisson-takeover` or query parameter
    /// `takeover`. It is told once.
    token: String,
}

/// Take the sandbox over
///
/// The agent waits from its next call on, until it is handed back. Only one person at a time, who alone may send
/// something: commands, code, files, the terminal, the desktop, the notebook. Everybody else is refused with 409 and
/// code `taken_over`, and may watch. The holder's clients show the `token` of the answer; browsers have it as a cookie
/// already.
#[utoipa::path(
    post, path = "/v1/jobs/{id}/takeover", tag = "jobs", operation_id = "take_over_job",
    params(("id" = JobId, Path, description = "The job")),
    request_body(content = Option<Takeover>, example = json!({"by": "Ada"})),
    responses(
        (status = 202, description = "The agent will wait", body = TakeoverAnswer),
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

/// Hand the sandbox back
///
/// The agent is told which files have changed and which commands were run, and goes on. The holder does this; with
/// `force` anybody, for a holder who is gone.
#[utoipa::path(
    post, path = "/v1/jobs/{id}/handback", tag = "jobs", operation_id = "hand_back_job",
    params(("id" = JobId, Path, description = "The job")),
    request_body(content = Option<Handback>, example = json!({"force": false})),
    responses(
        (status = 202, description = "The agent will go on", body = JobAnswer),
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
    requests: Vec<PersonRequest>,
}

/// What waits for a person
///
/// Questions, plans, commands and connections, in one list.
#[utoipa::path(
    get, path = "/v1/jobs/{id}/requests", tag = "jobs", operation_id = "job_requests",
    params(("id" = JobId, Path, description = "The job")),
    responses((status = 200, description = "What waits", body = RequestListAnswer), JobProblems)
)]
pub(crate) async fn requests(
    State(state): State<AppState>,
    JobPath(id): JobPath,
) -> Result<Json<RequestListAnswer>, Problem> {
    Ok(Json(RequestListAnswer { requests: state.orchestrator.requests(id).await? }))
}

/// Answer what waits for a person
///
/// A question takes `text`; a command `accept`; a plan `accept`, or the edited `plan`; a connection (kind `egress`)
/// `accept`, and with it `scope`: `once`, or for the `rest` of the job.
#[utoipa::path(
    post, path = "/v1/jobs/{id}/requests/{request}", tag = "jobs", operation_id = "answer_request",
    params(
        ("id" = JobId, Path, description = "The job"),
        ("request" = String, Path, description = "The request, such as request-1")
    ),
    request_body(content = PersonAnswer, example = json!({"accept": true})),
    responses((status = 202, description = "The job goes on", body = JobAnswer), JobProblems, BodyProblems)
)]
pub(crate) async fn answer(
    OnBehalfOfCaller(orchestrator): OnBehalfOfCaller,
    RequestPath { job, request }: RequestPath,
    base: BaseUrl,
    JsonBody(answer): JsonBody<PersonAnswer>,
) -> Result<Response, Problem> {
    Ok(accepted(orchestrator.answer(job, &request, answer).await?, &base))
}
