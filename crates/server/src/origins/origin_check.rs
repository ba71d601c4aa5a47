//! Decides which web pages may send requests to what a job serves. Every request to the origin of a job or to the
//! second listener passes here. [`super::authentication`] authenticates the visitor.
//!
//! Requests from other web sites are rejected, so that a foreign page cannot talk to a user's notebook or dev
//! server. Pages of the same job may talk to each other.

use axum::http::{HeaderMap, HeaderValue, Method, header};

use super::error_pages::Page;
use super::job_domains::JobDomains;
use super::target::{Service, Target};
use crate::guard::csrf;
use crate::guard::{Authority, parse_origin};

/// Returns the error page for a request that is not permitted.
pub(crate) fn check(
    domains: &JobDomains,
    target: &Target,
    (method, headers): (&Method, &HeaderMap),
) -> Result<(), Page> {
    if csrf::lacks_origin(method, headers) {
        return Err(Page::MissingOrigin);
    }
    let host = headers.get(header::HOST).and_then(|host| Authority::parse(host.to_str().ok()?));
    for origin in headers.get_all(header::ORIGIN) {
        let is_own = origin.to_str().ok().and_then(parse_origin).is_some_and(|(origin, port)| {
            let same = host.as_ref().is_some_and(|host| {
                origin.clone().with_default_port(port) == host.clone().with_default_port(port)
            });
            same || of_same_job(domains, target, &origin)
        });
        if !is_own {
            return Err(Page::ForeignOrigin);
        }
    }
    // A notebook executes code, so pages elsewhere may link to it but not load anything of it.
    let value = |name: &str| headers.get(name).map(HeaderValue::as_bytes);
    let is_foreign = matches!(value("sec-fetch-site"), Some(b"cross-site" | b"same-site"));
    // The response headers limit who may frame it, and the browser enforces them (`framing.rs`).
    let is_document = matches!(value("sec-fetch-dest"), Some(b"document" | b"iframe"));
    let is_link = value("sec-fetch-mode") == Some(b"navigate") && is_document;
    if target.service == Service::Notebook && is_foreign && !is_link {
        return Err(Page::ForeignOrigin);
    }
    Ok(())
}

fn of_same_job(domains: &JobDomains, target: &Target, origin: &Authority) -> bool {
    let other = domains.label(&origin.host).and_then(Target::parse);
    // A notebook accepts only its own pages.
    target.service != Service::Notebook && other.is_some_and(|other| other.job == target.job)
}

#[cfg(test)]
mod tests {
    use super::*;

    const JOB: &str = "01930d5e-7b1a-7c3e-9f00-3a5b1c2d4e6f";
    const OTHER: &str = "01930d5e-7b1a-7c3e-9f00-3a5b1c2d4e70";

    fn is_let_through(label: &str, pairs: &[(&'static str, &str)]) -> bool {
        let mut headers = HeaderMap::new();
        let host = format!("{label}.localhost:8000");
        headers.insert(header::HOST, HeaderValue::from_str(&host).unwrap());
        for (name, value) in pairs {
            headers.append(*name, HeaderValue::from_str(value).unwrap());
        }
        check(&JobDomains::default(), &Target::parse(label).unwrap(), (&Method::GET, &headers)).is_ok()
    }

    #[test]
    fn only_pages_of_the_same_job_are_allowed() {
        let (port, notebook) = (format!("{JOB}-80"), format!("{JOB}-jupyter"));
        let table = [
            (&port, format!("http://{JOB}-80.localhost:8000"), true),
            (&port, format!("http://{JOB}-3000.localhost:8000"), true),
            (&port, format!("http://{OTHER}-80.localhost:8000"), false),
            (&port, "http://localhost:8000".into(), false),
            (&port, "https://evil.example".into(), false),
            (&port, "null".into(), false),
            (&notebook, format!("http://{JOB}-jupyter.localhost:8000"), true),
            (&notebook, format!("http://{JOB}-80.localhost:8000"), false),
        ];
        for (label, origin, expected) in table {
            assert_eq!(is_let_through(label, &[("origin", &origin)]), expected, "{label} {origin}");
        }
        assert!(is_let_through(&port, &[]) && is_let_through(&notebook, &[]));
    }

    #[test]
    fn change_with_pass_cookie_requires_an_origin() {
        let target = Target::parse(&format!("{JOB}-80")).unwrap();
        let mut headers = HeaderMap::new();
        headers.insert(header::HOST, HeaderValue::from_str(&format!("{target}.localhost")).unwrap());
        headers.insert(header::COOKIE, HeaderValue::from_static("caisson_pass=x"));
        let domains = JobDomains::default();
        assert_eq!(check(&domains, &target, (&Method::GET, &headers)), Ok(()));
        assert_eq!(check(&domains, &target, (&Method::POST, &headers)), Err(Page::MissingOrigin));
        headers.insert(header::ORIGIN, HeaderValue::from_str(&format!("http://{target}.localhost")).unwrap());
        assert_eq!(check(&domains, &target, (&Method::POST, &headers)), Ok(()));
    }

    #[test]
    fn notebook_may_only_be_linked_to_and_framed() {
        let notebook = format!("{JOB}-jupyter");
        let link = [
            ("sec-fetch-site", "cross-site"),
            ("sec-fetch-mode", "navigate"),
            ("sec-fetch-dest", "document"),
        ];
        assert!(is_let_through(&notebook, &link));
        let script =
            [("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "no-cors"), ("sec-fetch-dest", "script")];
        assert!(!is_let_through(&notebook, &script));
        let frame =
            [("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "navigate"), ("sec-fetch-dest", "iframe")];
        assert!(is_let_through(&notebook, &frame), "the answer says who may show it");
        let posted = [frame[0], ("sec-fetch-mode", "cors"), frame[2]];
        assert!(!is_let_through(&notebook, &posted));
    }
}
