//! The guard: checks `Host` and `Origin` of every request, and sets security headers on every response.
//!
//! On a laptop the API has no keys, so a web page must not be able to use it. The guard blocks two attacks. In a
//! cross-site request the browser sends the foreign site in `Origin`. After DNS rebinding, where an attacker's name
//! resolves to a loopback address, the browser sends that name in `Host`.

mod client_info;
pub(crate) mod csrf;
mod host_header;

use std::collections::HashSet;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::header::{self, HeaderName};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, Uri};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use crate::problem::Problem;
use crate::settings::ServerSettings;

use self::host_header::HostAndPort;

pub(crate) use self::client_info::{ClientInfo, ConnectionInfo, Transport};
pub(crate) use self::host_header::{Authority, parse_origin};

/// The content security policy of API responses.
pub(crate) const DATA_CSP: HeaderValue = HeaderValue::from_static(
    "default-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
);
/// The content security policy of content that comes out of a job. Even if a browser rendered it, it could do
/// nothing.
pub(crate) const JOB_CONTENT_CSP: HeaderValue = HeaderValue::from_static("sandbox; default-src 'none'");
/// The content security policy of the server's own pages.
pub(crate) const PAGE_CSP: HeaderValue = HeaderValue::from_static(
    "default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'self'; object-src 'none'",
);

/// The compiled rules.
#[derive(Debug)]
pub(crate) struct Guard {
    names: HashSet<String>,
    other_hosts: OtherHosts,
    public: Option<HostAndPort>,
    settings: Arc<ServerSettings>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OtherHosts {
    Refused,
    Allowed,
}

impl Guard {
    pub(crate) fn new(settings: &ServerSettings) -> Self {
        let public = settings
            .public_url
            .as_deref()
            .and_then(parse_origin)
            .map(|(site, port)| site.with_default_port(port));
        let mut names: HashSet<String> = settings
            .allowed_hosts
            .iter()
            .map(|name| name.trim_matches(['[', ']']).trim_end_matches('.').to_ascii_lowercase())
            .collect();
        let other_hosts = if names.remove("*") { OtherHosts::Allowed } else { OtherHosts::Refused };
        names.extend(public.iter().map(|site| site.host.clone()));
        Self { names, other_hosts, public, settings: Arc::new(settings.clone()) }
    }

    /// Records a rejected request in the access log.
    fn log_rejected_request(&self, request: &Request, status: StatusCode) {
        let connected = request.extensions().get::<ConnectionInfo>().copied();
        let from = ClientInfo::new(connected, request.headers()).client(&self.settings);
        let (method, path) = (request.method().as_str(), request.uri().path());
        self.settings.access_log.log_rejected(from, method, path, status.as_u16());
    }

    /// Rejects a request that a web page of another site may have sent.
    pub(crate) fn check(&self, method: &Method, uri: &Uri, headers: &HeaderMap) -> Result<(), Problem> {
        let host = self.check_host(uri, headers)?;
        for origin in headers.get_all(header::ORIGIN) {
            let ours = origin.to_str().ok().and_then(parse_origin).is_some_and(|(origin, port)| {
                let origin = origin.with_default_port(port);
                origin == host.clone().with_default_port(port) || self.public.as_ref() == Some(&origin)
            });
            if !ours {
                return Err(foreign_origin(&String::from_utf8_lossy(origin.as_bytes())));
            }
        }
        if csrf::lacks_origin(method, headers) {
            return Err(missing_origin());
        }
        // Browsers send `Sec-Fetch-Site` even where they omit `Origin`.
        let is_safe = csrf::only_reads(method, headers);
        match headers.get("sec-fetch-site").map(HeaderValue::as_bytes) {
            Some(site @ (b"cross-site" | b"same-site")) if !is_safe => {
                Err(foreign_origin(&String::from_utf8_lossy(site)))
            }
            _ => Ok(()),
        }
    }

    fn check_host(&self, uri: &Uri, headers: &HeaderMap) -> Result<Authority, Problem> {
        let named = headers.get_all(header::HOST).iter().map(HeaderValue::as_bytes);
        // A request line with an absolute URL contains a host as well.
        let in_request_line = uri.authority().map(|authority| authority.as_str().as_bytes());
        let mut found = None;
        for text in named.chain(in_request_line) {
            let authority = std::str::from_utf8(text).ok().and_then(Authority::parse);
            match authority.filter(|authority| self.is_allowed_host(authority)) {
                Some(authority) => found = Some(authority),
                None => return Err(foreign_host(&String::from_utf8_lossy(text))),
            }
        }
        found.ok_or_else(|| Problem::bad_request("host_missing", "the request has no `Host` header"))
    }

