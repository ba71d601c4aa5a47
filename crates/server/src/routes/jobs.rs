//! Jobs: create, list, get, cancel and delete; their log and artifacts.

use axum::Json;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use job::{JobFilter, JobId, JobKind, JobPage, JobState, JobView, NewJob};
use orchestrator::{Accepted, Repeated};
use serde::Deserialize;
use utoipa::IntoParams;

use crate::access::{Caller, parse_job_id};
use crate::answers::{
    AcceptedAnswer, ArtifactAnswer, ArtifactListAnswer, DownloadAnswer, JobAnswer, JobListAnswer, JobSummary,
    STATES,
};
use crate::clock::now_ms;
use crate::extract::{AppState, BaseUrl, JobPath, OnBehalfOfCaller, Parameters};
use crate::openapi::{JobProblems, QueryProblems, QueueProblems, StateProblems, SubmitProblems};
use crate::problem::Problem;
use crate::routes::basic::{accept, accepted, job_of};
use crate::routes::uploads::{JobForm, TaskText};
use crate::streams::{Description, send_file, set_content_headers};

const MAX_PAGE: usize = 1000;
const DEFAULT_PAGE: usize = 100;
/// How many pages of jobs a search scans before it returns what it has found.
const SEARCHED_PAGES: usize = 20;

/// Create a job
///
/// To submit files, send `multipart/form-data`; see `/schedule`. With `"start": false` the job stays a draft that accepts files
/// with `PUT /v1/jobs/{id}/files/...` and starts with `POST /v1/jobs/{id}/start`.
///
/// Sending the same job again with the same `Idempotency-Key` returns the first answer, with status 200. The server refuses
/// a different job with the same key.
#[utoipa::path(
    post, path = "/v1/jobs", tag = "jobs", operation_id = "create_job",
    params(("Idempotency-Key" = Option<String>, Header, min_length = 1, max_length = 255, pattern = "^[ -~]+$", description = "Makes it safe to retry the request")),
    request_body(
        content((NewJob = "application/json", example = json!({
            "name": "first",
            "steps": [{"tool": "shell", "command": "uname -a > kernel.txt", "timeout_s": 10}],
            "limits": {"memory_mib": 256, "wall_clock_s": 60},
            "labels": {"project": "demo"}
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
pub(crate) async fn create(State(state): State<AppState>, request: Request) -> Result<Response, Problem> {
    accept(&state, request).await
}

/// Which jobs to list.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct ListQuery {
    /// Only jobs in these states, comma-separated, such as `queued,running`.
    #[param(
        pattern = "^ *(?:draft|queued|starting|running|paused|collecting|complete|failed|cancelled)?(?: *, *(?:draft|queued|starting|running|paused|collecting|complete|failed|cancelled)?)* *$"
    )]
    state: Option<String>,
    /// Only jobs with this label, written `key:value`.
    #[param(pattern = r"^[^:]+:[\s\S]*$")]
    label: Option<String>,
    /// Only jobs with this text in their name, task, reason, labels or id, ignoring case.
    search: Option<String>,
    /// Maximum number of jobs; default 100.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<usize>,
    /// Only jobs older than this one: `next` of the previous page.
    #[param(value_type = Option<JobId>)]
    before: Option<String>,
}

impl ListQuery {
    fn search(&self) -> Option<String> {
        self.search.as_deref().map(str::trim).filter(|text| !text.is_empty()).map(str::to_lowercase)
    }

    fn into_filter(self) -> Result<JobFilter, Problem> {
        Ok(JobFilter {
            kind: JobKind::Job,
            states: self.state.as_deref().map(parse_states).transpose()?.unwrap_or_default(),
            label: parse_label(self.label)?,
            submitter: None,
            before: self.before.as_deref().map(parse_job_id).transpose()?,
            limit: parse_limit(self.limit)?,
        })
    }
}

/// Validates a page size.
pub(crate) fn parse_limit(limit: Option<usize>) -> Result<usize, Problem> {
    match limit.unwrap_or(DEFAULT_PAGE) {
        limit @ 1..=MAX_PAGE => Ok(limit),
        limit => Err(refuse("limit", format!("{limit} is not between 1 and {MAX_PAGE}"))),
    }
}

/// Parses `key:value`.
pub(crate) fn parse_label(label: Option<String>) -> Result<Option<(String, String)>, Problem> {
    let Some(text) = label else { return Ok(None) };
    match text.split_once(':') {
        Some((key, value)) if !key.is_empty() => Ok(Some((key.to_owned(), value.to_owned()))),
        _ => Err(refuse("label", format!("`{text}` is not valid; expected key:value"))),
    }
}

fn parse_states(text: &str) -> Result<Vec<JobState>, Problem> {
    let parse = |name: &str| {
        STATES.iter().find(|(_, known)| *known == name).map(|(state, _)| *state).ok_or_else(|| {
            let known: Vec<&str> = STATES.iter().map(|(_, name)| *name).collect();
            refuse("state", format!("`{name}` is not a state; expected one of {}", known.join(", ")))
        })
    };
    text.split(',').map(|name| name.trim_matches(' ')).filter(|name| !name.is_empty()).map(parse).collect()
}

fn refuse(parameter: &str, detail: String) -> Problem {
    Problem::bad_request("invalid_query", detail).with_field(parameter)
}

/// List jobs
///
/// Newest first. A search may return a short page. While `next` is not null there are more jobs: pass it as `before`.
#[utoipa::path(
    get, path = "/v1/jobs", tag = "jobs", operation_id = "list_jobs",
    params(ListQuery),
    responses((status = 200, description = "A page of jobs", body = JobListAnswer), QueryProblems)
)]
pub(crate) async fn list(
    State(state): State<AppState>,
    Parameters(query): Parameters<ListQuery>,
    caller: Caller,
) -> Result<Json<JobListAnswer>, Problem> {
    let search = query.search();
    let filter = JobFilter { submitter: caller.restricted_to(), ..query.into_filter()? };
    let page = match &search {
        Some(text) => find(&state, filter, text).await?,
        None => state.orchestrator.jobs(filter).await?,
    };
    let now = now_ms();
    let jobs = page.jobs.into_iter().map(|view| JobSummary::new(view, now)).collect();
    Ok(Json(JobListAnswer { jobs, next: page.next }))
}

