//! Protects cookie-authenticated requests against CSRF.
//!
//! A browser sends its cookies with every request that a page makes. A request that changes something or opens a
//! WebSocket, and authenticates with one of our cookies, must therefore state where it comes from. Every browser does
//! so, in `Origin` or `Sec-Fetch-Site`. Programs send a key in `Authorization`, which a page of another site cannot
//! set, and need neither.

use axum::http::{HeaderMap, Method, header};

/// The error code of a rejected request.
pub(crate) const CODE: &str = "origin_missing";

/// Name prefixes of the cookies that grant access: a login, a shared link, a visit to the origin of a job, a
/// takeover.
const AUTH_COOKIE_PREFIXES: [&str; 4] =
    ["caisson_session", "caisson_share_", "caisson_pass", "caisson-takeover"];

/// Whether a request changes something, authenticates with a cookie and does not state where it comes from.
pub(crate) fn lacks_origin(method: &Method, headers: &HeaderMap) -> bool {
    let states_origin = headers.contains_key(header::ORIGIN) || headers.contains_key("sec-fetch-site");
    !only_reads(method, headers) && !states_origin && !has_key(headers) && has_cookie(headers)
}

/// Whether a request only reads. A WebSocket may do more, whatever its method.
pub(crate) fn only_reads(method: &Method, headers: &HeaderMap) -> bool {
    matches!(*method, Method::GET | Method::HEAD) && !headers.contains_key(header::UPGRADE)
}

/// Whether the request carries a key. A `Basic` login for a reverse proxy does not count: like cookies, browsers send
/// it automatically.
fn has_key(headers: &HeaderMap) -> bool {
    let shown = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    shown.is_some_and(|value| value.starts_with("Bearer "))
}

fn has_cookie(headers: &HeaderMap) -> bool {
    // A header that is not text cannot contain one of our cookies.
    let lines = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
    let mut names = lines.flat_map(|line| line.split(';')).filter_map(|pair| pair.trim().split_once('='));
    names.any(|(name, _)| AUTH_COOKIE_PREFIXES.iter().any(|ours| name.starts_with(ours)))
}

#[cfg(test)]
mod tests {
    use axum::http::{HeaderName, HeaderValue};

    use super::*;

    fn is_refused(method: &Method, pairs: &[(&str, &str)]) -> bool {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(HeaderName::try_from(*name).unwrap(), HeaderValue::try_from(*value).unwrap());
        }
        lacks_origin(method, &headers)
    }

    const SESSION: (&str, &str) = ("cookie", "theme=dark; caisson_session=a.1.b");

    #[test]
    fn change_with_cookie_requires_an_origin() {
        for method in [Method::POST, Method::PUT, Method::DELETE, Method::PATCH, Method::CONNECT] {
            assert!(is_refused(&method, &[SESSION]), "{method}");
            assert!(!is_refused(&method, &[SESSION, ("origin", "http://localhost")]), "{method}");
            assert!(!is_refused(&method, &[SESSION, ("sec-fetch-site", "same-origin")]), "{method}");
        }
        assert!(!is_refused(&Method::GET, &[SESSION]), "it only reads");
        assert!(is_refused(&Method::GET, &[SESSION, ("upgrade", "websocket")]), "a WebSocket does more");
    }

    #[test]
    fn only_authentication_cookies_require_an_origin() {
        for cookie in
            ["caisson_session=x", "caisson_share_files=x", "a=b; caisson_pass=x", "caisson-takeover=x"]
        {
            assert!(is_refused(&Method::POST, &[("cookie", cookie)]), "{cookie}");
        }
        assert!(is_refused(&Method::POST, &[("cookie", "a=b"), SESSION]), "in the second line");
        for cookie in ["theme=dark", "caisson-preview=x", "session=caisson_session"] {
            assert!(!is_refused(&Method::POST, &[("cookie", cookie)]), "{cookie}");
        }
        assert!(!is_refused(&Method::POST, &[]));
    }

    #[test]
    fn bearer_key_needs_no_origin_and_basic_auth_does() {
        assert!(!is_refused(&Method::POST, &[SESSION, ("authorization", "Bearer caisson_1")]));
        assert!(is_refused(&Method::POST, &[SESSION, ("authorization", "Basic YTpi")]));
    }
}