    fn is_allowed_host(&self, authority: &Authority) -> bool {
        authority.is_loopback()
            || self.other_hosts == OtherHosts::Allowed
            || self.names.contains(&authority.host)
    }
}

fn foreign_host(host: &str) -> Problem {
    let detail = format!(
        "`{}` is not an allowed host name; use localhost, or add the name to `allowed_hosts` in the configuration",
        host.escape_debug()
    );
    Problem::new(StatusCode::MISDIRECTED_REQUEST, "host_not_allowed", detail)
}

fn missing_origin() -> Problem {
    let detail = "a request with a session cookie that changes something or opens a WebSocket needs an `Origin` header; \
                  programs should send `Authorization: Bearer <key>` instead of a cookie";
    Problem::new(StatusCode::FORBIDDEN, csrf::CODE, detail)
}

fn foreign_origin(origin: &str) -> Problem {
    let detail = format!("cross-site requests (from `{}`) are refused", origin.escape_debug());
    Problem::new(StatusCode::FORBIDDEN, "origin_not_allowed", detail)
}

/// Middleware: rejects or passes a request, and sets the security headers on the response in both cases.
pub(crate) async fn guard(State(guard): State<Arc<Guard>>, request: Request, next: Next) -> Response {
    let mut response = match guard.check(request.method(), request.uri(), request.headers()) {
        Ok(()) => next.run(request).await,
        Err(problem) => {
            let response = problem.into_response();
            guard.log_rejected_request(&request, response.status());
            response
        }
    };
    add_headers(response.headers_mut());
    response
}

/// Middleware for listeners that check `Origin` themselves: rejects a request with a host name that is not allowed.
pub(crate) async fn host_guard(State(guard): State<Arc<Guard>>, request: Request, next: Next) -> Response {
    match guard.check_host(request.uri(), request.headers()) {
        Ok(_) => next.run(request).await,
        Err(problem) => {
            let response = problem.into_response();
            guard.log_rejected_request(&request, response.status());
            response
        }
    }
}

fn add_headers(headers: &mut HeaderMap) {
    const ALWAYS: [(HeaderName, HeaderValue); 4] = [
        (header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
        (header::REFERRER_POLICY, HeaderValue::from_static("no-referrer")),
        (header::X_FRAME_OPTIONS, HeaderValue::from_static("DENY")),
        (HeaderName::from_static("cross-origin-resource-policy"), HeaderValue::from_static("same-origin")),
    ];
    for (name, value) in ALWAYS {
        headers.insert(name, value);
    }
    headers.entry(header::CONTENT_SECURITY_POLICY).or_insert(DATA_CSP);
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(guard: &Guard, method: &Method, pairs: &[(&str, &str)]) -> &'static str {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(HeaderName::try_from(*name).unwrap(), HeaderValue::try_from(*value).unwrap());
        }
        match guard.check(method, &Uri::from_static("/v1/jobs"), &headers) {
            Ok(()) => "ok",
            Err(problem) => problem.code(),
        }
    }

    fn strict() -> Guard {
        Guard::new(&ServerSettings::default())
    }

    #[test]
    fn only_loopback_names_are_hosts_by_default() {
        for host in [
            "localhost",
            "localhost:8000",
            "LocalHost.:1",
            "127.0.0.1:8000",
            "127.0.0.2",
            "[::1]:8000",
            "[::1]",
        ] {
            assert_eq!(check(&strict(), &Method::GET, &[("host", host)]), "ok", "{host}");
        }
        let foreign = [
            "evil.example",
            "evil.example:8000",
            "localhost.evil.example",
            "a.localhost",
            "192.168.0.1",
            "10.0.0.1:80",
            "[2001:db8::1]",
            "",
            "localhost:99999",
            "localhost:80:80",
            "user@localhost",
            "[::1",
            "127.0.0.1.evil.example",
            "localhost/x",
            "[::1]x",
        ];
        for host in foreign {
            assert_eq!(check(&strict(), &Method::GET, &[("host", host)]), "host_not_allowed", "{host}");
        }
        assert_eq!(check(&strict(), &Method::GET, &[]), "host_missing");
        let twice = [("host", "localhost"), ("host", "evil.example")];
        assert_eq!(check(&strict(), &Method::GET, &twice), "host_not_allowed");
    }

