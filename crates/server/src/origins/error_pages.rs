//! Error pages for the origins of jobs and for unknown addresses. They say what is wrong, and reload where that may help.

use axum::body::Body;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use orchestrator::{OrchestratorError, StoreError};
use protocol::ProtocolError;

use super::target::{Service, Target};
use crate::guard::csrf;
use crate::problem::Problem;

const POLICY: HeaderValue = HeaderValue::from_static(
    "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'",
);
const RETRY_S: u32 = 1;

/// An error page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Page {
    /// The host name refers to no job.
    UnknownOrigin,
    JobNotFound,
    JobEnded,
    /// The job has no sandbox now. Contains the job's state.
    NoSandbox(String),
    NotListening(u16),
    Starting,
    /// The notebook server could not be started.
    NotebookFailed(String),
    /// The connection broke before a response arrived.
    Broken(Target),
    /// The request comes from another web site.
    ForeignOrigin,
    /// The request authenticates with a cookie and does not state its origin.
    MissingOrigin,
    /// The server requires a key. Contains the URL where the user can log in.
    NeedsKey(String),
    /// A port for the newest job requires a key. Contains the URL where the user can log in.
    LoginElsewhere(String),
    /// A port for the newest job does not have this path.
    NotOnThisPort,
    /// The shared link has ended.
    LinkExpired,
    NoRunningJob,
    /// No target is selected on the preview listener.
    NoTargetSelected,
    /// An internal error.
    InternalError(String),
}

/// Whether the page reloads by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reload {
    Soon,
    Never,
}

impl Page {
    /// The page that explains an error.
    pub(crate) fn of_error(target: Target, error: &OrchestratorError) -> Self {
        match error {
            OrchestratorError::Store(StoreError::NoJob(_)) | OrchestratorError::NoSandbox(_) => {
                Self::JobNotFound
            }
            OrchestratorError::WrongState { state, .. } if state.is_over() => Self::JobEnded,
            OrchestratorError::WrongState { state, .. } => {
                Self::NoSandbox(format!("{state:?}").to_lowercase())
            }
            OrchestratorError::Link(ProtocolError::Refused(why)) => match target.service {
                Service::Port(port) => Self::NotListening(port),
                Service::Notebook => Self::NotebookFailed(why.clone()),
            },
            OrchestratorError::Link(_) => Self::Broken(target),
            other => Self::InternalError(other.to_string()),
        }
    }

    /// Where the user can log in.
    fn login_url(&self) -> Option<&str> {
        match self {
            Self::NeedsKey(url) | Self::LoginElsewhere(url) => Some(url),
            _ => None,
        }
    }

    fn content(&self) -> (StatusCode, &'static str, &'static str, String, Reload) {
        use Reload::{Never, Soon};
        match self {
            Self::UnknownOrigin => (
                StatusCode::NOT_FOUND,
                "origin_not_found",
                "Not a preview address",
                "Preview addresses look like <job>-jupyter.localhost and <job>-<port>.localhost.".into(),
                Never,
            ),
            Self::JobNotFound => (
                StatusCode::NOT_FOUND,
                "job_not_found",
                "Job not found",
                "It may have been deleted.".into(),
                Never,
            ),
            Self::JobEnded => (
                StatusCode::GONE,
                "job_over",
                "This job has ended",
                "Its sandbox no longer exists. Its files are in the result.".into(),
                Never,
            ),
            Self::NoSandbox(state) => (
                StatusCode::SERVICE_UNAVAILABLE,
                "no_sandbox",
                "The sandbox is not ready yet",
                format!("State: {state}. This page reloads automatically."),
                Soon,
            ),
            Self::NotListening(port) => (
                StatusCode::BAD_GATEWAY,
                "port_unreachable",
                "Waiting for a server in the sandbox",
                format!("Nothing listens on port {port} yet. This page reloads automatically."),
                Soon,
            ),
            Self::Starting => (
                StatusCode::SERVICE_UNAVAILABLE,
                "starting",
                "JupyterLab is starting",
                "This takes a few seconds. The page reloads automatically.".into(),
                Soon,
            ),
            Self::NotebookFailed(why) => (
                StatusCode::BAD_GATEWAY,
                "not_started",
                "Cannot start JupyterLab",
                why.clone(),
                Never,
            ),
            Self::Broken(target) => {
                let what = match target.service {
                    Service::Notebook => "The notebook server".to_owned(),
                    Service::Port(port) => format!("The server on port {port}"),
                };
                let text = format!("{what} closed the connection without a valid response.");
                (StatusCode::BAD_GATEWAY, "broken", "Connection lost", text, Soon)
            }
            Self::ForeignOrigin => (
                StatusCode::FORBIDDEN,
                "origin_not_allowed",
                "Cross-site request refused",
                "Only the pages of the job itself may load this address from a script. Open it directly instead.".into(),
                Never,
            ),
            Self::MissingOrigin => (
                StatusCode::FORBIDDEN,
                csrf::CODE,
                "The request has no `Origin` header",
                "A request with a session cookie that changes something needs an `Origin` header, which browsers send."
                    .into(),
                Never,
            ),
            Self::NeedsKey(url) => (
                StatusCode::UNAUTHORIZED,
                "key_missing",
                "Login required",
                format!("Log in and open the job at {url}, or ask for a share link."),
                Never,
            ),
            Self::LoginElsewhere(url) => (
                StatusCode::UNAUTHORIZED,
                "key_missing",
                "Login required",
                format!(
                    "This address shows the newest running job. Log in at {url} and reload this page. Programs send \
                     `Authorization: Bearer <key>`."
                ),
                Never,
            ),
            Self::NotOnThisPort => (
                StatusCode::NOT_FOUND,
                "route_not_found",
                "Not found",
                "This address has only the desktop of the newest running job: open / or /vnc.html.".into(),
                Never,
            ),
            Self::LinkExpired => (
                StatusCode::GONE,
                "share_over",
                "This link is no longer valid",
                "Ask the sender for a new one.".into(),
                Never,
            ),
            Self::NoRunningJob => (
                StatusCode::SERVICE_UNAVAILABLE,
                "nothing_runs",
                "No job is running",
                "This address shows the newest running job. The page reloads automatically.".into(),
                Soon,
            ),
            Self::NoTargetSelected => (
                StatusCode::NOT_FOUND,
                "nothing_chosen",
                "No preview selected",
                "Open /_caisson/open/<job>-jupyter or /_caisson/open/<job>-<port> on this address.".into(),
                Never,
            ),
            Self::InternalError(why) => (
                StatusCode::INTERNAL_SERVER_ERROR,
                "internal_error",
                "Server error",
                why.clone(),
                Never,
            ),
        }
    }
}

