//! Reserved connections: while nearly all connections are busy, the server answers only callers with a key and health
//! checks.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::{Body, HttpBody};
use axum::extract::{Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use hyper::body::{Frame, SizeHint};

use super::{Availability, SlotUse};
use crate::access::Access;
use crate::problem::Problem;

/// Health checks, for monitoring without a key.
const HEALTH_CHECKS: [&str; 3] = ["/healthz", "/readyz", "/metrics"];
const RETRY_AFTER_S: u64 = 1;

/// Middleware: rejects a request if the remaining connections are reserved for others.
pub(crate) async fn keep_reserve(
    State(access): State<Arc<Access>>,
    request: Request,
    next: Next,
) -> Response {
    if may_pass(&access, &request) { next.run(request).await } else { refusal() }
}

fn may_pass(access: &Access, request: &Request) -> bool {
    let is_health_check = || HEALTH_CHECKS.contains(&request.uri().path());
    let has_key = || access.caller(request.headers()).is_ok_and(|caller| caller.is_some());
    match request.extensions().get::<SlotUse>().map_or(Availability::Everyone, SlotUse::availability) {
        Availability::Everyone => true,
        Availability::KeyedCallers => is_health_check() || has_key(),
        Availability::HealthChecks => is_health_check(),
    }
}

fn refusal() -> Response {
    let detail = "too many requests are being answered; the remaining connections are reserved for callers with a key and for \
                  health checks";
    let problem = Problem::new(StatusCode::SERVICE_UNAVAILABLE, "too_many_connections", detail);
    let mut response = problem.after(RETRY_AFTER_S).into_response();
    response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    response
}

/// A response body that keeps its connection marked as in use until it is sent.
pub(crate) struct HeldBody {
    body: Body,
    _used: SlotUse,
}

impl HeldBody {
    pub(crate) fn new(body: Body, used: SlotUse) -> Self {
        Self { body, _used: used }
    }
}

impl HttpBody for HeldBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
