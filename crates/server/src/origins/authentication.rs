//! Authenticates requests to the origins of jobs, if the server has keys.
//!
//! Browsers do not send the API's cookies to the origin of a job. A visitor therefore comes with a link that is
//! sealed for this view of this job (`?caisson-pass=`), which becomes a cookie of this origin, or with a key. The
//! job's own server never receives any of these.

use axum::extract::Request;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use job::Actor;
use orchestrator::SandboxCaller;

use super::error_pages::{self, Page};
use super::job_domains::JobDomains;
use super::target::{Service, Target};
use crate::access::{Access, AccessGrant, Caller, Guest, Rights, Share, View};
use crate::guard::Transport;

const COOKIE: &str = "caisson_pass";
const QUERY: &str = "caisson-pass";

/// What a visitor may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SandboxRights {
    /// Only watch.
    Watch,
    /// Send input, too.
    Use,
}

/// What an API key opens that may read the job but not work in its sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ReadOnlyKeys {
    Refused,
    /// The visitor may watch.
    Watch,
}

/// An authenticated visitor.
pub(super) struct Admitted {
    pub(super) rights: SandboxRights,
    /// The actor for the access log.
    pub(super) actor: Actor,
}

impl SandboxRights {
    /// Restricts the gate's visitor to watching if needed.
    pub(super) fn visitor(self, visitor: SandboxCaller) -> SandboxCaller {
        if self == Self::Watch { visitor.watching() } else { visitor }
    }
}

/// Authenticates a request, or returns the response to send instead.
pub(super) async fn check(
    access: &Access,
    (target, read_only): (Target, ReadOnlyKeys),
    request: &mut Request,
) -> Result<Admitted, Box<Response>> {
    if let Some(sealed) = in_query(request.uri()) {
        let open_link = open_link(access, target, sealed);
        let response = match (open_link, request.method() == Method::GET) {
            (Some(_), true) => redirect_with_cookie(sealed, request.uri()),
            _ => error_pages::answer(request.headers(), &Page::LinkExpired),
        };
        return Err(Box::new(response));
    }
    let headers = own_headers(request.headers());
    if headers.contains_key(header::AUTHORIZATION) {
        // A key of this server must not reach the job.
        request.headers_mut().remove(header::AUTHORIZATION);
    }
    let caller = match access.caller(&headers) {
        Ok(caller) => caller,
        Err(problem) => return Err(Box::new(problem.into_response())),
    };
    if let Some((caller, grant)) = caller {
        access.check_rate_limit(&caller).map_err(|problem| Box::new(problem.into_response()))?;
        let rights = if access.can_use_sandbox(&caller, target.job).await {
            Some(SandboxRights::Use)
        } else if read_only == ReadOnlyKeys::Watch {
            access.can_see(&caller, target.job).await.unwrap_or(false).then_some(SandboxRights::Watch)
        } else {
            None
        };
        if let Some(rights) = rights {
            request.extensions_mut().insert(grant);
            return Ok(Admitted { rights, actor: caller.actor() });
        }
    }
    let in_cookies = cookies(request.headers()).find_map(|sealed| open_link(access, target, sealed));
    match in_cookies {
        Some((guest, grant)) => {
            request.extensions_mut().insert(grant);
            let rights = if guest.rights == Rights::Use { SandboxRights::Use } else { SandboxRights::Watch };
            Ok(Admitted { rights, actor: Caller::Guest(guest).actor() })
        }
        None => Err(Box::new(error_pages::answer(
            request.headers(),
            &Page::NeedsKey(job_page_url(access, request, target)),
        ))),
    }
}

/// The headers of a request to a job, without an `Authorization` header of the job's own pages.
pub(super) fn own_headers(headers: &HeaderMap) -> HeaderMap {
    let is_key = |value: &HeaderValue| value.to_str().is_ok_and(|text| text.starts_with("Bearer caisson_"));
    let mut own = headers.clone();
    if !own.get(header::AUTHORIZATION).is_some_and(is_key) {
        own.remove(header::AUTHORIZATION);
    }
    own
}

/// The URL on a job's origin that a shared link leads to. There the link becomes a cookie. The origin is below
/// `localhost`, or below the job domain if there is one; a browser elsewhere could not resolve it, so then this
/// returns `None`.
pub(crate) fn entry_url(
    domains: &JobDomains,
    share: &Share,
    sealed: &str,
    transport: Transport,
    headers: &HeaderMap,
) -> Option<String> {
    let service = match share.view {
        View::Notebook => Service::Notebook,
        View::Port(port) => Service::Port(port),
        _ => return None,
    };
    let origin = domains.origin(&Target { job: share.job, service }, transport, headers)?;
    let page = if service == Service::Notebook { "lab/tree/.caisson/agent.ipynb" } else { "" };
    Some(format!("{origin}/{page}?{QUERY}={sealed}"))
}

