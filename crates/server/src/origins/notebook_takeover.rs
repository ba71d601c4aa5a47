//! Restricts the notebook of a job that a person has taken over: others can view it, only the holder can run and
//! save.
//!
//! Browsers do not send the API's cookies to this origin. The holder therefore opens it once with the token in the
//! URL (`?takeover=TOKEN`), which becomes a cookie of this origin.

use axum::extract::Request;
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use orchestrator::Orchestrator;

use super::authentication::SandboxRights;
use super::target::Target;
use crate::access::takeover_gate;
use crate::guard::Transport;
use crate::problem::Problem;

/// Attaches the gate to a permitted request, or returns the response to send instead.
pub(super) fn check(
    orchestrator: &Orchestrator,
    target: &Target,
    (rights, transport): (SandboxRights, Transport),
    request: &mut Request,
) -> Result<(), Box<Response>> {
    let gate = orchestrator
        .gate(target.job, rights.visitor(takeover_gate::caller(request.uri(), request.headers())));
    let clean = takeover_gate::without_token(request.uri());
    if clean != *request.uri() && request.method() == Method::GET {
        let token = request.uri().query().into_iter().flat_map(|query| query.split('&'));
        let token =
            token.filter_map(|pair| pair.split_once('=')).find(|(name, _)| *name == takeover_gate::QUERY);
        let cookie = token.and_then(|(_, token)| takeover_gate::cookie(token, "/", transport));
        let location = clean.path_and_query().map_or("/", |location| location.as_str());
        if let (Some(cookie), Ok(location)) = (cookie, HeaderValue::from_str(location)) {
            let headers = [(header::SET_COOKIE, cookie), (header::LOCATION, location)];
            return Err(Box::new((StatusCode::SEE_OTHER, headers).into_response()));
        }
    }
    *request.uri_mut() = clean;
    let only_reads = matches!(*request.method(), Method::GET | Method::HEAD)
        && !request.headers().contains_key(header::UPGRADE);
    if !only_reads && let Err(error) = gate.check() {
        return Err(Box::new(Problem::from(error).into_response()));
    }
    request.extensions_mut().insert(gate);
    Ok(())
}
