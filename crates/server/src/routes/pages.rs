//! Our own pages and the document they read. Everything is in the binary; nothing is loaded from elsewhere.

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;

use crate::extract::AppState;
use crate::guard::POLICY_OF_PAGES;

const HTML: &str = "text/html; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const STYLE: &str = "text/css; charset=utf-8";
const PICTURE: &str = "image/svg+xml";
/// Bundled by `./build-web`.
const DESKTOP_SCRIPT: &str =
    include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../web/desktop/dist/desktop.js"));
const DESKTOP_STYLE: &str =
    include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../web/desktop/dist/desktop.css"));

/// Shows a file of ours.
fn show(media_type: &'static str, content: &'static str) -> Response {
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static(media_type)),
        (header::CONTENT_SECURITY_POLICY, POLICY_OF_PAGES),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-cache")),
    ];
    (headers, content).into_response()
}

/// This documentation
#[utoipa::path(
    get, path = "/docs", tag = "operations", operation_id = "docs",
    responses((status = 200, description = "A page for people", body = String, content_type = "text/html"))
)]
pub(crate) async fn docs() -> Response {
    show(HTML, include_str!("../assets/docs.html"))
}

/// The OpenAPI document
#[utoipa::path(
    get, path = "/openapi.json", tag = "operations", operation_id = "openapi",
    responses((status = 200, description = "The document", body = Object, content_type = "application/json"))
)]
pub(crate) async fn document(State(state): State<AppState>) -> Response {
    ([(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))], state.document).into_response()
}

/// What the pages consist of.
pub(crate) fn assets() -> Router<AppState> {
    Router::new()
        .route("/assets/style.css", get(|| async { show(STYLE, include_str!("../assets/style.css")) }))
        .route("/assets/docs.js", get(|| async { show(SCRIPT, include_str!("../assets/docs.js")) }))
        .route("/assets/copy.js", get(|| async { show(SCRIPT, include_str!("../assets/copy.js")) }))
        .route("/assets/desktop.js", get(|| async { show(SCRIPT, DESKTOP_SCRIPT) }))
        .route("/assets/desktop.css", get(|| async { show(STYLE, DESKTOP_STYLE) }))
        .route("/assets/mark.svg", get(|| async { show(PICTURE, include_str!("../assets/mark.svg")) }))
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_pages_keep_to_their_own_policy() {
        for page in [include_str!("../assets/docs.html"), include_str!("../assets/desktop.html")] {
            assert!(!page.contains("style="), "inline style");
            assert!(!page.contains(" onclick") && !page.contains("<style"), "inline code");
            assert!(!page.contains("//cdn") && !page.contains("https://"), "foreign content");
            for script in page.split("<script").skip(1) {
                assert!(
                    script.starts_with(" src=\"/assets/")
                        || script.starts_with(" type=\"module\" src=\"/assets/")
                );
            }
        }
    }
}
