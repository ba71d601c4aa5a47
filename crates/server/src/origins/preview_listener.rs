//! The preview listener, for clients that cannot resolve names below `localhost`: one origin that shows one target of
//! one job at a time.
//!
//! `/_caisson/open/<job>-<port>` selects the target and a cookie stores it. Each selection clears what the previous
//! target stored in the browser.

use std::sync::Arc;

use axum::Router;
use axum::extract::{Path, Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use orchestrator::Orchestrator;

use super::authentication::ReadOnlyKeys;
use super::error_pages::{self, Page};
use super::target::Target;
use crate::access::Access;
use crate::guard::Authority;
use crate::settings::ServerSettings;

const COOKIE: &str = "caisson-preview";

/// The application of the preview listener.
pub fn previews(orchestrator: Orchestrator, settings: &ServerSettings) -> Router {
    let access = Access::new(orchestrator, Arc::new(settings.clone()));
    Router::new()
        .route("/_caisson/open/{label}", get(select))
        .fallback(show)
        .layer(from_fn(loopback_only))
        .with_state(Arc::new(access))
}

/// Middleware against DNS rebinding: rejects host names other than loopback.
async fn loopback_only(request: Request, next: Next) -> Response {
    let host = request.headers().get(header::HOST).and_then(|host| Authority::parse(host.to_str().ok()?));
    if host.is_some_and(|host| host.is_loopback()) {
        next.run(request).await
    } else {
        error_pages::answer(request.headers(), &Page::UnknownOrigin)
    }
}

async fn select(Path(label): Path<String>, request_headers: HeaderMap) -> Response {
    let Some(target) = Target::parse(&label) else {
        return error_pages::answer(&request_headers, &Page::UnknownOrigin);
    };
    let cookie = format!("{COOKIE}={target}; Path=/; HttpOnly; SameSite=Strict");
    let headers = [
        (header::SET_COOKIE, HeaderValue::from_str(&cookie).unwrap_or(HeaderValue::from_static(""))),
        (header::LOCATION, HeaderValue::from_static("/")),
        (header::HeaderName::from_static("clear-site-data"), HeaderValue::from_static("\"storage\"")),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-store")),
    ];
    (StatusCode::SEE_OTHER, headers).into_response()
}

async fn show(State(access): State<Arc<Access>>, request: Request) -> Response {
    match selected(request.headers()) {
        Some(target) => super::serve(&access, (target, ReadOnlyKeys::Refused), request).await,
        None => error_pages::answer(request.headers(), &Page::NoTargetSelected),
    }
}

fn selected(headers: &HeaderMap) -> Option<Target> {
    let cookies = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
    cookies
        .flat_map(|value| value.split(';'))
        .filter_map(|pair| pair.trim().split_once('='))
        .find(|(name, _)| *name == COOKIE)
        .and_then(|(_, label)| Target::parse(label))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn preview_cookie_selects_the_target() {
        let job = "01930d5e-7b1a-7c3e-9f00-3a5b1c2d4e6f";
        let mut headers = HeaderMap::new();
        assert_eq!(selected(&headers), None);
        let cookies = format!("a=b; caisson-preview={job}-80; c=d");
        headers.insert(header::COOKIE, HeaderValue::from_str(&cookies).unwrap());
        assert_eq!(selected(&headers).unwrap().to_string(), format!("{job}-80"));
    }
}
