//! Language models: which there are, and the choice of the one that agents use.

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use orchestrator::{ChosenModel, ModelStatus, ModelTest, NewModelChoice};

use crate::extract::{AppState, JsonBody, OnBehalfOfCaller, OptionalBody};
use crate::openapi::{BodyProblems, ModelChoiceProblems};
use crate::problem::Problem;

/// The `User-Agent` prefix of a Caisson server that looks for model servers.
const PROBE_USER_AGENT: &str = "caisson-model/";

/// List models
///
/// The default model of agents with its origin, and the models of servers and providers with prices. Contains no API
/// keys. The server queries providers at most every ten seconds.
#[utoipa::path(
    get, path = "/v1/models", tag = "jobs", operation_id = "list_models",
    responses((status = 200, description = "The models", body = ModelStatus))
)]
pub(crate) async fn list(State(state): State<AppState>, headers: HeaderMap) -> Result<Response, Problem> {
    // A Caisson server that looks for local model servers must not make another one, or itself, do the same.
    let agent = headers.get(header::USER_AGENT).and_then(|value| value.to_str().ok());
    if agent.is_some_and(|agent| agent.starts_with(PROBE_USER_AGENT)) {
        return Err(Problem::new(StatusCode::NOT_FOUND, "no_model_server", "this is not a model server"));
    }
    Ok(Json(&*state.orchestrator.models().await?).into_response())
}

/// Choose the model of agents
///
/// Takes effect at once: jobs that wait for a model start, and running jobs keep theirs. The configuration file and
/// the environment have priority: while they name a model, the choice is refused. The key is stored in the data folder
/// in a file that only the server's user can read. It is never returned, and is not part of backups.
#[utoipa::path(
    put, path = "/v1/models/choice", tag = "operations", operation_id = "choose_model",
    request_body(content = NewModelChoice, example = json!({"provider": "anthropic", "model": "claude-sonnet-5", "key": "sk-..."})),
    responses((status = 200, description = "The choice, without its key", body = ChosenModel), BodyProblems, ModelChoiceProblems)
)]
pub(crate) async fn choose(
    OnBehalfOfCaller(orchestrator): OnBehalfOfCaller,
    JsonBody(new): JsonBody<NewModelChoice>,
) -> Result<Json<ChosenModel>, Problem> {
    Ok(Json(orchestrator.choose_model(new)?))
}

/// Remove the choice of a model
///
/// Also removes its stored key. Agents then use a local model server, if one is found.
#[utoipa::path(
    delete, path = "/v1/models/choice", tag = "operations", operation_id = "forget_model_choice",
    responses(
        (status = 204, description = "There is no choice (any more)"),
        (status = 503, description = "`store_unavailable`: the data folder cannot be written; `Retry-After` says when to try again", body = crate::problem::ProblemAnswer<'_>, content_type = "application/problem+json")
    )
)]
pub(crate) async fn forget(OnBehalfOfCaller(orchestrator): OnBehalfOfCaller) -> Result<StatusCode, Problem> {
    orchestrator.forget_model_choice()?;
    Ok(StatusCode::NO_CONTENT)
}

/// Test a model
///
/// Sends the model one tiny request, and waits at most 30 seconds for the answer. Without a body, tests the model in
/// use; with one, tests this choice without storing it.
#[utoipa::path(
    post, path = "/v1/models/test", tag = "operations", operation_id = "test_model",
    request_body(content = Option<NewModelChoice>, example = json!({"provider": "ollama", "model": "qwen3:8b"})),
    responses((status = 200, description = "Whether the model answered, or why it did not", body = ModelTest), BodyProblems, ModelChoiceProblems)
)]
pub(crate) async fn test_model(
    State(state): State<AppState>,
    OptionalBody(new): OptionalBody<NewModelChoice>,
) -> Result<Json<ModelTest>, Problem> {
    Ok(Json(state.orchestrator.test_model(new).await?))
}
