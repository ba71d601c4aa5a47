//! The prompt of a job's model.

use axum::Json;
use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use job::JobId;
use orchestrator::ContextView;
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
    /// After this event, such as `57` or `e57`; default the newest.
    #[param(pattern = "^e?[0-9]{1,18}$")]
    at: Option<String>,
    /// `json` or plain `text`; default `json`.
    #[param(pattern = "^(json|text)$")]
    format: Option<String>,
}

/// Get the model's context
///
/// The prompt after an event, computed from the log: each part with its tokens, the events that it covers and, for a
/// summary, the events that it cites. At a `turn_started` event it is the prompt that was sent (`asked`), at any other
/// event the prompt that would be sent.
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
            let detail = format!("`{other}` is not a format; expected json or text");
            Err(Problem::bad_request("invalid_query", detail).with_field("format"))
        }
    }
}

/// Parses `57` and `e57`.
fn event(text: &str) -> Result<u64, Problem> {
    let digits = text.strip_prefix('e').unwrap_or(text);
    let is_number = (1..=18).contains(&digits.len()) && digits.bytes().all(|byte| byte.is_ascii_digit());
    digits.parse().ok().filter(|_| is_number).ok_or_else(|| {
        let detail = format!("`{text}` is not an event; use a number such as 57 or e57");
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