/// Whether a sealed link grants access to this target.
pub(super) fn opens(access: &Access, target: Target, sealed: &str) -> bool {
    open_link(access, target, sealed).is_some()
}

/// The guest of a sealed link and its lease.
fn open_link(access: &Access, target: Target, sealed: &str) -> Option<(Guest, AccessGrant)> {
    let (share, until_ms) = Share::open_with_expiry(access.orchestrator(), sealed)?;
    let grant = share.grant(access.orchestrator(), until_ms);
    let view = match target.service {
        Service::Notebook => View::Notebook,
        Service::Port(port) => View::Port(port),
    };
    let is_it = share.job == target.job && share.view == view;
    is_it.then_some((Guest { rights: share.rights, shared_by: share.by }, grant))
}

fn in_query(uri: &Uri) -> Option<&str> {
    let pairs = uri.query()?.split('&').filter_map(|pair| pair.split_once('='));
    pairs.filter(|(name, _)| *name == QUERY).map(|(_, sealed)| sealed).next()
}

fn cookies(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    let lines = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
    let pairs = lines.flat_map(|line| line.split(';')).filter_map(|pair| pair.trim().split_once('='));
    pairs.filter(|(name, _)| *name == COOKIE).map(|(_, sealed)| sealed)
}

/// The `Set-Cookie` header that keeps a link. The web page shows these origins in frames, which browsers treat as
/// cross-site, so the cookie needs `SameSite=None; Secure; Partitioned`. On loopback browsers accept it without TLS.
pub(super) fn cookie(sealed: &str) -> Option<HeaderValue> {
    let text = format!("{COOKIE}={sealed}; Path=/; HttpOnly; SameSite=None; Secure; Partitioned");
    HeaderValue::try_from(text).ok()
}

/// Stores the link in a cookie and redirects to the URL without it, so that no page of the job can read it there.
fn redirect_with_cookie(sealed: &str, uri: &Uri) -> Response {
    let kept: Vec<&str> = uri
        .query()
        .unwrap_or_default()
        .split('&')
        .filter(|pair| pair.split_once('=').is_none_or(|(name, _)| name != QUERY))
        .collect();
    let location =
        if kept.is_empty() { uri.path().to_owned() } else { format!("{}?{}", uri.path(), kept.join("&")) };
    let headers = [
        (header::LOCATION, HeaderValue::try_from(location).ok()),
        (header::SET_COOKIE, cookie(sealed)),
        (header::CACHE_CONTROL, Some(HeaderValue::from_static("no-store"))),
        (header::REFERRER_POLICY, Some(HeaderValue::from_static("no-referrer"))),
    ];
    let mut response = StatusCode::SEE_OTHER.into_response();
    for (name, value) in headers {
        if let Some(value) = value {
            response.headers_mut().insert(name, value);
        }
    }
    response
}

/// The web page of the job, where a visitor can log in.
fn job_page_url(access: &Access, request: &Request, target: Target) -> String {
    let page = JobDomains::new(access.settings())
        .page(access.transport(request), request.headers())
        .unwrap_or_default();
    format!("{page}/#/jobs/{}", target.job)
}

#[cfg(test)]
mod tests {
    use job::ShareId;

    use super::*;
    use crate::access::Revocable;

    const JOB: &str = "01930d5e-7b1a-7c3e-9f00-3a5b1c2d4e6f";

    #[test]
    fn shared_link_leads_to_a_loopback_origin() {
        let with = Revocable::Link(ShareId::from("0f".to_owned()));
        let (view, rights) = (View::Port(80), Rights::Use);
        let share = Share { job: JOB.parse().unwrap(), view, rights, by: None, with };
        let at = |host: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::HOST, HeaderValue::from_str(host).unwrap());
            entry_url(&JobDomains::default(), &share, "x.1.y", Transport::Plain, &headers)
        };
        let expected = Some(format!("http://{JOB}-80.localhost:8000/?caisson-pass=x.1.y"));
        assert_eq!(at("localhost:8000"), expected);
        assert_eq!(at("127.0.0.1:8000"), expected);
        assert_eq!(at("caisson.example"), None);
    }

    #[test]
    fn link_is_moved_from_url_to_cookie() {
        let uri: Uri = "/lab?caisson-pass=x.1.y&reset".parse().unwrap();
        assert_eq!(in_query(&uri), Some("x.1.y"));
        let response = redirect_with_cookie("x.1.y", &uri);
        assert_eq!(response.headers()[header::LOCATION], "/lab?reset");
        let cookie = response.headers()[header::SET_COOKIE].to_str().unwrap().to_owned();
        assert!(cookie.starts_with("caisson_pass=x.1.y;") && cookie.contains("HttpOnly"), "{cookie}");
        let mut headers = HeaderMap::new();
        headers.insert(header::COOKIE, HeaderValue::from_static("a=b; caisson_pass=x.1.y"));
        assert_eq!(cookies(&headers).collect::<Vec<_>>(), ["x.1.y"]);
    }
}
