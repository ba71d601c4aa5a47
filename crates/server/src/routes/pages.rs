//! The documentation pages and the OpenAPI document. Everything is in the binary; nothing is loaded from elsewhere.

use axum::extract::State;
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};

use crate::extract::AppState;
use crate::guard::PAGE_CSP;

const HTML: &str = "text/html; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const STYLE: &str = "text/css; charset=utf-8";
const SVG: &str = "image/svg+xml";
/// Bundled by `./build-web`.
const DESKTOP_SCRIPT: &str =
    include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../web/desktop/dist/desktop.js"));
const DESKTOP_STYLE: &str =
    include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../web/desktop/dist/desktop.css"));

/// Serves an embedded file.
fn show(media_type: &'static str, content: &'static str) -> Response {
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static(media_type)),
        (header::CONTENT_SECURITY_POLICY, PAGE_CSP),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-cache")),
    ];
    (headers, content).into_response()
}

/// Browse the API documentation
#[utoipa::path(
    get, path = "/docs", tag = "operations", operation_id = "docs",
    responses((status = 200, description = "A web page", body = String, content_type = "text/html"))
)]
pub(crate) async fn docs() -> Response {
    show(HTML, include_str!("../assets/docs.html"))
}

/// Get the OpenAPI document
#[utoipa::path(
    get, path = "/openapi.json", tag = "operations", operation_id = "openapi",
    responses((status = 200, description = "The document", body = Object, content_type = "application/json"))
)]
pub(crate) async fn document(State(state): State<AppState>) -> Response {
    ([(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))], state.document).into_response()
}

pub(crate) struct Asset {
    pub(crate) path: &'static str,
    media_type: &'static str,
    content: &'static str,
}

impl Asset {
    const fn new(path: &'static str, media_type: &'static str, content: &'static str) -> Self {
        Self { path, media_type, content }
    }

    pub(crate) fn show(&self) -> Response {
        show(self.media_type, self.content)
    }
}

/// The files that the pages load.
pub(crate) const ASSETS: &[Asset] = &[
    Asset::new("/assets/style.css", STYLE, include_str!("../assets/style.css")),
    Asset::new("/assets/docs.js", SCRIPT, include_str!("../assets/docs.js")),
    Asset::new("/assets/copy.js", SCRIPT, include_str!("../assets/copy.js")),
    Asset::new("/assets/desktop.js", SCRIPT, DESKTOP_SCRIPT),
    Asset::new("/assets/desktop.css", STYLE, DESKTOP_STYLE),
    Asset::new("/assets/mark.svg", SVG, include_str!("../assets/mark.svg")),
];

#[cfg(test)]
mod tests {
    #[test]
    fn pages_comply_with_their_csp() {
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
