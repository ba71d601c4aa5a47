//! Lets a browser enter the origin of a job without putting a secret into a URL: the web page posts a form into the
//! frame or tab, which sets cookies for the origin and redirects to the page to show.

use axum::Form;
use axum::extract::{FromRequest as _, Request};
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;

use super::authentication;
use super::error_pages::{self, Page};
use super::target::Target;
use crate::access::{Access, takeover_gate};

const PATH: &str = "/_caisson/enter";

/// The fields of the form.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct EntryForm {
    /// A link that is sealed for this view of this job. Empty if the server has no keys.
    pass: String,
    /// The takeover token of the holder. Empty for others.
    takeover: String,
    /// The path to show first.
    to: String,
}

/// Whether the request submits this form.
pub(super) fn is_entry_form(request: &Request) -> bool {
    request.method() == Method::POST && request.uri().path() == PATH
}

/// Stores the submitted values in cookies and redirects. Invalid values grant no access.
pub(super) async fn handle(access: &Access, target: Target, request: Request) -> Response {
    let request_headers = request.headers().clone();
    let transport = access.transport(&request);
    let Ok(Form(form)) = Form::<EntryForm>::from_request(request, &()).await else {
        return error_pages::answer(&request_headers, &Page::LinkExpired);
    };
    if !form.pass.is_empty() && !authentication::opens(access, target, &form.pass) {
        return error_pages::answer(&request_headers, &Page::LinkExpired);
    }
    let mut response = StatusCode::SEE_OTHER.into_response();
    let local_path = HeaderValue::from_str(local_path(&form.to)).unwrap_or(HeaderValue::from_static("/"));
    let headers = response.headers_mut();
    headers.insert(header::LOCATION, local_path);
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    let pass = (!form.pass.is_empty()).then(|| authentication::cookie(&form.pass)).flatten();
    let token = takeover_gate::cookie(&form.takeover, "/", transport);
    for cookie in pass.into_iter().chain(token) {
        headers.append(header::SET_COOKIE, cookie);
    }
    response
}

/// The path, if it stays on this origin; otherwise `/`.
fn local_path(to: &str) -> &str {
    let is_here = to.starts_with('/')
        && !to.starts_with("//")
        && to.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'\\');
    if is_here { to } else { "/" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entry_form_redirects_only_within_the_origin() {
        assert_eq!(local_path("/lab/tree/a.ipynb?x=1"), "/lab/tree/a.ipynb?x=1");
        for elsewhere in
            ["", "lab", "//evil.example/", "/\\evil.example", "https://evil.example/", "/a b", "/a\r\nX: y"]
        {
            assert_eq!(local_path(elsewhere), "/", "{elsewhere:?}");
        }
    }

    #[test]
    fn only_posts_to_the_entry_path_are_entry_forms() {
        let request = |method: Method, path: &str| {
            Request::builder().method(method).uri(path).body(axum::body::Body::empty()).unwrap()
        };
        assert!(is_entry_form(&request(Method::POST, PATH)));
        assert!(!is_entry_form(&request(Method::GET, PATH)));
        assert!(!is_entry_form(&request(Method::POST, "/_caisson/enter/x")));
    }
}
