//! The jobs that a request names. They are parsed as the handlers parse them, after percent-decoding, so that the
//! check and the handler always mean the same job.

use axum::RequestExt;
use axum::extract::{MatchedPath, Query, RawPathParams, Request};
use axum::http::Uri;
use job::JobId;
use orchestrator::{OrchestratorError, StoreError};

use crate::problem::Problem;

/// Routes below these prefixes concern one job or sandbox.
const BELOW: [&str; 2] = ["/v1/jobs/{id}/", "/v1/sandboxes/{id}/"];

/// Routes with this prefix concern a bare sandbox.
const SANDBOX: &str = "/v1/sandboxes/{id}";

const EXAMPLE_ID: &str = "01930d5e-7b1a-7c3e-9f00-3a5b1c2d4e6f";

/// What a request is about. The access check stores it in the request for later layers.
#[derive(Debug, Clone)]
pub(crate) struct Subject {
    is_below_job: bool,
    is_sandbox: bool,
    jobs: Result<Vec<JobId>, Problem>,
}

impl Subject {
    /// Determines the subject of a routed request.
    pub(crate) async fn of(request: &mut Request) -> Self {
        let path = request.extensions().get::<MatchedPath>();
        let route = path.map_or("", MatchedPath::as_str);
        let is_below_job = BELOW.iter().any(|start| route.starts_with(start));
        let is_sandbox = route.starts_with(SANDBOX);
        let jobs = if route.split('/').any(|part| part == "{id}") {
            in_path(request).await.map(|job| vec![job])
        } else {
            Ok(in_query(request.uri()))
        };
        Self { is_below_job, is_sandbox, jobs }
    }

    /// All jobs that the request names. An error if the route requires a job and the request names none.
    pub(crate) fn jobs(&self) -> Result<&[JobId], Problem> {
        self.jobs.as_deref().map_err(Clone::clone)
    }

    /// The job, if the request names exactly one.
    pub(crate) fn job(&self) -> Option<JobId> {
        match self.jobs.as_deref() {
            Ok([job]) => Some(*job),
            _ => None,
        }
    }

    /// The error for a job or sandbox that does not exist for the caller.
    pub(crate) fn not_found(&self, id: JobId) -> OrchestratorError {
        if self.is_sandbox { OrchestratorError::NoSandbox(id) } else { StoreError::NoJob(id).into() }
    }

    /// Whether the route is below a job or sandbox.
    pub(crate) fn is_below_job(&self) -> bool {
        self.is_below_job
    }
}

/// Parses the id of a job or a sandbox.
pub(crate) fn parse_job_id(text: &str) -> Result<JobId, Problem> {
    text.parse().map_err(|_| {
        let detail = format!("`{}` is not an id; ids look like {EXAMPLE_ID}", text.escape_debug());
        Problem::bad_request("bad_job_id", detail)
    })
}

async fn in_path(request: &mut Request) -> Result<JobId, Problem> {
    let parts = request.extract_parts::<RawPathParams>().await.map_err(|error| {
        let detail = format!("the request path is not valid: {}", error.body_text());
        Problem::bad_request("invalid_path", detail)
    })?;
    let id = parts.iter().find(|(name, _)| *name == "id").map_or("", |(_, value)| value);
    parse_job_id(id)
}

/// A query that names two jobs is about both.
fn in_query(uri: &Uri) -> Vec<JobId> {
    let Ok(Query(pairs)) = Query::<Vec<(String, String)>>::try_from_uri(uri) else { return Vec::new() };
    let named = pairs.iter().filter(|(name, _)| matches!(name.as_str(), "task_id" | "job_id"));
    named.filter_map(|(_, text)| text.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use axum::Router;
    use axum::body::Body;
    use axum::middleware::{Next, from_fn};
    use axum::routing::get;
    use tower::ServiceExt;

    use super::*;

    const JOB: &str = EXAMPLE_ID;
    const OTHER: &str = "01930d5e-7b1a-7c3e-9f00-3a5b1c2d4e70";

    async fn subject(route: &str, uri: &str) -> Subject {
        let found = Arc::new(Mutex::new(None));
        let kept = Arc::clone(&found);
        let layer = from_fn(move |mut request: Request, next: Next| {
            let kept = Arc::clone(&kept);
            async move {
                let subject = Subject::of(&mut request).await;
                *kept.lock().unwrap() = Some(subject);
                next.run(request).await
            }
        });
        let router = Router::new().route(route, get(|| async {})).layer(layer);
        router.oneshot(Request::get(uri).body(Body::empty()).unwrap()).await.unwrap();
        found.lock().unwrap().take().unwrap()
    }

    #[test]
    fn invalid_id_error_contains_an_example() {
        for text in ["", "1", "../x", "not-a-uuid", "01930d5e-7b1a-7c3e-9f00"] {
            let problem = parse_job_id(text).unwrap_err();
            assert_eq!((problem.status().as_u16(), problem.code()), (400, "bad_job_id"), "{text}");
        }
        assert!(parse_job_id(EXAMPLE_ID).is_ok());
    }

    #[tokio::test]
    async fn percent_encoded_job_ids_are_recognised() {
        let job: JobId = JOB.parse().unwrap();
        let encoded: String = JOB.bytes().map(|byte| format!("%{byte:02X}")).collect();
        for id in [JOB.to_owned(), format!("%30{}", &JOB[1..]), encoded] {
            for (route, uri) in [
                ("/v1/jobs/{id}/files/{*path}", format!("/v1/jobs/{id}/files/a/b")),
                ("/jobs/{id}/output.zip", format!("/jobs/{id}/output.zip")),
                ("/status", format!("/status?task_id={id}")),
                ("/status", format!("/status?%74ask_id={id}")),
            ] {
                assert_eq!(subject(route, &uri).await.job(), Some(job), "{uri}");
            }
        }
    }

    #[tokio::test]
    async fn all_jobs_of_a_query_count_and_invalid_path_id_is_rejected() {
        let both = subject("/status", &format!("/status?job_id={JOB}&task_id={OTHER}")).await;
        assert_eq!(both.jobs().unwrap(), [JOB.parse().unwrap(), OTHER.parse().unwrap()]);
        assert_eq!(both.job(), None);
        assert!(subject("/v1/jobs", &format!("/v1/jobs?before={JOB}")).await.jobs().unwrap().is_empty());
        let none = subject("/v1/jobs/{id}", "/v1/jobs/nonsense").await;
        assert_eq!(none.jobs().unwrap_err().code(), "bad_job_id");
        let unreadable = subject("/v1/jobs/{id}", "/v1/jobs/%ff").await;
        assert_eq!(unreadable.jobs().unwrap_err().code(), "invalid_path");
    }

    #[tokio::test]
    async fn routes_below_a_job_are_recognised() {
        for (route, uri, below) in [
            ("/v1/jobs/{id}/files/{*path}", format!("/v1/jobs/{JOB}/files/a/b"), true),
            ("/v1/sandboxes/{id}/exec", format!("/v1/sandboxes/{JOB}/exec"), true),
            ("/v1/jobs/{id}", format!("/v1/jobs/{JOB}"), false),
        ] {
            assert_eq!(subject(route, &uri).await.is_below_job(), below, "{uri}");
        }
    }
}
