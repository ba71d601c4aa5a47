//! The demo: a recorded agent run, for a server without a model.

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use job::NewJob;
use orchestrator::Submission;

use crate::access::Caller;
use crate::answers::AcceptedAnswer;
use crate::extract::AppState;
use crate::openapi::QueueProblems;
use crate::problem::Problem;
use crate::routes::basic::accepted;

/// Start the demo
///
/// A job with recorded model output, marked as such; everything else is real. Same as `caisson demo`. This server plays the
/// recording; after a restart of the server such a job waits for a model.
#[utoipa::path(
    post, path = "/v1/demo", tag = "jobs", operation_id = "start_demo",
    responses(
        (status = 202, description = "The job", body = AcceptedAnswer,
            headers(("Location" = String, description = "URL of the job's status"))),
        (status = 503, description = "`demo_unavailable`: this server cannot play the recording", body = crate::problem::ProblemAnswer<'_>, content_type = "application/problem+json"),
        QueueProblems
    )
)]
pub(crate) async fn start(State(state): State<AppState>, caller: Caller) -> Result<Response, Problem> {
    let unavailable = |why: String| Problem::new(StatusCode::SERVICE_UNAVAILABLE, "demo_unavailable", why);
    let written = state.host.demo.get().await.map_err(unavailable)?;
    let job: NewJob = serde_json::from_value(written).map_err(|error| unavailable(error.to_string()))?;
    if let Some(model) = &job.model {
        state.orchestrator.add_recording(model);
    }
    let submission = Submission { job, submitter: caller.submitter(), ..Submission::default() };
    Ok(accepted(state.orchestrator.submit(submission).await?))
}
