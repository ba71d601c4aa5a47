//! The prompt of a job's model.

use axum::Json;
use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use orchestrator::{ContextView, JobId};
use serde::Deserialize;
use utoipa::IntoParams;

use crate::extract::{AppState, JobPath, Parameters};
use crate::openapi::{JobProblems, QueryProblems};
use crate::problem::Problem;

/// Which prompt, and how.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct ContextQuery {
    /// After this event, such as `57` or `e57`; the newest when absent.
    #[param(pattern = "^e?[0-9]{1,18}$")]
    at: Option<String>,
    /// `json`, or `text` for people; `json` when absent.
    #[param(pattern = "^(json|text)$")]
    format: Option<String>,
}

/// What the model saw
///
/// The prompt after an event, computed from the log: each piece with its cost in tokens, the events that it stands for
/// and, for a summary, those that it cites. At the event `turn_started` it is what the model was asked with (`asked`), at
/// any other what it would be asked with.
#[utoipa::path(
    get, path = "/v1/jobs/{id}/context", tag = "jobs", operation_id = "job_context",
    params(("id" = JobId, Path, description = "The job"), ContextQuery),
    responses((status = 200, description = "The prompt", body = ContextView), JobProblems, QueryProblems)
)]
pub(crate) async fn context(
    State(state): State<AppState>,
    JobPath(id): JobPath,
    Parameters(query): Parameters<ContextQuery>,
) -> Result<Response, Problem> {
    let at = query.at.as_deref().map(event).transpose()?;
    match query.format.as_deref() {
        None | Some("json") => Ok(Json(state.orchestrator.context(id, at).await?).into_response()),
        Some("text") => {
            let text = state.orchestrator.context_text(id, at).await?;
            Ok(([(header::CONTENT_TYPE, "text/plain; charset=utf-8")], text).into_response())
        }
        Some(other) => {
            let detail = format!("`{other}` is not a format; known are json, text");
            Err(Problem::bad_request("invalid_query", detail).with_field("format"))
        }
    }
}

/// Parses `57` and `e57`.
fn event(text: &str) -> Result<u64, Problem> {
    text.trim().trim_start_matches('e').parse().map_err(|_| {
        let detail = format!("`{text}` is not an event: write a number such as 57 or e57");
        Problem::bad_request("invalid_query", detail).with_field("at")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn event_number_may_have_an_e_prefix() {
        assert_eq!((event("57").ok(), event("e57").ok()), (Some(57), Some(57)));
        assert!(event("seven").is_err() && event("").is_err() && event("-1").is_err());
    }
}
