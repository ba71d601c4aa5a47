//! Language models.

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use orchestrator::ModelSurvey;

use crate::extract::AppState;
use crate::problem::Problem;

/// The `User-Agent` prefix of a Caisson server that looks for model servers.
const PROBE_USER_AGENT: &str = "caisson-model/";

/// The models of this server
///
/// Which one agents use where a job names no other, what servers and providers offer, and what it costs. Holds no key.
/// Everybody is asked anew at most every ten seconds.
#[utoipa::path(
    get, path = "/v1/models", tag = "jobs", operation_id = "list_models",
    responses((status = 200, description = "What there is", body = ModelSurvey))
)]
pub(crate) async fn list(State(state): State<AppState>, headers: HeaderMap) -> Result<Response, Problem> {
    // A Caisson server that looks for local model servers must not make another one, or itself, do the same.
    let agent = headers.get(header::USER_AGENT).and_then(|value| value.to_str().ok());
    if agent.is_some_and(|agent| agent.starts_with(PROBE_USER_AGENT)) {
        return Err(Problem::new(StatusCode::NOT_FOUND, "no_model_server", "this is no model server"));
    }
    Ok(Json(&*state.orchestrator.models().await?).into_response())
}
