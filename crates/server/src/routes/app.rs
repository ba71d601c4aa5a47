//! The web page: files that are bundled into the server at build time.

use axum::extract::{Path, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};

use crate::extract::AppState;
use crate::problem::Problem;

/// The page loads its own files, talks to this server, frames the origins of jobs, and posts the form there that lets
/// the user in. Scripts of the page may add inline styles, which the terminal needs; inline scripts are not allowed.
const POLICY: HeaderValue = HeaderValue::from_static(
    "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; frame-src http://*.localhost:* \
     https://*.localhost:* 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'self' http://*.localhost:* \
     https://*.localhost:*; object-src 'none'",
);
/// A page that opens this one, or that it opens, cannot access its window.
const OPENER_POLICY: HeaderName = HeaderName::from_static("cross-origin-opener-policy");
/// The names of bundled files contain a hash of their content.
const IMMUTABLE: HeaderValue = HeaderValue::from_static("public, max-age=31536000, immutable");
const REVALIDATE: HeaderValue = HeaderValue::from_static("no-cache");

pub(crate) struct File {
    name: &'static str,
    content: &'static [u8],
    compressed: &'static [u8],
}

include!(concat!(env!("OUT_DIR"), "/pages.rs"));

/// Open the web page
#[utoipa::path(
    get, path = "/", tag = "operations", operation_id = "index",
    responses((status = 200, description = "A web page", body = String, content_type = "text/html"))
)]
pub(crate) async fn index(State(state): State<AppState>, headers: HeaderMap) -> Response {
    let mut response = show("index.html", &headers);
    if let Some(policy) = state.settings.job_domain.as_deref().and_then(policy_with) {
        response.headers_mut().insert(header::CONTENT_SECURITY_POLICY, policy);
    }
    response
}

/// The page's policy with the job domain added.
fn policy_with(domain: &str) -> Option<HeaderValue> {
    let frames = format!("frame-src http://*.{domain}:* https://*.{domain}:* ");
    let forms = format!("form-action http://*.{domain}:* https://*.{domain}:* ");
    let policy = POLICY.to_str().ok()?.replacen("frame-src ", &frames, 1).replacen("form-action ", &forms, 1);
    HeaderValue::try_from(policy).ok()
}

/// Serves a file of the page.
pub(crate) async fn asset(Path(name): Path<String>, headers: HeaderMap) -> Response {
    show(&format!("app/{name}"), &headers)
}

fn show(name: &str, headers: &HeaderMap) -> Response {
    let Some(file) = FILES.iter().find(|file| file.name == name) else {
        let detail = "this file belongs to another version of the page; reload the page".to_owned();
        return Problem::new(StatusCode::NOT_FOUND, "route_not_found", detail).into_response();
    };
    let mut answer = HeaderMap::new();
    answer.insert(header::CONTENT_TYPE, HeaderValue::from_static(media_type(file.name)));
    answer.insert(header::CONTENT_SECURITY_POLICY, POLICY);
    answer.insert(OPENER_POLICY, HeaderValue::from_static("same-origin"));
    answer.insert(header::CACHE_CONTROL, if name == "index.html" { REVALIDATE } else { IMMUTABLE });
    answer.insert(header::VARY, HeaderValue::from_static("accept-encoding"));
    if !takes_gzip(headers) {
        return (answer, file.content).into_response();
    }
    answer.insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    (answer, file.compressed).into_response()
}

fn takes_gzip(headers: &HeaderMap) -> bool {
    let accepted =
        headers.get(header::ACCEPT_ENCODING).and_then(|value| value.to_str().ok()).unwrap_or_default();
    accepted.split(',').any(|part| {
        let mut words = part.split(';');
        words.next().is_some_and(|name| name.trim() == "gzip") && !words.any(|weight| weight.trim() == "q=0")
    })
}

fn media_type(name: &str) -> &'static str {
    match name.rsplit_once('.').map(|(_, ending)| ending) {
        Some("html") => "text/html; charset=utf-8",
        Some("js") => "text/javascript; charset=utf-8",
        Some("css") => "text/css; charset=utf-8",
        Some("svg") => "image/svg+xml",
        Some("json" | "map") => "application/json",
        Some("woff2") => "font/woff2",
        _ => "application/octet-stream",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_loads_only_bundled_files() {
        let index = FILES.iter().find(|file| file.name == "index.html").unwrap();
        let text = std::str::from_utf8(index.content).unwrap();
        assert!(!text.contains("style=") && !text.contains("://"), "{text}");
        for script in text.split("<script").skip(1) {
            assert!(script.starts_with(" type=\"module\" crossorigin src=\"/app/"), "{script}");
        }
    }

    #[test]
    fn first_page_load_is_small() {
        let index = FILES.iter().find(|file| file.name == "index.html").unwrap();
        let text = std::str::from_utf8(index.content).unwrap();
        let named = FILES.iter().filter(|file| text.contains(file.name));
        let bytes: usize = named.map(|file| file.compressed.len()).sum();
        assert!(bytes > 1000 && bytes < 200_000, "{bytes}");
    }

    #[test]
    fn page_is_isolated_from_its_opener() {
        let answer = show("index.html", &HeaderMap::new());
        assert_eq!(answer.headers()[OPENER_POLICY], "same-origin");
    }

    #[test]
    fn gzip_is_used_if_accepted() {
        let with = |value: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::ACCEPT_ENCODING, HeaderValue::from_static(value));
            show("index.html", &headers).headers().contains_key(header::CONTENT_ENCODING)
        };
        assert!(with("gzip, br") && with("br, gzip;q=0.5"));
        assert!(!with("br") && !with("gzip;q=0"));
    }

    #[test]
    fn an_unknown_file_is_a_problem() {
        assert_eq!(show("app/nothing.js", &HeaderMap::new()).status(), StatusCode::NOT_FOUND);
    }
}
