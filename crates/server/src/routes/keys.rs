//! Keys: create, list and revoke. Also the login with a key, and the access log.

use axum::Json;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use job::{Actor, Key, NewKey, Role};
use orchestrator::Token;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::access::{Caller, LoginOutcome, SESSION_LIFETIME, ended_cookie, session_cookie};
use crate::access_log::AccessLogEntry;
use crate::clock::timestamp;
use crate::extract::{AppState, JsonBody, Parameters};
use crate::guard::ClientInfo;
use crate::openapi::{BodyProblems, QueryProblems};
use crate::problem::Problem;

/// A key as the server lists it.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct KeyAnswer {
    /// Names it.
    id: String,
    /// The name of the owner.
    name: String,
    /// The role.
    role: Role,
    /// The limits.
    limits: job::KeyLimits,
    /// When the key was created.
    #[schema(format = DateTime)]
    created_at: String,
}

impl From<&Key> for KeyAnswer {
    fn from(key: &Key) -> Self {
        Self {
            id: key.id.to_string(),
            name: key.name.clone(),
            role: key.role,
            limits: key.limits,
            created_at: timestamp(key.created_ms),
        }
    }
}

/// A new key with its secret.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct NewKeyAnswer {
    #[serde(flatten)]
    key: KeyAnswer,
    /// The secret, for `Authorization: Bearer ...`. It is returned only once.
    secret: String,
}

/// All keys.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct KeyListAnswer {
    /// By name.
    keys: Vec<KeyAnswer>,
}

/// Create an API key
///
/// The server requires API keys as soon as the first one exists, so the first key must have the role `admin`.
#[utoipa::path(
    post, path = "/v1/keys", tag = "operations", operation_id = "add_key",
    request_body(content = NewKey, example = json!({"name": "ada", "role": "submitter", "limits": {"max_running": 4}})),
    responses((status = 201, description = "The key; the secret is returned only once", body = NewKeyAnswer), BodyProblems)
)]
pub(crate) async fn add(
    State(state): State<AppState>,
    JsonBody(new): JsonBody<NewKey>,
) -> Result<Response, Problem> {
    let (key, token) = state.orchestrator.add_key(new).await?;
    let answer = NewKeyAnswer { key: key.as_ref().into(), secret: token.reveal().to_owned() };
    Ok((StatusCode::CREATED, Json(answer)).into_response())
}

/// List API keys
#[utoipa::path(
    get, path = "/v1/keys", tag = "operations", operation_id = "list_keys",
    responses((status = 200, description = "All keys, without their secrets", body = KeyListAnswer))
)]
pub(crate) async fn list(State(state): State<AppState>) -> Json<KeyListAnswer> {
    let keys = state.orchestrator.keys().iter().map(|key| KeyAnswer::from(key.as_ref())).collect();
    Json(KeyListAnswer { keys })
}

/// Revoke an API key
///
/// The key and all its logins end at once. Jobs submitted with it keep running.
#[utoipa::path(
    delete, path = "/v1/keys/{name}", tag = "operations", operation_id = "revoke_key",
    params(("name" = String, Path, description = "The name or the id of the key")),
    responses(
        (status = 204, description = "Revoked"),
        (status = 404, description = "`key_not_found`"),
        (status = 422, description = "`invalid_field`: it is the last admin key")
    )
)]
pub(crate) async fn revoke(
    State(state): State<AppState>,
    Path(name): Path<String>,
) -> Result<StatusCode, Problem> {
    state.orchestrator.revoke_key(&name).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// A key to log in with.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Login {
    /// The secret of the key.
    #[schema(example = "caisson_0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef")]
    key: String,
}

/// Who is logged in.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct SessionAnswer {
    /// Whether this server requires API keys.
    needs_key: bool,
    /// The name of the caller's key.
    name: Option<String>,
    /// The caller's permissions; empty if a key is required and none was sent.
    role: Option<Role>,
    /// Name of the OpenID Connect provider, which `/v1/login` leads to.
    login_with: Option<String>,
    /// Base domain for job previews, if configured.
    #[serde(skip_serializing_if = "Option::is_none")]
    job_domain: Option<String>,
}

