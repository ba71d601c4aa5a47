//! Error pages for the origins of jobs. They say what is wrong, and reload where that may help.

use axum::body::Body;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use orchestrator::OrchestratorError;
use protocol::ProtocolError;

use super::target::{Service, Target};
use crate::guard::csrf;
use crate::problem::Problem;

const POLICY: HeaderValue = HeaderValue::from_static("default-src 'none'; style-src 'unsafe-inline'");
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
            OrchestratorError::NoJob(_) | OrchestratorError::NoSandbox(_) => Self::JobNotFound,
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

    fn content(&self) -> (StatusCode, &'static str, &'static str, String, Reload) {
        use Reload::{Never, Soon};
        match self {
            Self::UnknownOrigin => (
                StatusCode::NOT_FOUND,
                "origin_not_found",
                "No job has this name",
                "Addresses of jobs look like <job>-jupyter.localhost and <job>-<port>.localhost.".into(),
                Never,
            ),
            Self::JobNotFound => (
                StatusCode::NOT_FOUND,
                "job_not_found",
                "There is no such job",
                "Was it removed?".into(),
                Never,
            ),
            Self::JobEnded => (
                StatusCode::GONE,
                "job_over",
                "This job is over",
                "Its sandbox is gone, and with it what it served. Its files are in the result.".into(),
                Never,
            ),
            Self::NoSandbox(state) => (
                StatusCode::SERVICE_UNAVAILABLE,
                "no_sandbox",
                "The job has no sandbox yet",
                format!("It is {state}. This page looks again by itself."),
                Soon,
            ),
            Self::NotListening(port) => (
                StatusCode::BAD_GATEWAY,
                "port_unreachable",
                "Waiting for the server in the sandbox",
                format!("Nothing listens on port {port} yet. This page looks again by itself."),
                Soon,
            ),
            Self::Starting => (
                StatusCode::SERVICE_UNAVAILABLE,
                "starting",
                "JupyterLab is starting",
                "This takes a few seconds. The page looks again by itself.".into(),
                Soon,
            ),
            Self::NotebookFailed(why) => (
                StatusCode::BAD_GATEWAY,
                "not_started",
                "JupyterLab could not be started",
                why.clone(),
                Never,
            ),
            Self::Broken(target) => {
                let what = match target.service {
                    Service::Notebook => "The notebook server".to_owned(),
                    Service::Port(port) => format!("What listens on port {port}"),
                };
                let text = format!("{what} closed the connection without an answer that could be read.");
                (StatusCode::BAD_GATEWAY, "broken", "The connection broke", text, Soon)
            }
            Self::ForeignOrigin => (
                StatusCode::FORBIDDEN,
                "origin_not_allowed",
                "Another web site asked for this",
                "What a job serves is for its own pages and for people who open it.".into(),
                Never,
            ),
            Self::MissingOrigin => (
                StatusCode::FORBIDDEN,
                csrf::CODE,
                "The request does not say where it comes from",
                "A request by cookie that changes something needs an `Origin` header, as browsers send it."
                    .into(),
                Never,
            ),
            Self::NeedsKey(url) => (
                StatusCode::UNAUTHORIZED,
                "key_missing",
                "This server asks for a key",
                format!("Log in and open the job at {url}, or ask for a link that shows this to you."),
                Never,
            ),
            Self::LinkExpired => (
                StatusCode::GONE,
                "share_over",
                "This link has ended",
                "Ask whoever sent it for a new one.".into(),
                Never,
            ),
            Self::NoRunningJob => (
                StatusCode::SERVICE_UNAVAILABLE,
                "nothing_runs",
                "No job runs",
                "The newest job that runs is shown here. This page looks again by itself.".into(),
                Soon,
            ),
            Self::NoTargetSelected => (
                StatusCode::NOT_FOUND,
                "nothing_chosen",
                "Nothing was chosen",
                "Open /_caisson/open/<job>-jupyter or /_caisson/open/<job>-<port> here.".into(),
                Never,
            ),
            Self::InternalError(why) => (
                StatusCode::INTERNAL_SERVER_ERROR,
                "internal_error",
                "The server is in trouble",
                why.clone(),
                Never,
            ),
        }
    }
}

/// The response: a page for browsers, a problem for programs.
pub(crate) fn answer(request_headers: &HeaderMap, page: &Page) -> Response {
    let (status, code, title, text, again) = page.content();
    let wants_page = request_headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok());
    if !wants_page.is_some_and(|accept| accept.contains("text/html")) {
        return Problem::new(status, code, text).into_response();
    }
    let refresh = match again {
        Reload::Soon => format!("<meta http-equiv=\"refresh\" content=\"{RETRY_S}\">"),
        Reload::Never => String::new(),
    };
    let spinner = if again == Reload::Soon { "<div class=\"spin\"></div>" } else { "" };
    let html = format!(
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\">{refresh}\
         <meta name=\"viewport\" content=\"width=device-width\"><title>{title}</title><style>{STYLE}</style></head>\
         <body><main>{spinner}<h1>{title}</h1><p>{}</p><small>caisson \u{b7} {code}</small></main></body></html>",
        escape(&text)
    );
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8")),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-store")),
    ];
    (status, headers, Body::from(html)).into_response()
}

const STYLE: &str = "\
:root{color-scheme:light dark}body{margin:0;min-height:100vh;display:grid;place-items:center;\
font:16px/1.5 system-ui,sans-serif;background:#f4f6f8;color:#1c2733}main{max-width:34rem;padding:2.5rem;\
text-align:center}h1{font-size:1.35rem;margin:.5rem 0}p{margin:.5rem 0 1.5rem;white-space:pre-line;\
overflow-wrap:anywhere}small{opacity:.55}.spin{width:2rem;height:2rem;margin:0 auto 1rem;border-radius:50%;\
border:3px solid #9db4c8;border-top-color:#1f6fb2;animation:t 1s linear infinite}\
@keyframes t{to{transform:rotate(1turn)}}@media(prefers-color-scheme:dark){body{background:#131a21;color:#dbe4ec}}";

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
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
        assert_eq!(escape("<script>&\""), "&lt;script&gt;&amp;&quot;");
    }
}