/// The next page of jobs that contain a text. It may be short or even empty without being the last.
async fn find(state: &AppState, filter: JobFilter, text: &str) -> Result<JobPage, Problem> {
    let mut found = Vec::new();
    let mut before = filter.before;
    for _ in 0..SEARCHED_PAGES {
        let asked = JobFilter { before, limit: MAX_PAGE, ..filter.clone() };
        let page = state.orchestrator.jobs(asked).await?;
        for view in page.jobs {
            if holds(&view, text) {
                let id = view.job_id;
                found.push(view);
                if found.len() == filter.limit {
                    return Ok(JobPage { jobs: found, next: Some(id) });
                }
            }
        }
        before = page.next;
        if before.is_none() {
            break;
        }
    }
    Ok(JobPage { jobs: found, next: before })
}

/// Whether a job contains a text, which must be in lowercase.
fn holds(view: &JobView, text: &str) -> bool {
    let has = |part: &str| part.to_lowercase().contains(text);
    let parts = [&view.name, &view.task, &view.reason];
    parts.into_iter().flatten().any(|part| has(part))
        || view.labels.iter().any(|(key, value)| has(key) || has(value))
        || view.job_id.to_string().contains(text)
}

/// Get a job
#[utoipa::path(
    get, path = "/v1/jobs/{id}", tag = "jobs", operation_id = "get_job",
    params(("id" = JobId, Path, description = "The job")),
    responses((status = 200, description = "The job", body = JobAnswer), JobProblems)
)]
pub(crate) async fn get(
    State(state): State<AppState>,
    JobPath(id): JobPath,
    base: BaseUrl,
) -> Result<Json<JobAnswer>, Problem> {
    let view = job_of(&state, id).await?;
    let files = state.orchestrator.result_files(&view).await?;
    let downloads = files.into_iter().map(|file| DownloadAnswer::new(id, file)).collect();
    Ok(Json(JobAnswer::new(view, &base, now_ms()).with_downloads(downloads)))
}

/// Delete a job
///
/// Deletes its log, its result and all other data. Only a job that has ended can be deleted.
#[utoipa::path(
    delete, path = "/v1/jobs/{id}", tag = "jobs", operation_id = "delete_job",
    params(("id" = JobId, Path, description = "The job")),
    responses((status = 204, description = "Deleted"), JobProblems, StateProblems)
)]
pub(crate) async fn delete(
    OnBehalfOfCaller(orchestrator): OnBehalfOfCaller,
    JobPath(id): JobPath,
) -> Result<StatusCode, Problem> {
    orchestrator.delete(id).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Start a draft
///
/// A job submitted with `"start": false` accepts files until it is started.
#[utoipa::path(
    post, path = "/v1/jobs/{id}/start", tag = "jobs", operation_id = "start_job",
    params(("id" = JobId, Path, description = "The job")),
    responses(
        (status = 202, description = "The job is queued", body = AcceptedAnswer),
        (status = 422, description = "`invalid_field`: the server has API keys now, and jobs may not use this model URL", body = crate::problem::ProblemAnswer<'_>, content_type = "application/problem+json"),
        JobProblems,
        StateProblems,
        QueueProblems
    )
)]
pub(crate) async fn start(
    OnBehalfOfCaller(orchestrator): OnBehalfOfCaller,
    JobPath(id): JobPath,
) -> Result<Response, Problem> {
    let view = orchestrator.start_draft(id).await?;
    Ok(accepted(Accepted { hint: view.hint(), view, repeated: Repeated::No }))
}

