//! Lets the web page frame the pages of jobs, which are cross-site to a browser: limits who may frame a notebook, and
//! rewrites cookies so that browsers keep them in a frame.

use axum::http::header::{self, HeaderName};
use axum::http::{HeaderMap, HeaderValue};

use super::target::{Service, Target};

/// A cookie that exists only in frames. Requests from inside a frame do not otherwise say that they come from one.
const MARK: &str = "caisson-framed=1";
const MARK_EVERYWHERE: &str = "caisson-framed=1; Path=/";
const FRAME_OPTIONS: HeaderName = HeaderName::from_static("x-frame-options");

/// Whether the request loads a cross-site frame, or comes from inside one.
fn is_framed(asked: &HeaderMap) -> bool {
    begins_frame(asked) || is_marked(asked)
}

fn begins_frame(asked: &HeaderMap) -> bool {
    let says = |name: &str, value: &[u8]| asked.get(name).is_some_and(|header| header.as_bytes() == value);
    says("sec-fetch-dest", b"iframe") && !says("sec-fetch-site", b"same-origin")
}

fn is_marked(asked: &HeaderMap) -> bool {
    let cookies = asked.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
    cookies.flat_map(|line| line.split(';')).any(|cookie| cookie.trim() == MARK)
}

/// Adapts a response to the frame that requested it.
///
/// `page` is the URL of the server's own page. If it is unknown, the response is not changed. Except on loopback,
/// browsers accept the resulting cookies only with HTTPS.
pub(super) fn fit(answer: &mut HeaderMap, asked: &HeaderMap, (target, page): (&Target, Option<&str>)) {
    let Some(page) = page else { return };
    if target.service == Service::Notebook {
        let_own_page_frame(answer, page);
    }
    let is_loopback = page.split("://").nth(1).is_some_and(|place| place.starts_with("localhost"));
    if is_framed(asked) && (is_loopback || page.starts_with("https://")) {
        let mark = begins_frame(asked).then(|| HeaderValue::from_static(MARK_EVERYWHERE));
        let cookies: Vec<HeaderValue> =
            answer.get_all(header::SET_COOKIE).iter().chain(&mark).filter_map(kept_in_frames).collect();
        answer.remove(header::SET_COOKIE);
        for cookie in cookies {
            answer.append(header::SET_COOKIE, cookie);
        }
    }
}

/// A notebook executes code, so only the server's own page may frame it. Any other page could mislead a user into
/// clicking in it.
fn let_own_page_frame(answer: &mut HeaderMap, page: &str) {
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
    let place = page.split("://").nth(1).unwrap_or(page);
    let by_number =
        place.strip_prefix("localhost").map(|port| format!(" 127.0.0.1{port}")).unwrap_or_default();
    let own = HeaderValue::from_str(&format!("frame-ancestors 'self' {place}{by_number}")).ok();
    for policy in policies.into_iter().chain(own) {
        answer.append(header::CONTENT_SECURITY_POLICY, policy);
    }
}

/// The cookie with the attributes that let a browser keep it in a frame, partitioned by the framing site.
fn kept_in_frames(cookie: &HeaderValue) -> Option<HeaderValue> {
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

    fn asked(service: &str, destination: &str) -> HeaderMap {
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
        fit(&mut answer, &asked(service, destination), (&target, Some("http://localhost:8000")));
        answer
    }

    #[test]
    fn a_notebook_is_framed_by_the_servers_page_alone() {
        let answer = fitted("jupyter", "iframe");
        let policies: Vec<_> = answer.get_all("content-security-policy").iter().collect();
        assert_eq!(policies, [" report-uri /x", "frame-ancestors 'self' localhost:8000 127.0.0.1:8000"]);
        assert!(!answer.contains_key("x-frame-options"));
        let port = fitted("3000", "iframe");
        assert_eq!(port["x-frame-options"], "DENY", "what a job serves decides for itself");
    }

    #[test]
    fn cookies_are_changed_in_frames_alone() {
        let cookie = "_xsrf=1; Path=/; SameSite=None; Secure; Partitioned";
        let mark = "caisson-framed=1; Path=/; SameSite=None; Secure; Partitioned";
        for service in ["jupyter", "3000"] {
            let answer = fitted(service, "iframe");
            assert_eq!(answer.get_all("set-cookie").iter().collect::<Vec<_>>(), [cookie, mark]);
        }
        let mut inside = asked("3000", "empty");
        inside.insert("sec-fetch-site", HeaderValue::from_static("same-origin"));
        assert!(!is_framed(&inside));
        inside.insert("cookie", HeaderValue::from_static("a=b; caisson-framed=1"));
        assert!(is_framed(&inside), "asked for from inside of a frame");
        assert_eq!(fitted("3000", "document")["set-cookie"], "_xsrf=1; Path=/; SameSite=Lax");
        let target = Target::parse(&format!("{LABEL}-3000")).unwrap();
        for page in [None, Some("http://caisson.example")] {
            let mut answer = headers(&[("set-cookie", "_xsrf=1")]);
            fit(&mut answer, &asked("3000", "iframe"), (&target, page));
            assert_eq!(answer["set-cookie"], "_xsrf=1", "a browser would not take what we would make of it");
        }
        let mut answer = headers(&[("set-cookie", "_xsrf=1")]);
        fit(&mut answer, &asked("3000", "iframe"), (&target, Some("https://caisson.example")));
        assert_eq!(answer["set-cookie"], "_xsrf=1; SameSite=None; Secure; Partitioned");
    }
}
