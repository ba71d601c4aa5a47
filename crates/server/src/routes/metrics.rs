//! Prometheus metrics, and the counting of requests.

use std::str::FromStr;

use axum::extract::{MatchedPath, Request, State};
use axum::http::{Method, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use job::JobId;
use orchestrator::Orchestrator;
use tracing::{Instrument, Span};

use crate::extract::AppState;
use crate::problem::Problem;

const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// The route label of a request that matches no route.
const NO_ROUTE: &str = "none";

/// Get metrics for Prometheus
#[utoipa::path(
    get, path = "/metrics", tag = "operations", operation_id = "metrics",
    responses((
        status = 200, description = "Metrics in the OpenMetrics text format; see docs/operations/monitoring.md",
        body = String, content_type = "application/openmetrics-text"
    ))
)]
pub(crate) async fn metrics(State(state): State<AppState>) -> Result<Response, Problem> {
    let text = state.orchestrator.render_metrics().await?;
    Ok(([(header::CONTENT_TYPE, OPEN_METRICS)], text).into_response())
}

/// Middleware: counts requests by the pattern of the route, never by the path, which callers can choose freely.
pub(crate) async fn count(
    State(orchestrator): State<Orchestrator>,
    request: Request,
    next: Next,
) -> Response {
    let method = method_name(request.method());
    let route = request.extensions().get::<MatchedPath>().cloned();
    let span =
        job_of(request.uri().path()).map_or_else(Span::none, |job| tracing::info_span!("request", %job));
    let route = route.as_ref().map_or(NO_ROUTE, MatchedPath::as_str).to_owned();
    // Exported to an OpenTelemetry collector, if one is configured.
    let traced = tracing::info_span!(
        target: "caisson_trace", "request", http.request.method = method, http.route = route,
        http.response.status_code = tracing::field::Empty
    );
    let response = next.run(request).instrument(span).instrument(traced.clone()).await;
    traced.record("http.response.status_code", u64::from(response.status().as_u16()));
    orchestrator.metrics().http_request(method, &route, response.status().as_u16());
    response
}

/// The job in a path, so that every log line of the request names it.
fn job_of(path: &str) -> Option<JobId> {
    path.split('/').find_map(|part| JobId::from_str(part).ok())
}

/// The method label. Callers can send arbitrary methods, so unknown ones share one label.
fn method_name(method: &Method) -> &'static str {
    match *method {
        Method::GET => "GET",
        Method::HEAD => "HEAD",
        Method::POST => "POST",
        Method::PUT => "PUT",
        Method::PATCH => "PATCH",
        Method::DELETE => "DELETE",
        Method::OPTIONS => "OPTIONS",
        _ => "other",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_job_of_a_request_is_found_in_its_path() {
        let id = JobId::generate();
        assert_eq!(job_of(&format!("/v1/jobs/{id}/files/a")), Some(id));
        assert_eq!(job_of("/v1/jobs"), None);
    }

    #[test]
    fn unknown_methods_share_one_label() {
        assert_eq!(method_name(&Method::PUT), "PUT");
        assert_eq!(method_name(&Method::from_bytes(b"BREW").unwrap()), "other");
    }
}
