//! What each route asks of a caller. A route that nobody thought of asks for more rather than less: what is not a plain
//! look needs the right to change.

use axum::http::Method;
use orchestrator::Role;

/// What a caller must be allowed to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Need {
    /// Nothing: it tells nothing of anybody's work.
    Nothing,
    /// To look at jobs.
    Look,
    /// To look at the server as a whole.
    Survey,
    /// To hand in jobs.
    Submit,
    /// To change jobs, or to work inside of them.
    Change,
    /// To look after the server.
    Govern,
}

/// These are the same for everybody.
const OPEN: [&str; 9] = [
    "/",
    "/healthz",
    "/readyz",
    "/docs",
    "/openapi.json",
    "/v1/session",
    "/share/{link}",
    "/v1/login",
    "/v1/login/callback",
];

/// Looks by their method, but one works inside a sandbox through them. Of a desktop, who may not work sees the screen.
const LIVE: [&str; 3] = ["/terminal", "/exec/stream", "/ports/{port}"];

/// What tells of the work of all.
const SURVEYS: [&str; 2] = ["/metrics", "/v1/doctor"];

/// Where jobs and sandboxes are handed in.
const SUBMIT: [&str; 5] = ["/schedule", "/submit", "/v1/jobs", "/v1/demo", "/v1/sandboxes"];

/// What a route asks for.
pub(crate) fn need(method: &Method, route: &str) -> Need {
    let looks = matches!(*method, Method::GET | Method::HEAD);
    let is_page = ["/assets/", "/app/"].iter().any(|start| route.starts_with(start));
    if OPEN.contains(&route) || is_page {
        return Need::Nothing;
    }
    if route.starts_with("/v1/keys") || route == "/v1/access-log" {
        return Need::Govern;
    }
    if looks {
        if SURVEYS.contains(&route) {
            return Need::Survey;
        }
        let is_live = LIVE.iter().any(|end| route.ends_with(end));
        return if is_live { Need::Change } else { Need::Look };
    }
    if SUBMIT.contains(&route) || route.ends_with("/retry") { Need::Submit } else { Need::Change }
}

impl Need {
    /// Whether a role has it, for some jobs at least.
    pub(crate) fn is_met_by(self, role: Role) -> bool {
        match self {
            Self::Nothing | Self::Look => true,
            Self::Survey => role != Role::Submitter,
            Self::Submit | Self::Change => role != Role::Viewer,
            Self::Govern => role == Role::Admin,
        }
    }

    /// For the OpenAPI document.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Nothing => "nothing",
            Self::Look => "look",
            Self::Survey => "survey",
            Self::Submit => "submit",
            Self::Change => "change",
            Self::Govern => "govern",
        }
    }

    /// For the refusal.
    pub(crate) fn words(self) -> &'static str {
        match self {
            Self::Nothing => "nothing",
            Self::Look => "look at jobs",
            Self::Survey => "look at the server as a whole",
            Self::Submit => "hand in jobs",
            Self::Change => "change a job or work in its sandbox",
            Self::Govern => "look after keys",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn routes_ask_for_what_they_do() {
        let table = [
            (Method::GET, "/healthz", Need::Nothing),
            (Method::GET, "/", Need::Nothing),
            (Method::GET, "/app/{*path}", Need::Nothing),
            (Method::GET, "/assets/style.css", Need::Nothing),
            (Method::GET, "/v1/jobs", Need::Look),
            (Method::GET, "/metrics", Need::Survey),
            (Method::GET, "/v1/jobs/{id}/files/{*path}", Need::Look),
            (Method::GET, "/v1/jobs/{id}/terminal", Need::Change),
            (Method::GET, "/v1/jobs/{id}/desktop/socket", Need::Look),
            (Method::GET, "/v1/sandboxes/{id}/exec/stream", Need::Change),
            (Method::POST, "/schedule", Need::Submit),
            (Method::POST, "/v1/jobs/{id}/retry", Need::Submit),
            (Method::POST, "/v1/jobs/{id}/cancel", Need::Change),
            (Method::PUT, "/v1/jobs/{id}/files/{*path}", Need::Change),
            (Method::GET, "/v1/keys", Need::Govern),
            (Method::DELETE, "/v1/keys/{name}", Need::Govern),
        ];
        for (method, route, expected) in table {
            assert_eq!(need(&method, route), expected, "{method} {route}");
        }
    }

    #[test]
    fn a_viewer_only_looks_and_only_admins_govern() {
        for role in Role::ALL {
            assert!(Need::Look.is_met_by(role));
            assert_eq!(Need::Change.is_met_by(role), role != Role::Viewer);
            assert_eq!(Need::Survey.is_met_by(role), role != Role::Submitter);
            assert_eq!(Need::Govern.is_met_by(role), role == Role::Admin);
        }
    }
}
