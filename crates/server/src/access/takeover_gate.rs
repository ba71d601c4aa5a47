//! Restricts a sandbox that a person has taken over to the clients that present the takeover token. Every request to
//! a path below a job passes through [`guard`]. WebSocket handlers keep the [`Gate`] and check it for each message.

use axum::extract::{Request, State};
use axum::http::header::{self, HeaderName};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, Uri};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use orchestrator::{Gate, Orchestrator, SandboxCaller};

use super::{Caller, RouteAccess, Subject};
use crate::guard::Transport;
use crate::problem::Problem;

/// The header, cookie and query parameter that carry a token.
pub(crate) const HEADER: HeaderName = HeaderName::from_static("x-caisson-takeover");
pub(crate) const COOKIE: &str = "caisson-takeover";
pub(crate) const QUERY: &str = "takeover";
/// The prefix of every token.
const TOKEN: &str = "takeover-";

/// Collects the takeover tokens of a request.
pub(crate) fn caller(uri: &Uri, headers: &HeaderMap) -> SandboxCaller {
    let in_headers = headers.get_all(HEADER).iter().filter_map(|value| value.to_str().ok());
    let cookies = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
    let in_cookies = cookies
        .flat_map(|line| line.split(';'))
        .filter_map(|pair| pair.trim().split_once('=').filter(|(name, _)| *name == COOKIE))
        .map(|(_, token)| token);
    let in_query = pairs(uri).filter_map(|(name, value)| (name == QUERY).then_some(value));
    SandboxCaller::with_tokens(in_headers.chain(in_cookies).chain(in_query).map(ToOwned::to_owned).collect())
}

/// The parameters of a query, not decoded: tokens need no decoding.
fn pairs(uri: &Uri) -> impl Iterator<Item = (&str, &str)> {
    uri.query().into_iter().flat_map(|query| query.split('&')).filter_map(|pair| pair.split_once('='))
}

/// The URI without the token parameter, as handlers see it.
pub(crate) fn without_token(uri: &Uri) -> Uri {
    without(uri, |(name, _)| name == QUERY)
}

/// The URI without a `takeover` parameter that holds a token. A parameter of that name with another value stays,
/// because it may belong to the job's own application.
pub(crate) fn without_takeover_token(uri: &Uri) -> Uri {
    without(uri, |(name, value)| name == QUERY && value.starts_with(TOKEN))
}

fn without(uri: &Uri, is_it: impl Fn((&str, &str)) -> bool) -> Uri {
    if !pairs(uri).any(&is_it) {
        return uri.clone();
    }
    let kept: Vec<&str> = uri
        .query()
        .unwrap_or_default()
        .split('&')
        .filter(|pair| pair.split_once('=').is_none_or(|pair| !is_it(pair)))
        .collect();
    let path = match kept.is_empty() {
        true => uri.path().to_owned(),
        false => format!("{}?{}", uri.path(), kept.join("&")),
    };
    let mut parts = uri.clone().into_parts();
    parts.path_and_query = path.parse().ok();
    Uri::from_parts(parts).unwrap_or_else(|_| uri.clone())
}

/// A cookie that carries a token, limited to one path. `None` for text that is not a token, because it could add
/// cookie attributes.
pub(crate) fn cookie(token: &str, path: &str, transport: Transport) -> Option<HeaderValue> {
    let rest = token.strip_prefix(TOKEN)?;
    if rest.is_empty() || !rest.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-') {
        return None;
    }
    let secure = if transport == Transport::Encrypted { "; Secure" } else { "" };
    HeaderValue::from_str(&format!("{COOKIE}={token}; Path={path}; HttpOnly; SameSite=Strict{secure}")).ok()
}

/// Middleware: rejects requests that would change a sandbox that another user has taken over.
pub(crate) async fn guard(
    State((orchestrator, route)): State<(Orchestrator, RouteAccess)>,
    mut request: Request,
    next: Next,
) -> Response {
    let subject = match request.extensions().get::<Subject>() {
        Some(subject) => subject.clone(),
        None => Subject::of(&mut request).await,
    };
    if !subject.is_below_job() {
        return next.run(request).await;
    }
    let job = match subject.jobs() {
        Ok([job]) => *job,
        Ok(_) => return next.run(request).await,
        // Without a readable job id there is no gate, so reject the request.
        Err(problem) => return problem.into_response(),
    };
    let mut visitor = caller(request.uri(), request.headers());
    if request.extensions().get::<Caller>().is_some_and(Caller::is_view_only) {
        visitor = visitor.watching();
    }
    let gate = orchestrator.gate(job, visitor);
    if route.locked_by_takeover
        && let Err(error) = gate.check()
    {
        return Problem::from(error).into_response();
    }
    *request.uri_mut() = without_token(request.uri());
    request.extensions_mut().insert(gate);
    next.run(request).await
}

/// Extracts the gate that [`guard`] attached to the request.
pub(crate) struct TakeoverGate(pub(crate) Option<Gate>);

impl<S: Send + Sync> axum::extract::FromRequestParts<S> for TakeoverGate {
    type Rejection = std::convert::Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Self::Rejection> {
        Ok(Self(parts.extensions.get::<Gate>().cloned()))
    }
}

impl TakeoverGate {
    pub(crate) fn caller(&self) -> SandboxCaller {
        self.0.as_ref().map(|gate| gate.caller().clone()).unwrap_or_default()
    }

    /// Whether the caller may send input now. Bare sandboxes cannot be taken over, so they have no gate.
    pub(crate) fn check(&self) -> Result<(), Problem> {
        match &self.0 {
            Some(gate) => gate.check().map_err(Problem::from),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_takeover_tokens_become_cookies() {
        let made = cookie("takeover-1f-A", "/", Transport::Encrypted).unwrap();
        assert_eq!(made, "caisson-takeover=takeover-1f-A; Path=/; HttpOnly; SameSite=Strict; Secure");
        let plain = cookie("takeover-1f", "/v1", Transport::Plain).unwrap();
        assert_eq!(plain, "caisson-takeover=takeover-1f; Path=/v1; HttpOnly; SameSite=Strict");
        for other in
            ["", "x", "takeover-", "x;Domain=localhost;a", "takeover-1f;Domain=localhost", "takeover-1 f"]
        {
            assert_eq!(cookie(other, "/", Transport::Plain), None, "{other:?}");
        }
    }

    #[test]
    fn takeover_token_is_read_from_three_places_and_removed_from_the_query() {
        let mut headers = HeaderMap::new();
        headers.insert(HEADER, HeaderValue::from_static("one"));
        headers.insert(header::COOKIE, HeaderValue::from_static("a=b; caisson-takeover=two"));
        let uri: Uri = "/v1/jobs/x/terminal?rows=5&takeover=three&columns=6".parse().unwrap();
        assert_eq!(format!("{:?}", caller(&uri, &headers)), "SandboxCaller(3 tokens)");
        assert_eq!(without_token(&uri), "/v1/jobs/x/terminal?rows=5&columns=6");
        assert_eq!(without_token(&"/a?takeover=x".parse().unwrap()), "/a");
        assert_eq!(without_token(&"/a?b=c".parse().unwrap()), "/a?b=c");
    }
}
