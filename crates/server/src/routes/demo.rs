//! The demo: a recorded agent run, for a server without a model.

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use orchestrator::{NewJob, Submission};

use crate::access::Caller;
use crate::answers::AcceptedAnswer;
use crate::extract::AppState;
use crate::openapi::QueueProblems;
use crate::problem::Problem;
use crate::routes::basic::accepted;

/// Start the demonstration
///
/// A job whose model is a recording, marked as such; everything else is real. The same as `caisson demo`. The recording
/// is played by this server: after its restart such a job waits for a model.
#[utoipa::path(
    post, path = "/v1/demo", tag = "jobs", operation_id = "start_demo",
    responses(
        (status = 202, description = "The job", body = AcceptedAnswer,
            headers(("Location" = String, description = "Where to ask how it goes"))),
        (status = 503, description = "`demo_unavailable`: the recording cannot be played", body = crate::problem::ProblemAnswer<'_>, content_type = "application/problem+json"),
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
