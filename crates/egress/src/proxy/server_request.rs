//! Requests that the server itself sends for a job, for example to an MCP server. They use the same gate and log as
//! connections from the sandbox, so the job's policy applies.

use bytes::Bytes;
use http_body_util::Full;
use hyper::{Request, Response};

use super::Proxy;
use crate::gate::{Admitted, Requester};
use crate::http::{ForwardContext, Open, ResponseBody, Scheme, exchange, fetch_of, rewrite_request};
use crate::policy::Visibility;
use crate::refusal::{ReasonCode, Refusal};
use crate::secrets::{Found, Redactor};
use crate::target::Target;
use crate::tls::Upstream;

/// A response body. Its connection ends with it.
pub type ServerResponseBody = ResponseBody;

impl Proxy {
    /// Sends a request with an absolute `http` or `https` URL for a job. Does not follow redirects: the caller must
    /// request their target explicitly, so that the policy is checked again.
    ///
    /// # Errors
    /// The policy refuses the request, or the server cannot be reached. Both are logged.
    pub async fn send_server_request(
        &self,
        upstream: &Upstream,
        call: Option<String>,
        request: Request<Full<Bytes>>,
    ) -> Result<Response<ServerResponseBody>, Refusal> {
        let gate = self.gate();
        let requester = Requester { call, method: request.method().to_string() };
        let (scheme, target) = destination(&request)?;
        let visibility =
            Visibility::Request { method: request.method().as_str(), path: request.uri().path() };
        let Admitted { stream, meter, record, .. } =
            gate.admit(requester.clone(), &target, visibility).await?;
        let context = ForwardContext {
            idle_timeout: gate.settings().idle_timeout,
            events: gate.events().clone(),
            ledger: std::sync::Arc::clone(gate.ledger()),
            redactor: Redactor::new([]),
        };
        let fetch = fetch_of(&request, &requester, &target, scheme);
        let request = rewrite_request(request, &target, scheme)?;
        let open = Open { meter, record, fetch, found: Found::default() };
        match scheme {
            Scheme::Http => exchange(stream, request, &target, open, context).await,
            Scheme::Https => match upstream.secure(&target, stream).await {
                Ok(stream) => exchange(stream, request, &target, open, context).await,
                Err(refusal) => {
                    open.record.close(Some(refusal.code), refusal.reason.clone()).await;
                    Err(refusal)
                }
            },
        }
    }
}

fn destination(request: &Request<Full<Bytes>>) -> Result<(Scheme, Target), Refusal> {
    let bad = |why: String| Refusal::failure(ReasonCode::BadRequest, why);
    let (scheme, port) = match request.uri().scheme_str() {
        Some("http") => (Scheme::Http, 80),
        Some("https") => (Scheme::Https, 443),
        _ => return Err(bad(format!("`{}` does not begin with http:// or https://", request.uri()))),
    };
    let authority = request.uri().authority().map_or("", hyper::http::uri::Authority::as_str);
    let target = Target::from_authority(authority, Some(port)).map_err(|error| bad(error.to_string()))?;
    Ok((scheme, target))
}
