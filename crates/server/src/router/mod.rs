//! The application: all routes (`table.rs`) and the layers that every request and response passes.

mod document;
mod routes;
mod table;

use std::any::Any;
use std::sync::Arc;

use axum::extract::{DefaultBodyLimit, OriginalUri, Request};
use axum::http::{Method, StatusCode};
use axum::middleware;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use orchestrator::Orchestrator;
use tower_http::catch_panic::CatchPanicLayer;

use crate::access::Access;
use crate::extract::{AppState, BodyLimits};
use crate::guard::{Guard, guard};
use crate::host_reports::HostReports;
use crate::origins;
use crate::problem::Problem;
use crate::routes::metrics;
use crate::serve::keep_reserve;
use crate::settings::ServerSettings;

use self::table::all;

pub use self::document::openapi;

/// Builds the application.
pub fn router(orchestrator: Orchestrator, host: HostReports, settings: &ServerSettings) -> axum::Router {
    let counted = orchestrator.clone();
    let shared = Arc::new(settings.clone());
    let access = Arc::new(Access::new(orchestrator.clone(), Arc::clone(&shared)));
    let (jobs, reserve) = (Arc::clone(&access), Arc::clone(&access));
    let state = AppState {
        orchestrator,
        settings: shared,
        access: Arc::clone(&access),
        limits: BodyLimits::new(settings),
        host,
        document: Bytes::from(serde_json::to_vec(&openapi()).unwrap_or_default()),
    };
    let router = all().into_router(&access).with_state(state);
    add_layers(router, settings)
        .layer(middleware::from_fn_with_state(counted, metrics::count))
        // Requests to the origins of jobs never reach the API.
        .layer(middleware::from_fn_with_state(jobs, origins::route))
        .layer(middleware::from_fn_with_state(reserve, keep_reserve))
}

/// Wraps routes in the layers that every request passes: the guard outermost, then the panic handler.
fn add_layers(router: axum::Router, settings: &ServerSettings) -> axum::Router {
    router
        .fallback(no_such_route)
        .method_not_allowed_fallback(wrong_method)
        // The extractors limit the size of bodies.
        .layer(DefaultBodyLimit::disable())
        .layer(CatchPanicLayer::custom(report_panic))
        .layer(middleware::from_fn_with_state(Arc::new(Guard::new(settings)), guard))
}

/// A page for browsers, a problem for programs. Below `/v1` there are only programs.
async fn no_such_route(request: Request) -> Response {
    let path = request.uri().path();
    let is_api = path == "/v1" || path.starts_with("/v1/");
    let page = if is_api { None } else { origins::unknown_address(request.headers(), path) };
    page.unwrap_or_else(|| {
        let detail = format!("no route for {}; see /docs for all routes", path.escape_debug());
        Problem::new(StatusCode::NOT_FOUND, "route_not_found", detail).into_response()
    })
}

async fn wrong_method(method: Method, OriginalUri(uri): OriginalUri) -> Problem {
    let detail = format!("{method} is not allowed for {}; see the `Allow` header", uri.path().escape_debug());
    Problem::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", detail)
}

#[expect(clippy::needless_pass_by_value, reason = "the shape that the layer wants")]
fn report_panic(panic: Box<dyn Any + Send + 'static>) -> Response {
    let text =
        panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
    tracing::error!(panic = text.unwrap_or("without a message"), "handler panicked");
    Problem::internal("internal error; see the server log").into_response()
}

#[cfg(test)]
mod tests {
    use axum::Router;
    use axum::body::{Body, to_bytes};
    use axum::http::{HeaderName, header};
    use axum::routing::{get, post};
    use serde_json::Value;
    use tower::ServiceExt;

    use super::*;
    use crate::extract::JobBody;

    /// The same layers around routes that need no orchestrator.
    fn app() -> Router {
        let settings = ServerSettings::default();
        let routes = Router::new()
            .route("/hello", get(|| async { "hello" }))
            .route("/job", post(|JobBody(job): JobBody| async move { job.task.unwrap_or_default() }))
            .route(
                "/broken",
                get(|| async {
                    if true {
                        panic!("oh")
                    }
                }),
            )
            .with_state(BodyLimits::new(&settings));
        add_layers(routes, &settings)
    }

    async fn ask(method: Method, path: &str, pairs: &[(&str, &str)], body: &str) -> (Response<()>, Value) {
        let mut request = Request::builder().method(method).uri(path);
        for (name, value) in pairs {
            request = request.header(*name, *value);
        }
        let response = app().oneshot(request.body(Body::from(body.to_owned())).unwrap()).await.unwrap();
        let (parts, body) = response.into_parts();
        let bytes = to_bytes(body, 1 << 20).await.unwrap();
        (Response::from_parts(parts, ()), serde_json::from_slice(&bytes).unwrap_or(Value::Null))
    }

