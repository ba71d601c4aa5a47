//! Fixed ports that show the newest running job: its desktop, its JupyterLab, and plain VNC.
//!
//! If the server has keys, a visitor sees the newest job that the key may read. The ports have no login of their own:
//! what they serve comes from jobs, so a page that asks for a key here could not be trusted. Browsers share the cookies
//! of a host between its ports, so a login at the API counts here, too.

mod desktop;
mod notebook;
mod vnc;

use std::sync::Arc;

use axum::extract::Request;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use job::JobView;
use orchestrator::Orchestrator;

use super::authentication::own_headers;
use super::error_pages::{self, Page};
use crate::access::{Access, LogCaller, LogKind};
use crate::guard::{Authority, parse_origin};
use crate::settings::ServerSettings;

pub use desktop::exposed_desktop;
pub use notebook::exposed_notebook;
pub use vnc::forward_desktop;

/// What the ports for browsers have in common.
struct FixedPort {
    access: Access,
    /// The port of the API, where visitors log in.
    api_port: u16,
}

impl FixedPort {
    fn new(orchestrator: Orchestrator, settings: &ServerSettings, api_port: u16) -> Self {
        Self { access: Access::new(orchestrator, Arc::new(settings.clone())), api_port }
    }

    /// The newest running job that the sender of a request may read, or the page to show instead.
    async fn newest_job(&self, headers: &HeaderMap) -> Result<JobView, Page> {
        let Ok(Some((caller, _))) = self.access.caller(&own_headers(headers)) else {
            return Err(Page::LoginElsewhere(login_url(self.access.settings(), headers, self.api_port)));
        };
        match self.access.orchestrator().newest_running(caller.restricted_to()).await {
            Ok(Some(job)) => Ok(job),
            Ok(None) => Err(Page::NoRunningJob),
            Err(error) => Err(Page::InternalError(error.to_string())),
        }
    }

    /// Answers with an error page. A visitor without a key is logged, as at the API.
    fn refuse(&self, request: &Request, page: &Page) -> Response {
        // A program learns what is wrong with its key.
        let response = match self.access.caller(&own_headers(request.headers())) {
            Err(problem) if !error_pages::wants_page(request.headers()) => problem.into_response(),
            _ => error_pages::answer(request.headers(), page),
        };
        if response.status() == StatusCode::UNAUTHORIZED {
            let path = format!("//newest{}", request.uri().path());
            self.access.log_request(
                LogCaller::Nobody,
                self.access.client(request),
                (request.method(), &path),
                (response.status(), LogKind::Plain),
            );
        }
        response
    }
}

/// The URL of the API's page, under the host name that the visitor uses: a login under another name would not count.
fn login_url(settings: &ServerSettings, headers: &HeaderMap, api_port: u16) -> String {
    let host = headers.get(header::HOST).and_then(|host| Authority::parse(host.to_str().ok()?));
    let host = host.map_or_else(|| "localhost".to_owned(), |host| host.host);
    if let Some(public) = &settings.public_url
        && parse_origin(public).is_some_and(|(authority, _)| authority.host == host)
    {
        return public.clone();
    }
    let scheme = if settings.certificate.is_some() { "https" } else { "http" };
    let host = if host.contains(':') { format!("[{host}]") } else { host };
    format!("{scheme}://{host}:{api_port}/")
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    #[test]
    fn visitors_log_in_under_the_host_name_that_they_use() {
        let settings = ServerSettings {
            public_url: Some("https://caisson.example:8443".into()),
            ..ServerSettings::default()
        };
        for (host, expected) in [
            ("192.0.2.7:6080", "http://192.0.2.7:8000/"),
            ("[::1]:8888", "http://[::1]:8000/"),
            ("Localhost:6080", "http://localhost:8000/"),
            ("caisson.example:6080", "https://caisson.example:8443"),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(header::HOST, HeaderValue::from_str(host).unwrap());
            assert_eq!(login_url(&settings, &headers, 8000), expected);
        }
    }
}
