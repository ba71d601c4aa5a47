//! Lets the web page frame the pages of jobs, which are cross-site to a browser: limits who may frame a notebook, and
//! rewrites cookies so that browsers keep them in a frame.

use axum::http::header::{self, HeaderName};
use axum::http::{HeaderMap, HeaderValue};

use super::target::{Service, Target};

/// A cookie that exists only in frames. Requests from inside a frame do not otherwise say that they come from one.
const FRAME_COOKIE: &str = "caisson-framed=1";
const FRAME_COOKIE_HEADER: &str = "caisson-framed=1; Path=/";
const FRAME_OPTIONS: HeaderName = HeaderName::from_static("x-frame-options");

/// Whether the request loads a cross-site frame, or comes from inside one.
fn is_framed(request_headers: &HeaderMap) -> bool {
    begins_frame(request_headers) || has_frame_cookie(request_headers)
}

fn begins_frame(request_headers: &HeaderMap) -> bool {
    let has =
        |name: &str, value: &[u8]| request_headers.get(name).is_some_and(|header| header.as_bytes() == value);
    has("sec-fetch-dest", b"iframe") && !has("sec-fetch-site", b"same-origin")
}

fn has_frame_cookie(request_headers: &HeaderMap) -> bool {
    let cookies = request_headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
    cookies.flat_map(|line| line.split(';')).any(|cookie| cookie.trim() == FRAME_COOKIE)
}

/// Adapts a response to the frame that requested it.
///
/// `page` is the URL of the server's own page. If it is unknown, the response is not changed. Except on loopback,
/// browsers accept the resulting cookies only with HTTPS.
pub(super) fn adapt_response(
    answer: &mut HeaderMap,
    request_headers: &HeaderMap,
    (target, page): (&Target, Option<&str>),
) {
    let Some(page) = page else { return };
    if target.service == Service::Notebook {
        allow_own_page_to_frame(answer, page);
    }
    let is_loopback = page.split("://").nth(1).is_some_and(|authority| authority.starts_with("localhost"));
    if is_framed(request_headers) && (is_loopback || page.starts_with("https://")) {
        let mark = begins_frame(request_headers).then(|| HeaderValue::from_static(FRAME_COOKIE_HEADER));
        let cookies: Vec<HeaderValue> =
            answer.get_all(header::SET_COOKIE).iter().chain(&mark).filter_map(partitioned).collect();
        answer.remove(header::SET_COOKIE);
        for cookie in cookies {
            answer.append(header::SET_COOKIE, cookie);
        }
    }
}

/// A notebook executes code, so only the server's own page may frame it. Any other page could mislead a user into
/// clicking in it.
fn allow_own_page_to_frame(answer: &mut HeaderMap, page: &str) {
    let policies: Vec<HeaderValue> = answer
        .get_all(header::CONTENT_SECURITY_POLICY)
        .iter()
        .filter_map(|policy| {
            let kept: Vec<&str> = policy
                .to_str()
                .ok()?
                .split(';')
                .filter(|directive| !directive.trim().to_ascii_lowercase().starts_with("frame-ancestors"))
                .collect();
            HeaderValue::from_str(&kept.join(";")).ok()
        })
        .collect();
    answer.remove(header::CONTENT_SECURITY_POLICY);
    answer.remove(FRAME_OPTIONS);
    let authority = page.split("://").nth(1).unwrap_or(page);
    let by_number =
        authority.strip_prefix("localhost").map(|port| format!(" 127.0.0.1{port}")).unwrap_or_default();
    let own = HeaderValue::from_str(&format!("frame-ancestors 'self' {authority}{by_number}")).ok();
    for policy in policies.into_iter().chain(own) {
        answer.append(header::CONTENT_SECURITY_POLICY, policy);
    }
}

