//! The port that shows the desktop of the newest running job.
//!
//! `/` and `/vnc.html` redirect to the desktop page of that job, which is the API's. This port serves the page itself,
//! with all checks of the API, so it works wherever the API's port is. It serves nothing else of the API.

use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::middleware::from_fn_with_state;
use axum::response::{IntoResponse, Redirect, Response};
use job::JobKind;
use orchestrator::Orchestrator;
use tower::Service;

use super::{FixedPort, login_url};
use crate::guard::{Guard, host_guard};
use crate::origins::error_pages::{self, Page};
use crate::settings::ServerSettings;

/// The files of the desktop page.
const FILES: [&str; 3] = ["/assets/desktop.js", "/assets/desktop.css", "/assets/mark.svg"];

struct DesktopPort {
    port: FixedPort,
    api: Router,
}

/// Shows the desktop of the newest running job. `api` is the application of the API.
pub fn exposed_desktop(
    api: Router,
    orchestrator: Orchestrator,
    settings: &ServerSettings,
    api_port: u16,
) -> Router {
    let port = FixedPort::new(orchestrator, settings, api_port);
    Router::new()
        .fallback(show)
        .layer(from_fn_with_state(Arc::new(Guard::new(settings)), host_guard))
        .with_state(Arc::new(DesktopPort { port, api }))
}

async fn show(State(state): State<Arc<DesktopPort>>, request: Request) -> Response {
    let path = request.uri().path();
    if is_part_of_desktop(path) {
        return ask_api(&state, request).await;
    }
    if !matches!(path, "/" | "/vnc.html") {
        return error_pages::answer(request.headers(), &Page::NotOnThisPort);
    }
    match state.port.newest_job(request.headers()).await {
        Ok(job) => {
            let kind = if job.kind == JobKind::Sandbox { "sandboxes" } else { "jobs" };
            Redirect::temporary(&format!("/v1/{kind}/{}/desktop", job.job_id)).into_response()
        }
        Err(page) => state.port.refuse(&request, &page),
    }
}

async fn ask_api(state: &DesktopPort, request: Request) -> Response {
    let headers = request.headers().clone();
    let Ok(response) = state.api.clone().call(request).await;
    // A browser gets a page that says where to log in.
    if response.status() == StatusCode::UNAUTHORIZED && error_pages::wants_page(&headers) {
        let url = login_url(state.port.access.settings(), &headers, state.port.api_port);
        return error_pages::answer(&headers, &Page::LoginElsewhere(url));
    }
    response
}

/// Whether a path of the API is the desktop page of a job, or something that this page loads.
fn is_part_of_desktop(path: &str) -> bool {
    let below = path.strip_prefix("/v1/jobs/").or_else(|| path.strip_prefix("/v1/sandboxes/"));
    let view = below.and_then(|below| below.split_once('/')).map(|(_, view)| view);
    FILES.contains(&path) || matches!(view, Some("desktop" | "desktop/state" | "desktop/socket"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_desktop_page_of_the_api_is_served() {
        for path in ["/v1/jobs/1/desktop", "/v1/sandboxes/1/desktop/socket", "/v1/jobs/1/desktop/state"] {
            assert!(is_part_of_desktop(path), "{path}");
        }
        for file in FILES {
            assert!(is_part_of_desktop(file), "{file}");
        }
        for path in [
            "/v1/jobs",
            "/v1/jobs/1",
            "/v1/jobs/1/terminal",
            "/v1/jobs/1/files/desktop",
            "/v1/jobs//1/desktop",
            "/v1/jobs/1/desktop/",
            "/v1/keys",
            "/schedule",
            "/assets/docs.js",
        ] {
            assert!(!is_part_of_desktop(path), "{path}");
        }
    }
}