/// Retry a job
///
/// Creates a new job with the same steps or task and the same files. The old job does not change.
#[utoipa::path(
    post, path = "/v1/jobs/{id}/retry", tag = "jobs", operation_id = "retry_job",
    params(("id" = JobId, Path, description = "The job")),
    responses(
        (status = 202, description = "The new job", body = AcceptedAnswer,
            headers(("Location" = String, description = "URL of the job's status"))),
        (status = 422, description = "`invalid_field`: the server has API keys now, and jobs may not use this model URL", body = crate::problem::ProblemAnswer<'_>, content_type = "application/problem+json"),
        JobProblems,
        QueueProblems
    )
)]
pub(crate) async fn retry(
    State(state): State<AppState>,
    JobPath(id): JobPath,
    caller: Caller,
) -> Result<Response, Problem> {
    job_of(&state, id).await?;
    Ok(accepted(state.orchestrator.retry(id, caller.submitter()).await?))
}

/// Cancel a job
///
/// The server stores the request, ends the job soon and collects its files.
#[utoipa::path(
    post, path = "/v1/jobs/{id}/cancel", tag = "jobs", operation_id = "cancel_job",
    params(("id" = JobId, Path, description = "The job")),
    responses((status = 202, description = "The job is being cancelled", body = JobAnswer), JobProblems, StateProblems)
)]
pub(crate) async fn cancel(
    OnBehalfOfCaller(orchestrator): OnBehalfOfCaller,
    JobPath(id): JobPath,
    base: BaseUrl,
) -> Result<Response, Problem> {
    let view = orchestrator.cancel(id).await?;
    Ok((StatusCode::ACCEPTED, Json(JobAnswer::new(view, &base, now_ms()))).into_response())
}

/// Get the text log of a job
///
/// Everything that the job has printed so far.
#[utoipa::path(
    get, path = "/v1/jobs/{id}/log", tag = "jobs", operation_id = "job_log",
    params(("id" = JobId, Path, description = "The job")),
    responses((status = 200, description = "The log", body = String, content_type = "text/plain"), JobProblems)
)]
pub(crate) async fn log(
    State(state): State<AppState>,
    JobPath(id): JobPath,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let path = state.orchestrator.log(id).await?;
    let description =
        Description { media_type: "text/plain; charset=utf-8", attachment_name: None, tag: None };
    // A job that has not started has no log file yet.
    if tokio::fs::try_exists(&path).await.unwrap_or(false) {
        return send_file(&path, description, &headers).await;
    }
    let mut response = Response::default();
    set_content_headers(response.headers_mut(), &description);
    response.headers_mut().insert(header::CONTENT_LENGTH, HeaderValue::from(0));
    Ok(response)
}

/// List the artifacts of a job
#[utoipa::path(
    get, path = "/v1/jobs/{id}/artifacts", tag = "jobs", operation_id = "job_artifacts",
    params(("id" = JobId, Path, description = "The job")),
    responses((status = 200, description = "The artifacts", body = ArtifactListAnswer), JobProblems)
)]
pub(crate) async fn artifacts(
    State(state): State<AppState>,
    JobPath(id): JobPath,
) -> Result<Json<ArtifactListAnswer>, Problem> {
    let view = state.orchestrator.job(id).await?;
    let artifacts = view.artifact.into_iter().map(|artifact| ArtifactAnswer::new(id, artifact)).collect();
    Ok(Json(ArtifactListAnswer { artifacts }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filter(query: &str) -> Result<JobFilter, Problem> {
        let uri = format!("/v1/jobs?{query}").parse().unwrap();
        let query = axum::extract::Query::<ListQuery>::try_from_uri(&uri)
            .map_err(|error| Problem::bad_request("invalid_query", error.body_text()))?;
        query.0.into_filter()
    }

    #[test]
    fn filters_are_read() {
        let read = filter("state=queued,running&label=project:a:b&limit=5").unwrap();
        assert_eq!(read.states, [JobState::Queued, JobState::Running]);
        assert_eq!(read.label, Some(("project".into(), "a:b".into())));
        assert_eq!(read.limit, 5);
        let read = filter("").unwrap();
        assert_eq!((read.states.len(), read.limit, read.before), (0, 100, None));
    }

    #[test]
    fn invalid_filters_are_rejected_by_name() {
        let table = [
            ("limit=0", "invalid_query"),
            ("limit=1001", "invalid_query"),
            ("limit=x", "invalid_query"),
            ("state=flying", "invalid_query"),
            ("label=nothing", "invalid_query"),
            ("colour=red", "invalid_query"),
            ("before=x", "bad_job_id"),
        ];
        for (query, code) in table {
            assert_eq!(filter(query).unwrap_err().code(), code, "{query}");
        }
        assert!(filter("colour=red").unwrap_err().detail().contains("colour"));
        assert!(filter("state=flying").unwrap_err().detail().contains("collecting"));
    }
}
