//! How a browser shows an origin of a job that it may come in, without anything of that standing in an address: the page of
//! Caisson sends a form into the frame or the tab, which becomes cookies of the origin and leads on to the page itself.

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

/// What the form says.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Shown {
    /// A link that is sealed for this view of this job; empty where the server asks for no keys.
    pass: String,
    /// The token of who has taken the job over; empty for others.
    takeover: String,
    /// The page to begin with.
    to: String,
}

/// Whether somebody comes in by a form.
pub(super) fn is_meant(request: &Request) -> bool {
    request.method() == Method::POST && request.uri().path() == PATH
}

/// Keeps what is shown in cookies, and leads on. Whoever shows nothing that is worth something is let in nowhere by it.
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

/// A place of this origin; anything else is its beginning.
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
