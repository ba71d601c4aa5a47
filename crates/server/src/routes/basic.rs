//! The four basic calls: submit a job, get its status (two forms), download the result.

use axum::Json;
use axum::extract::{FromRequest, Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use job::{JobId, JobKind, JobView, NewJob};
use orchestrator::{Accepted, OrchestratorError, Repeated, StoreError, Submission};
use serde::Deserialize;
use utoipa::IntoParams;

use crate::access::{Caller, parse_job_id};
use crate::answers::{AcceptedAnswer, StatusAnswer};
use crate::clock::now_ms;
use crate::extract::{AppState, BaseUrl, JobBody, JobPath, Parameters, check_owner};
use crate::openapi::{JobProblems, QueryProblems, SubmitProblems};
use crate::problem::Problem;
use crate::routes::uploads::{self, JobForm, TaskText};
use crate::streams::{Description, send_file};

/// Submit a job
///
/// The body is a job as JSON with either `steps` or `task`, or a plain-text task as `text/plain`. To submit files, send
/// `multipart/form-data`: first a part `job` (JSON), `task` or `steps`, then the files, each named by its path in the
/// workspace. The server unpacks parts named `archive` (.zip, .tar, .tar.gz).
/// The server stores the job durably before it answers. Sending the same job again with the same `Idempotency-Key`
/// returns the first answer, with status 200.
#[utoipa::path(
    post, path = "/schedule", tag = "basic", operation_id = "schedule",
    params(("Idempotency-Key" = Option<String>, Header, min_length = 1, max_length = 255, pattern = "^[ -~]+$", description = "Makes it safe to retry the request")),
    request_body(
        content((NewJob = "application/json", example = json!({
            "steps": [
                {"tool": "shell", "command": "ls -la /app"},
                {"tool": "python", "code": "open(\"hello.txt\", \"w\").write(\"Hello!\")"},
                {"tool": "shell", "command": "cat hello.txt"}
            ]
        })), (TaskText = "text/plain", example = json!("Write a poem about caissons into poem.txt")),
            (JobForm = "multipart/form-data")),
    ),
    responses(
        (status = 202, description = "Accepted", body = AcceptedAnswer,
            headers(("Location" = String, description = "URL of the job's status"))),
        (status = 200, description = "Already accepted with the same idempotency key", body = AcceptedAnswer),
        SubmitProblems
    )
)]
pub(crate) async fn schedule(State(state): State<AppState>, request: Request) -> Result<Response, Problem> {
    accept(&state, request).await
}

/// Submit a job (same as /schedule)
#[utoipa::path(
    post, path = "/submit", tag = "basic", operation_id = "submit",
    params(("Idempotency-Key" = Option<String>, Header, min_length = 1, max_length = 255, pattern = "^[ -~]+$", description = "Makes it safe to retry the request")),
    request_body(
        content((NewJob = "application/json", example = json!({"task": "Write a poem about caissons into poem.txt"})),
            (TaskText = "text/plain", example = json!("Write a poem about caissons into poem.txt")),
            (JobForm = "multipart/form-data")),
    ),
    responses(
        (status = 202, description = "Accepted", body = AcceptedAnswer,
            headers(("Location" = String, description = "URL of the job's status"))),
        (status = 200, description = "Already accepted with the same idempotency key", body = AcceptedAnswer),
        SubmitProblems
    )
)]
pub(crate) async fn submit(State(state): State<AppState>, request: Request) -> Result<Response, Problem> {
    accept(&state, request).await
}

/// Submits a job to the orchestrator and tells the caller where to find it.
pub(crate) async fn accept(state: &AppState, request: Request) -> Result<Response, Problem> {
    let idempotency_key = idempotency_key(request.headers())?;
    let submitter = request.extensions().get::<Caller>().and_then(Caller::submitter);
    let taken = if uploads::is_multipart(request.headers()) {
        uploads::submit_form(state, request, idempotency_key, submitter).await?
    } else {
        let JobBody(job) = JobBody::from_request(request, state).await?;
        let submission = Submission { job, idempotency_key, submitter, ..Submission::default() };
        state.orchestrator.submit(submission).await?
    };
    Ok(accepted(taken))
}

/// The response that tells the caller where to find a job.
pub(crate) fn accepted(accepted: Accepted) -> Response {
    let status = match accepted.repeated {
        Repeated::No => StatusCode::ACCEPTED,
        Repeated::Yes => StatusCode::OK,
    };
    let answer = AcceptedAnswer::new(accepted);
    let location = HeaderValue::try_from(&answer.status_url).ok();
    let mut response = (status, Json(answer)).into_response();
    if let Some(location) = location {
        response.headers_mut().insert(header::LOCATION, location);
    }
    response
}

