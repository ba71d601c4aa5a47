//! Lets a browser enter the origin of a job without putting a secret into a URL: the web page posts a form into the
//! frame or tab, which sets cookies for the origin and redirects to the page to show.

use axum::Form;
use axum::extract::{FromRequest as _, Request};
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;

use super::entry;
use super::pages::{self, Page};
use super::target::Target;
use crate::access::Access;
use crate::hold;

const PATH: &str = "/_caisson/enter";

/// The fields of the form.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Shown {
    /// A link that is sealed for this view of this job. Empty if the server has no keys.
    pass: String,
    /// The takeover token of the holder. Empty for others.
    takeover: String,
    /// The path to show first.
    to: String,
}

/// Whether the request submits this form.
pub(super) fn is_meant(request: &Request) -> bool {
    request.method() == Method::POST && request.uri().path() == PATH
}

/// Stores the submitted values in cookies and redirects. Invalid values grant no access.
pub(super) async fn take(access: &Access, target: Target, request: Request) -> Response {
    let asked = request.headers().clone();
    let transport = access.transport(&request);
    let Ok(Form(shown)) = Form::<Shown>::from_request(request, &()).await else {
        return pages::answer(&asked, &Page::LinkOver);
    };
    if !shown.pass.is_empty() && !entry::opens(access, target, &shown.pass) {
        return pages::answer(&asked, &Page::LinkOver);
    }
    let mut response = StatusCode::SEE_OTHER.into_response();
    let place = HeaderValue::from_str(place(&shown.to)).unwrap_or(HeaderValue::from_static("/"));
    let headers = response.headers_mut();
    headers.insert(header::LOCATION, place);
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    let pass = (!shown.pass.is_empty()).then(|| entry::cookie(&shown.pass)).flatten();
    let token = hold::cookie(&shown.takeover, "/", transport);
    for cookie in pass.into_iter().chain(token) {
        headers.append(header::SET_COOKIE, cookie);
    }
    response
}

/// The path, if it stays on this origin; otherwise `/`.
fn place(to: &str) -> &str {
    let is_here = to.starts_with('/')
        && !to.starts_with("//")
        && to.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'\\');
    if is_here { to } else { "/" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_is_led_to_places_of_this_origin_alone() {
        assert_eq!(place("/lab/tree/a.ipynb?x=1"), "/lab/tree/a.ipynb?x=1");
        for elsewhere in
            ["", "lab", "//evil.example/", "/\\evil.example", "https://evil.example/", "/a b", "/a\r\nX: y"]
        {
            assert_eq!(place(elsewhere), "/", "{elsewhere:?}");
        }
    }

    #[test]
    fn only_a_form_that_is_sent_to_the_entrance_is_one() {
        let request = |method: Method, path: &str| {
            Request::builder().method(method).uri(path).body(axum::body::Body::empty()).unwrap()
        };
        assert!(is_meant(&request(Method::POST, PATH)));
        assert!(!is_meant(&request(Method::GET, PATH)));
        assert!(!is_meant(&request(Method::POST, "/_caisson/enter/x")));
    }
}