/// The response: a page for browsers, a problem for programs.
pub(crate) fn answer(request_headers: &HeaderMap, page: &Page) -> Response {
    let (status, code, title, text, again) = page.content();
    if !wants_page(request_headers) {
        return Problem::new(status, code, text).into_response();
    }
    html(status, code, title, &format!("<p>{}</p>", with_link(&text, page.login_url())), again)
}

/// The page for an unknown address of this server. `None` if the client is a program.
pub(crate) fn unknown_address(request_headers: &HeaderMap, path: &str) -> Option<Response> {
    let content = format!(
        "<p>There is nothing at {}.</p>\
         <p><a href=\"/\">Open Caisson</a> \u{b7} <a href=\"/docs\">API documentation</a></p>",
        escape(path)
    );
    wants_page(request_headers)
        .then(|| html(StatusCode::NOT_FOUND, "route_not_found", "Page not found", &content, Reload::Never))
}

/// A page. `content` is HTML.
fn html(status: StatusCode, code: &str, title: &str, content: &str, again: Reload) -> Response {
    let refresh = match again {
        Reload::Soon => format!("<meta http-equiv=\"refresh\" content=\"{RETRY_S}\">"),
        Reload::Never => String::new(),
    };
    let spinner = if again == Reload::Soon { "<div class=\"spin\"></div>" } else { "" };
    let html = format!(
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\">{refresh}\
         <meta name=\"viewport\" content=\"width=device-width\"><title>{title}</title><style>{STYLE}</style></head>\
         <body><main>{spinner}<h1>{title}</h1>{content}<small>caisson \u{b7} {code}</small></main></body></html>"
    );
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8")),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-store")),
    ];
    (status, headers, Body::from(html)).into_response()
}

/// Whether the client is a browser that opens a page.
pub(super) fn wants_page(request_headers: &HeaderMap) -> bool {
    let accept = request_headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok());
    accept.is_some_and(|accept| accept.contains("text/html"))
}

/// The text as HTML, with a link where it has the URL.
fn with_link(text: &str, url: Option<&str>) -> String {
    let (text, url) = (escape(text), url.map(escape).filter(|url| url.starts_with("http")));
    url.map_or_else(|| text.clone(), |url| text.replacen(&url, &format!("<a href=\"{url}\">{url}</a>"), 1))
}

const STYLE: &str = "\
:root{color-scheme:light dark}body{margin:0;min-height:100vh;display:grid;place-items:center;\
font:16px/1.5 system-ui,sans-serif;background:#f4f6f8;color:#1c2733}main{max-width:34rem;padding:2.5rem;\
text-align:center}h1{font-size:1.35rem;margin:.5rem 0}p{margin:.5rem 0 1.5rem;white-space:pre-line;\
overflow-wrap:anywhere}a{color:inherit}small{opacity:.55}.spin{width:2rem;height:2rem;margin:0 auto 1rem;border-radius:50%;\
border:3px solid #9db4c8;border-top-color:#1f6fb2;animation:t 1s linear infinite}\
@keyframes t{to{transform:rotate(1turn)}}@media(prefers-color-scheme:dark){body{background:#131a21;color:#dbe4ec}}";

fn escape(text: &str) -> String {
    let text = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    text.replace('"', "&quot;").replace('\'', "&#39;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn browsers_get_a_page_and_programs_a_problem() {
        let mut request_headers = HeaderMap::new();
        let page = Page::NotListening(5173);
        let problem = answer(&request_headers, &page);
        assert_eq!(problem.headers()[header::CONTENT_TYPE], "application/problem+json");
        request_headers.insert(header::ACCEPT, HeaderValue::from_static("text/html,*/*"));
        let html = answer(&request_headers, &page);
        assert_eq!(html.status(), StatusCode::BAD_GATEWAY);
        assert!(html.headers()[header::CONTENT_TYPE].to_str().unwrap().starts_with("text/html"));
    }

    #[test]
    fn error_page_text_is_escaped() {
        assert_eq!(escape("<script>&\"'"), "&lt;script&gt;&amp;&quot;&#39;");
    }

    #[test]
    fn login_address_is_a_link() {
        let url = Some("http://localhost:8000/#/jobs/1");
        assert_eq!(
            with_link("Log in at http://localhost:8000/#/jobs/1, <please>.", url),
            "Log in at <a href=\"http://localhost:8000/#/jobs/1\">http://localhost:8000/#/jobs/1</a>, &lt;please&gt;."
        );
        assert_eq!(with_link("Log in at /#/jobs/1.", Some("/#/jobs/1")), "Log in at /#/jobs/1.");
        assert_eq!(with_link("No link.", None), "No link.");
    }
}
