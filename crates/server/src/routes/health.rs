//! Liveness and readiness.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use orchestrator::ReadyState;

use crate::extract::AppState;

/// Check that the server is alive
#[utoipa::path(
    get, path = "/healthz", tag = "operations", operation_id = "healthz",
    responses((status = 200, description = "Alive", body = String, content_type = "text/plain"))
)]
pub(crate) async fn healthz() -> &'static str {
    "ok"
}

/// Check that the server can accept jobs
#[utoipa::path(
    get, path = "/readyz", tag = "operations", operation_id = "readyz",
    responses(
        (status = 200, description = "Ready", body = ReadyState),
        (status = 503, description = "Not ready; see `problems`", body = ReadyState)
    )
)]
pub(crate) async fn readyz(State(state): State<AppState>) -> Response {
    let ready = state.orchestrator.ready().await;
    let status = if ready.ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, Json(ready)).into_response()
}
