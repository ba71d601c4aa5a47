//! The host names below which jobs have their origins: `localhost`, and the job domain that the operator configures.
//! No other module deals with them.

use axum::http::{HeaderMap, header};

use super::target::Target;
use crate::guard::{Authority, Transport, parse_origin};
use crate::settings::ServerSettings;

const LOOPBACK: &str = "localhost";

/// The job domains and the URL of the server's own page.
#[derive(Debug, Clone, Default)]
pub(crate) struct JobDomains {
    domain: Option<String>,
    /// The URL of the server's own page for clients that use a public name.
    public: Option<String>,
}

impl JobDomains {
    pub(crate) fn new(settings: &ServerSettings) -> Self {
        let public = settings.public_url.as_deref().map(|url| url.trim_end_matches('/').to_owned());
        Self { domain: settings.job_domain.clone(), public }
    }

    /// The part of a host before a job domain: the label of an origin, or an empty string for the configured job
    /// domain itself. `None` for `localhost` itself and all other hosts, which belong to the API.
    pub(crate) fn label<'a>(&self, host: &'a str) -> Option<&'a str> {
        let below = |domain: &str| host.strip_suffix(domain).and_then(|rest| rest.strip_suffix('.'));
        if let Some(label) = below(LOOPBACK) {
            return Some(label);
        }
        let domain = self.domain.as_deref()?;
        if host == domain { Some("") } else { below(domain) }
    }

    /// The URL of an origin, as the sender of this request can reach it. `None` if there is no such name.
    pub(super) fn origin(
        &self,
        target: &Target,
        transport: Transport,
        headers: &HeaderMap,
    ) -> Option<String> {
        let host = Authority::parse(headers.get(header::HOST)?.to_str().ok()?)?;
        let scheme = scheme(transport);
        let port = |port: Option<u16>| port.map(|port| format!(":{port}")).unwrap_or_default();
        if host.is_loopback() {
            return Some(format!("{scheme}://{target}.{LOOPBACK}{}", port(host.port)));
        }
        let domain = self.domain.as_deref()?;
        let public = self.public.as_deref().and_then(parse_origin).map(|(public, _)| public.port);
        Some(format!("{scheme}://{target}.{domain}{}", port(public.unwrap_or(host.port))))
    }

    /// The URL of the server's own page, for a request to the origin of a job.
    pub(super) fn page(&self, transport: Transport, headers: &HeaderMap) -> Option<String> {
        let host = Authority::parse(headers.get(header::HOST)?.to_str().ok()?)?;
        if host.host.ends_with(&format!(".{LOOPBACK}")) {
            let port = host.port.map(|port| format!(":{port}")).unwrap_or_default();
            return Some(format!("{}://{LOOPBACK}{port}", scheme(transport)));
        }
        self.label(&host.host).and(self.public.clone())
    }
}

/// The URL scheme of a transport.
pub(super) fn scheme(transport: Transport) -> &'static str {
    if transport == Transport::Encrypted { "https" } else { "http" }
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    const LABEL: &str = "01930d5e-7b1a-7c3e-9f00-3a5b1c2d4e6f-80";

    fn names() -> JobDomains {
        JobDomains::new(&ServerSettings {
            job_domain: Some("jobs.example".into()),
            public_url: Some("https://caisson.example:8443/".into()),
            ..ServerSettings::default()
        })
    }

    fn at(host: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(header::HOST, HeaderValue::from_str(host).unwrap());
        headers
    }

    #[test]
    fn names_below_a_job_domain_never_reach_the_api() {
        for (host, label) in [
            ("a.localhost", Some("a")),
            ("a.b.localhost", Some("a.b")),
            ("a.jobs.example", Some("a")),
            ("jobs.example", Some("")),
            ("localhost", None),
            ("xjobs.example", None),
            ("caisson.example", None),
            ("jobs.example.evil", None),
        ] {
            assert_eq!(names().label(host), label, "{host}");
        }
        assert_eq!(JobDomains::default().label("a.jobs.example"), None);
    }

    #[test]
    fn origin_matches_the_domain_of_the_request() {
        let target = Target::parse(LABEL).unwrap();
        let origin = |names: &JobDomains, host: &str, transport| names.origin(&target, transport, &at(host));
        let loopback = format!("http://{LABEL}.localhost:8000");
        assert_eq!(origin(&names(), "127.0.0.1:8000", Transport::Plain), Some(loopback));
        let public = format!("https://{LABEL}.jobs.example:8443");
        assert_eq!(origin(&names(), "caisson.example:8443", Transport::Encrypted), Some(public));
        assert_eq!(origin(&JobDomains::default(), "caisson.example", Transport::Encrypted), None);
    }

    #[test]
    fn page_url_is_derived_from_the_origin() {
        let page = |names: &JobDomains, host: &str| names.page(Transport::Encrypted, &at(host));
        assert_eq!(page(&names(), "x.localhost:1"), Some("https://localhost:1".into()));
        assert_eq!(page(&names(), "x.jobs.example"), Some("https://caisson.example:8443".into()));
        assert_eq!(page(&names(), "elsewhere.example"), None);
    }
}