/// Loads a job. A bare sandbox counts as not found.
pub(crate) async fn job_of(state: &AppState, id: JobId) -> Result<JobView, Problem> {
    let view = state.orchestrator.job(id).await?;
    match view.kind {
        JobKind::Job => Ok(view),
        JobKind::Sandbox => Err(OrchestratorError::Store(StoreError::NoJob(id)).into()),
    }
}

fn idempotency_key(headers: &HeaderMap) -> Result<Option<String>, Problem> {
    let Some(value) = headers.get("idempotency-key") else { return Ok(None) };
    match value.to_str() {
        // A tab is allowed in headers, but it is not printable.
        Ok(key) if (1..=255).contains(&key.len()) && !key.contains('\t') => Ok(Some(key.to_owned())),
        _ => {
            let detail = "the Idempotency-Key header must have 1 to 255 printable ASCII characters";
            Err(Problem::bad_request("bad_idempotency_key", detail))
        }
    }
}

/// Get the status of a job
#[utoipa::path(
    get, path = "/status/{id}", tag = "basic", operation_id = "status",
    params(("id" = JobId, Path, description = "The job")),
    responses((status = 200, description = "The status", body = StatusAnswer), JobProblems)
)]
pub(crate) async fn status(
    State(state): State<AppState>,
    JobPath(id): JobPath,
    base: BaseUrl,
) -> Result<Json<StatusAnswer>, Problem> {
    let view = job_of(&state, id).await?;
    Ok(Json(StatusAnswer::new(view, &base, now_ms())))
}

/// Names a job in a query.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct StatusQuery {
    /// The job.
    #[param(value_type = Option<JobId>)]
    task_id: Option<String>,
    /// The same.
    #[param(value_type = Option<JobId>)]
    job_id: Option<String>,
}

/// Get the status of a job, with the id in the query
#[utoipa::path(
    get, path = "/status", tag = "basic", operation_id = "status_by_query",
    params(StatusQuery),
    responses((status = 200, description = "The status", body = StatusAnswer), JobProblems, QueryProblems)
)]
pub(crate) async fn status_by_query(
    State(state): State<AppState>,
    Parameters(query): Parameters<StatusQuery>,
    caller: Caller,
    base: BaseUrl,
) -> Result<Json<StatusAnswer>, Problem> {
    let id = query.task_id.or(query.job_id).ok_or_else(|| {
        Problem::bad_request("bad_job_id", "missing job id; use /status?task_id=<id> or /status/<id>")
    })?;
    let id = parse_job_id(&id)?;
    check_owner(&state.orchestrator, Some(&caller), id).await?;
    let view = job_of(&state, id).await?;
    Ok(Json(StatusAnswer::new(view, &base, now_ms())))
}

/// Download the result of a job
///
/// A zip of the workspace at the end of the job, without `.caisson/`. The download `manifest.json` lists its files with their SHA-256.
/// `left_out` in it lists what the zip omits and why: pipes, sockets, devices, and symbolic links that are absolute or leave the workspace.
/// `Range` resumes a download; the `ETag` is the SHA-256 of the file.
#[utoipa::path(
    get, path = "/jobs/{id}/output.zip", tag = "basic", operation_id = "output_zip",
    params(
        ("id" = JobId, Path, description = "The job"),
        ("Range" = Option<String>, Header, description = "A byte range, such as `bytes=1000-`"),
    ),
    responses(
        (status = 200, description = "The whole zip", body = String, content_type = "application/zip"),
        (status = 206, description = "The requested range", body = String, content_type = "application/zip"),
        (status = 304, description = "Not changed since the `ETag` in `If-None-Match`"),
        JobProblems
    )
)]
pub(crate) async fn output_zip(
    State(state): State<AppState>,
    JobPath(id): JobPath,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let (artifact, path) = state.orchestrator.artifact(id).await?;
    let description = Description {
        media_type: "application/zip",
        attachment_name: Some("output.zip"),
        tag: Some(&artifact.sha256),
    };
    send_file(&path, description, &headers).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idempotency_key_is_short_and_printable() {
        let key = |value: HeaderValue| {
            let mut headers = HeaderMap::new();
            headers.insert("idempotency-key", value);
            idempotency_key(&headers)
        };
        assert_eq!(idempotency_key(&HeaderMap::new()).unwrap(), None);
        assert_eq!(key(HeaderValue::from_static("abc 1")).unwrap().as_deref(), Some("abc 1"));
        for bad in [b"".as_slice(), b"\xff", b"a\tb"].map(|bytes| HeaderValue::from_bytes(bytes).unwrap()) {
            assert_eq!(key(bad).unwrap_err().code(), "bad_idempotency_key");
        }
        assert!(key(HeaderValue::try_from("x".repeat(256)).unwrap()).is_err());
    }
}