/// Get the current caller
#[utoipa::path(
    get, path = "/v1/session", tag = "operations", operation_id = "session",
    responses((status = 200, description = "Who the caller is", body = SessionAnswer))
)]
pub(crate) async fn session(State(state): State<AppState>, caller: Caller) -> Json<SessionAnswer> {
    Json(SessionAnswer {
        needs_key: state.orchestrator.requires_authentication(),
        name: caller.name().map(ToOwned::to_owned),
        role: caller.role(),
        login_with: state.access.oidc().map(|oidc| oidc.name().to_owned()),
        job_domain: state.settings.job_domain.clone(),
    })
}

/// Log in
///
/// For browsers: sets a session cookie that refers to the key and does not contain it.
#[utoipa::path(
    post, path = "/v1/session", tag = "operations", operation_id = "log_in",
    request_body(content = Login),
    responses(
        (status = 200, description = "Logged in", body = SessionAnswer,
            headers(("Set-Cookie" = String, description = "The session"))),
        (status = 401, description = "`key_unknown`"),
        BodyProblems
    )
)]
pub(crate) async fn log_in(
    State(state): State<AppState>,
    client_info: ClientInfo,
    JsonBody(login): JsonBody<Login>,
) -> Result<Response, Problem> {
    let key = Token::parse(login.key.trim()).and_then(|token| state.orchestrator.key_of(&token));
    let Some(key) = key else {
        let detail = "unknown or revoked API key";
        return Err(Problem::new(StatusCode::UNAUTHORIZED, "key_unknown", detail));
    };
    let sealed = state.orchestrator.begin_session(key.id.as_str(), SESSION_LIFETIME);
    let answer = SessionAnswer {
        needs_key: true,
        name: Some(key.name.clone()),
        role: Some(key.role),
        login_with: None,
        job_domain: state.settings.job_domain.clone(),
    };
    let mut response = Json(answer).into_response();
    response.extensions_mut().insert(LoginOutcome::Done(Actor::from(key.as_ref())));
    if let Some(cookie) = session_cookie(&sealed, client_info.transport(&state.settings)) {
        response.headers_mut().insert(header::SET_COOKIE, cookie);
    }
    Ok(response)
}

/// Log out
///
/// Ends the session on the server. Copies of its cookie stop working, and views opened with it close.
#[utoipa::path(
    delete, path = "/v1/session", tag = "operations", operation_id = "log_out",
    responses(
        (status = 204, description = "Logged out; the cookie is deleted"),
        (status = 503, description = "`store_busy`, `store_unavailable`: the session is still valid; `Retry-After` says when to try again", body = crate::problem::ProblemAnswer<'_>, content_type = "application/problem+json"),
        (status = 507, description = "`server_disk_full`: the session is still valid", body = crate::problem::ProblemAnswer<'_>, content_type = "application/problem+json")
    )
)]
pub(crate) async fn log_out(
    State(state): State<AppState>,
    client_info: ClientInfo,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    for session in state.access.sessions(&headers) {
        state.orchestrator.end_session(session).await?;
    }
    let mut response = StatusCode::NO_CONTENT.into_response();
    if let Some(cookie) = ended_cookie(client_info.transport(&state.settings)) {
        response.headers_mut().insert(header::SET_COOKIE, cookie);
    }
    Ok(response)
}

const MAX_ENTRIES: usize = 1000;

/// How far to look back.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct AccessLogQuery {
    /// Maximum number of entries; default 100.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<usize>,
}

/// What was done over the API.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct AccessLogAnswer {
    /// Newest first.
    entries: Vec<AccessLogEntry>,
}

/// List API actions
///
/// The last 1,000 requests that changed something, opened a live view, downloaded a result, a file or events, or were
/// refused, including those before a restart. `access.jsonl` in the data folder has older ones.
#[utoipa::path(
    get, path = "/v1/access-log", tag = "operations", operation_id = "access_log",
    params(AccessLogQuery),
    responses((status = 200, description = "Newest first", body = AccessLogAnswer), QueryProblems)
)]
pub(crate) async fn access_log(
    State(state): State<AppState>,
    Parameters(query): Parameters<AccessLogQuery>,
) -> Result<Json<AccessLogAnswer>, Problem> {
    match query.limit.unwrap_or(100) {
        limit @ 1..=MAX_ENTRIES => {
            Ok(Json(AccessLogAnswer { entries: state.access.access_log().last(limit) }))
        }
        limit => {
            let detail = format!("{limit} is not between 1 and {MAX_ENTRIES}");
            Err(Problem::bad_request("invalid_query", detail).with_field("limit"))
        }
    }
}