    #[test]
    fn absolute_url_in_request_line_is_checked() {
        let mut headers = HeaderMap::new();
        headers.insert(header::HOST, HeaderValue::from_static("localhost"));
        let uri = Uri::from_static("http://evil.example/v1/jobs");
        assert_eq!(strict().check(&Method::GET, &uri, &headers).unwrap_err().code(), "host_not_allowed");
    }

    #[test]
    fn configured_names_are_hosts() {
        let settings = ServerSettings {
            allowed_hosts: vec!["Box.lan".into(), "192.168.0.7".into()],
            public_url: Some("https://caisson.example/base".into()),
            ..ServerSettings::default()
        };
        let guard = Guard::new(&settings);
        for host in ["box.lan:8000", "192.168.0.7", "caisson.example", "localhost"] {
            assert_eq!(check(&guard, &Method::GET, &[("host", host)]), "ok", "{host}");
        }
        assert_eq!(check(&guard, &Method::GET, &[("host", "other.lan")]), "host_not_allowed");
        let any =
            Guard::new(&ServerSettings { allowed_hosts: vec!["*".into()], ..ServerSettings::default() });
        assert_eq!(check(&any, &Method::GET, &[("host", "other.lan")]), "ok");
    }

    #[test]
    fn foreign_origins_are_rejected() {
        let table = [
            ("localhost:8000", "http://localhost:8000", "ok"),
            ("localhost", "http://localhost", "ok"),
            ("localhost:80", "http://localhost", "ok"),
            ("localhost", "https://localhost", "ok"),
            ("[::1]:8000", "http://[::1]:8000", "ok"),
            ("localhost:8000", "http://localhost:3000", "origin_not_allowed"),
            ("localhost:8000", "http://127.0.0.1:8000", "origin_not_allowed"),
            ("localhost:8000", "http://evil.example", "origin_not_allowed"),
            ("localhost:8000", "http://a.localhost:8000", "origin_not_allowed"),
            ("localhost:8000", "null", "origin_not_allowed"),
            ("localhost:8000", "", "origin_not_allowed"),
            ("localhost:8000", "file://localhost:8000", "origin_not_allowed"),
        ];
        for (host, origin, expected) in table {
            for method in &[Method::GET, Method::POST, Method::OPTIONS] {
                assert_eq!(
                    check(&strict(), method, &[("host", host), ("origin", origin)]),
                    expected,
                    "{host} {origin}"
                );
            }
        }
        let both = [("host", "localhost"), ("origin", "http://localhost"), ("origin", "http://evil.example")];
        assert_eq!(check(&strict(), &Method::POST, &both), "origin_not_allowed");
    }

    #[test]
    fn the_public_url_is_an_origin() {
        let settings = ServerSettings {
            public_url: Some("https://caisson.example".into()),
            ..ServerSettings::default()
        };
        let guard = Guard::new(&settings);
        let headers = [("host", "localhost:8000"), ("origin", "https://caisson.example")];
        assert_eq!(check(&guard, &Method::POST, &headers), "ok");
        let plain = [("host", "localhost:8000"), ("origin", "http://caisson.example")];
        assert_eq!(check(&guard, &Method::POST, &plain), "origin_not_allowed");
    }

    #[test]
    fn change_with_session_cookie_requires_an_origin() {
        let cookie = [("host", "localhost"), ("cookie", "caisson_session=a.1.b")];
        assert_eq!(check(&strict(), &Method::GET, &cookie), "ok");
        assert_eq!(check(&strict(), &Method::POST, &cookie), "origin_missing");
        let own = [cookie[0], cookie[1], ("origin", "http://localhost")];
        assert_eq!(check(&strict(), &Method::POST, &own), "ok");
        let foreign = [cookie[0], cookie[1], ("origin", "http://evil.example")];
        assert_eq!(check(&strict(), &Method::POST, &foreign), "origin_not_allowed");
    }

    #[test]
    fn other_sites_may_link_but_not_change() {
        for site in ["cross-site", "same-site"] {
            let headers = [("host", "localhost"), ("sec-fetch-site", site)];
            assert_eq!(check(&strict(), &Method::GET, &headers), "ok");
            assert_eq!(check(&strict(), &Method::POST, &headers), "origin_not_allowed");
            assert_eq!(check(&strict(), &Method::DELETE, &headers), "origin_not_allowed");
            let socket = [headers[0], headers[1], ("upgrade", "websocket")];
            assert_eq!(check(&strict(), &Method::GET, &socket), "origin_not_allowed");
        }
        let own = [("host", "localhost"), ("sec-fetch-site", "same-origin")];
        assert_eq!(check(&strict(), &Method::POST, &own), "ok");
    }
}