/// The cookie with the attributes that let a browser keep it in a frame, partitioned by the framing site.
fn partitioned(cookie: &HeaderValue) -> Option<HeaderValue> {
    const REPLACED: [&str; 3] = ["samesite", "secure", "partitioned"];
    let is_replaced = |part: &&str| {
        let name = part.split('=').next().unwrap_or_default().trim().to_ascii_lowercase();
        REPLACED.contains(&name.as_str())
    };
    let text = cookie.to_str().ok()?;
    let (first, rest) = text.split_once(';').unwrap_or((text, ""));
    let kept: Vec<&str> =
        rest.split(';').filter(|part| !part.trim().is_empty() && !is_replaced(part)).collect();
    let parts: Vec<&str> =
        std::iter::once(first).chain(kept).chain([" SameSite=None", " Secure", " Partitioned"]).collect();
    HeaderValue::from_str(&parts.join(";")).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LABEL: &str = "01930d5e-7b1a-7c3e-9f00-3a5b1c2d4e6f";

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        pairs
            .iter()
            .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_str(value).unwrap()))
            .collect()
    }

    fn request_headers(service: &str, destination: &str) -> HeaderMap {
        let host = format!("{LABEL}-{service}.localhost:8000");
        headers(&[("host", &host), ("sec-fetch-dest", destination), ("sec-fetch-site", "cross-site")])
    }

    fn fitted(service: &str, destination: &str) -> HeaderMap {
        let mut answer = headers(&[
            ("content-security-policy", "frame-ancestors 'self'; report-uri /x"),
            ("x-frame-options", "DENY"),
            ("set-cookie", "_xsrf=1; Path=/; SameSite=Lax"),
        ]);
        let target = Target::parse(&format!("{LABEL}-{service}")).unwrap();
        adapt_response(
            &mut answer,
            &request_headers(service, destination),
            (&target, Some("http://localhost:8000")),
        );
        answer
    }

    #[test]
    fn only_own_page_may_frame_a_notebook() {
        let answer = fitted("jupyter", "iframe");
        let policies: Vec<_> = answer.get_all("content-security-policy").iter().collect();
        assert_eq!(policies, [" report-uri /x", "frame-ancestors 'self' localhost:8000 127.0.0.1:8000"]);
        assert!(!answer.contains_key("x-frame-options"));
        let port = fitted("3000", "iframe");
        assert_eq!(port["x-frame-options"], "DENY", "what a job serves decides for itself");
    }

    #[test]
    fn cookies_are_rewritten_only_in_frames() {
        let cookie = "_xsrf=1; Path=/; SameSite=None; Secure; Partitioned";
        let mark = "caisson-framed=1; Path=/; SameSite=None; Secure; Partitioned";
        for service in ["jupyter", "3000"] {
            let answer = fitted(service, "iframe");
            assert_eq!(answer.get_all("set-cookie").iter().collect::<Vec<_>>(), [cookie, mark]);
        }
        let mut inside = request_headers("3000", "empty");
        inside.insert("sec-fetch-site", HeaderValue::from_static("same-origin"));
        assert!(!is_framed(&inside));
        inside.insert("cookie", HeaderValue::from_static("a=b; caisson-framed=1"));
        assert!(is_framed(&inside), "asked for from inside of a frame");
        assert_eq!(fitted("3000", "document")["set-cookie"], "_xsrf=1; Path=/; SameSite=Lax");
        let target = Target::parse(&format!("{LABEL}-3000")).unwrap();
        for page in [None, Some("http://caisson.example")] {
            let mut answer = headers(&[("set-cookie", "_xsrf=1")]);
            adapt_response(&mut answer, &request_headers("3000", "iframe"), (&target, page));
            assert_eq!(answer["set-cookie"], "_xsrf=1", "a browser would not take what we would make of it");
        }
        let mut answer = headers(&[("set-cookie", "_xsrf=1")]);
        adapt_response(
            &mut answer,
            &request_headers("3000", "iframe"),
            (&target, Some("https://caisson.example")),
        );
        assert_eq!(answer["set-cookie"], "_xsrf=1; SameSite=None; Secure; Partitioned");
    }
}