    const HOST: (&str, &str) = ("host", "localhost:8000");

    #[tokio::test]
    async fn unknown_route_returns_a_problem() {
        let (response, problem) = ask(Method::GET, "/nowhere", &[HOST], "").await;
        assert_eq!(response.status().as_u16(), 404);
        assert_eq!(response.headers()[header::CONTENT_TYPE], "application/problem+json");
        assert_eq!((&problem["code"], &problem["status"]), (&"route_not_found".into(), &404.into()));
    }

    #[tokio::test]
    async fn unknown_address_in_a_browser_is_a_page() {
        let browser = ("accept", "text/html,application/xhtml+xml;q=0.9,*/*;q=0.8");
        let ask_for = |path: &'static str| {
            let request = Request::builder().uri(path).header(HOST.0, HOST.1).header(browser.0, browser.1);
            app().oneshot(request.body(Body::empty()).unwrap())
        };
        let response = ask_for("/now'here").await.unwrap();
        assert_eq!(response.status().as_u16(), 404);
        let headers = response.headers().clone();
        assert_eq!(headers[header::CONTENT_TYPE], "text/html; charset=utf-8");
        assert!(headers[header::CONTENT_SECURITY_POLICY].to_str().unwrap().contains("default-src 'none'"));
        let body = to_bytes(response.into_body(), 1 << 20).await.unwrap();
        let page = String::from_utf8(body.to_vec()).unwrap();
        for part in ["Page not found", "/now&#39;here", "href=\"/\"", "href=\"/docs\""] {
            assert!(page.contains(part), "{part}: {page}");
        }
        for path in ["/v1", "/v1/nowhere"] {
            let response = ask_for(path).await.unwrap();
            assert_eq!(response.headers()[header::CONTENT_TYPE], "application/problem+json", "{path}");
        }
    }

    #[tokio::test]
    async fn wrong_method_returns_a_problem_with_allow_header() {
        let (response, problem) = ask(Method::DELETE, "/hello", &[HOST], "").await;
        assert_eq!(response.status().as_u16(), 405);
        assert_eq!(response.headers()[header::ALLOW], "GET,HEAD");
        assert_eq!(problem["code"], "method_not_allowed");
    }

    #[tokio::test]
    async fn panic_returns_a_problem_without_details() {
        let (response, problem) = ask(Method::GET, "/broken", &[HOST], "").await;
        assert_eq!((response.status().as_u16(), &problem["code"]), (500, &"internal_error".into()));
        assert!(!problem.to_string().contains("oh\""));
    }

    #[tokio::test]
    async fn foreign_hosts_and_origins_are_rejected() {
        let (response, problem) = ask(Method::GET, "/hello", &[("host", "evil.example")], "").await;
        assert_eq!((response.status().as_u16(), &problem["code"]), (421, &"host_not_allowed".into()));
        let origin = [HOST, ("origin", "http://evil.example"), ("content-type", "text/plain")];
        let (response, problem) = ask(Method::POST, "/job", &origin, "mine bitcoin").await;
        assert_eq!((response.status().as_u16(), &problem["code"]), (403, &"origin_not_allowed".into()));
        let (response, problem) = ask(Method::OPTIONS, "/job", &origin, "").await;
        assert_eq!((response.status().as_u16(), &problem["code"]), (403, &"origin_not_allowed".into()));
        assert!(!response.headers().contains_key(header::ACCESS_CONTROL_ALLOW_ORIGIN));
    }

    #[tokio::test]
    async fn every_response_has_security_headers() {
        for (method, path, host) in [
            (Method::GET, "/hello", "localhost"),
            (Method::GET, "/no", "localhost"),
            (Method::GET, "/hello", "evil.example"),
        ] {
            let (response, _) = ask(method, path, &[("host", host)], "").await;
            let headers = response.headers();
            assert_eq!(headers[header::X_CONTENT_TYPE_OPTIONS], "nosniff");
            assert_eq!(headers[header::REFERRER_POLICY], "no-referrer");
            assert_eq!(headers[header::X_FRAME_OPTIONS], "DENY");
            assert_eq!(headers[HeaderName::from_static("cross-origin-resource-policy")], "same-origin");
            assert!(
                headers[header::CONTENT_SECURITY_POLICY].to_str().unwrap().contains("default-src 'none'")
            );
        }
    }

    #[tokio::test]
    async fn malformed_json_is_refused_before_anything_else() {
        let (response, problem) =
            ask(Method::POST, "/job", &[HOST, ("content-type", "application/json")], "{").await;
        assert_eq!((response.status().as_u16(), &problem["code"]), (400, &"malformed_json".into()));
    }
}
