//! Liveness and readiness.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use orchestrator::ReadyState;

use crate::extract::AppState;

/// Whether the server lives
#[utoipa::path(
    get, path = "/healthz", tag = "operations", operation_id = "healthz",
    responses((status = 200, description = "It does", body = String, content_type = "text/plain"))
)]
pub(crate) async fn healthz() -> &'static str {
    "ok"
}

/// Whether the server can take jobs
#[utoipa::path(
    get, path = "/readyz", tag = "operations", operation_id = "readyz",
    responses(
        (status = 200, description = "It can", body = ReadyState),
        (status = 503, description = "It cannot; `problems` says why", body = ReadyState)
    )
)]
pub(crate) async fn readyz(State(state): State<AppState>) -> Response {
    let ready = state.orchestrator.ready().await;
    let status = if ready.ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, Json(ready)).into_response()
}
