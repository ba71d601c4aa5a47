//! Serves what jobs themselves serve, such as notebooks and dev servers. Each has its own origin, separate from the
//! API's.
//!
//! `<job>-jupyter.localhost` is the notebook server of a job and `<job>-<port>.localhost` is a port of its sandbox.
//! Browsers resolve such names to the local machine. Clients that reach the server by a public name use
//! `<job>-<port>.<job_domain>`, if the operator has configured one ([`JobDomains`]). Where neither works there is a
//! second listener ([`previews`]), which serves one of these origins at a time. Fixed ports show the newest running
//! job. Requests are forwarded, WebSockets included.

mod authentication;
mod cookies;
mod entry_form;
mod error_pages;
mod fixed_ports;
mod framing;
mod job_domains;
mod notebook_takeover;
mod origin_check;
mod preview_listener;
mod proxy;
mod target;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, Method, StatusCode, Uri, header};
use axum::middleware::Next;
use axum::response::Response;
use job::Actor;
use orchestrator::{Orchestrator, OrchestratorError, PortStream};

pub(crate) use authentication::entry_url;
pub use fixed_ports::{exposed_desktop, exposed_notebook, forward_desktop};
pub(crate) use job_domains::JobDomains;
pub use preview_listener::previews;

use self::authentication::{Admitted, ReadOnlyKeys};
use self::error_pages::Page;
pub(crate) use self::error_pages::unknown_address;
use self::target::{Service, Target};
use crate::access::{Access, LogCaller, LogKind};
use crate::guard::{Authority, Transport};

/// How long a request waits for a notebook server to start before it gets a page that says so.
const START_TIMEOUT: Duration = Duration::from_secs(2);

/// The status that the access log shows for a client that disconnected before the response.
const CLIENT_CLOSED_REQUEST: u16 = 499;

/// Middleware: serves the origins of jobs and passes everything else on to the API.
pub(crate) async fn route(State(access): State<Arc<Access>>, request: Request, next: Next) -> Response {
    let domains = JobDomains::new(access.settings());
    match classify_host(&domains, request.uri(), request.headers()) {
        HostKind::Api => next.run(request).await,
        HostKind::Nothing => error_pages::answer(request.headers(), &Page::UnknownOrigin),
        HostKind::Target(target) => {
            let request_headers = request.headers().clone();
            let page = domains.page(access.transport(&request), &request_headers);
            let mut answer = serve(&access, (target, ReadOnlyKeys::Refused), request).await;
            framing::adapt_response(answer.headers_mut(), &request_headers, (&target, page.as_deref()));
            answer
        }
    }
}

/// What the host of a request refers to.
#[derive(Debug, PartialEq, Eq)]
enum HostKind {
    /// The API, not an origin of a job.
    Api,
    /// A name below a job domain that no job can have.
    Nothing,
    Target(Target),
}

fn classify_host(domains: &JobDomains, uri: &Uri, headers: &HeaderMap) -> HostKind {
    let named = headers.get_all(header::HOST).iter().map(header::HeaderValue::as_bytes);
    let in_request_line = uri.authority().map(|authority| authority.as_str().as_bytes());
    let hosts: Vec<Option<Authority>> = named
        .chain(in_request_line)
        .map(|text| std::str::from_utf8(text).ok().and_then(Authority::parse))
        .collect();
    let labels: Vec<Option<&str>> =
        hosts.iter().map(|host| host.as_ref().and_then(|host| domains.label(&host.host))).collect();
    match labels.as_slice() {
        [Some(first), rest @ ..] if rest.iter().all(|other| *other == Some(*first)) => {
            Target::parse(first).map_or(HostKind::Nothing, HostKind::Target)
        }
        // A request with two different host names is rejected.
        labels if labels.iter().any(Option::is_some) => HostKind::Nothing,
        _ => HostKind::Api,
    }
}

/// Forwards a request into a job's sandbox, or answers with an error page. Logs it as the API logs its requests.
async fn serve(access: &Access, (target, read_only): (Target, ReadOnlyKeys), request: Request) -> Response {
    let (method, from) = (request.method().clone(), access.client(&request));
    let path = format!("//{target}{}", request.uri().path());
    let (who, response) = match enter(access, (target, read_only), request).await {
        Ok((visitor, request)) => {
            let transport = access.transport(&request);
            let actor = visitor.actor;
            let mut disconnect_guard =
                DisconnectGuard { access, pending: Some((&actor, from, &method, &path)) };
            let response = forward_to_job(access.orchestrator(), target, (transport, request)).await;
            disconnect_guard.pending = None;
            drop(disconnect_guard);
            (Some(actor), Ok(response))
        }
        Err(response) => (None, Err(*response)),
    };
    // A rejection by the job's own server is not logged as one of ours.
    let kind = if response.is_ok() { LogKind::FromJob } else { LogKind::Plain };
    let response = response.unwrap_or_else(|refused| refused);
    let who = who.as_ref().map_or(LogCaller::Nobody, LogCaller::Known);
    access.log_request(who, from, (&method, &path), (response.status(), kind));
    response
}

/// Logs a forwarded request whose client disconnects before there is a response.
struct DisconnectGuard<'a> {
    access: &'a Access,
    pending: Option<(&'a Actor, Option<IpAddr>, &'a Method, &'a str)>,
}

impl Drop for DisconnectGuard<'_> {
    fn drop(&mut self) {
        if let Some((actor, from, method, path)) = self.pending.take() {
            let status = StatusCode::from_u16(CLIENT_CLOSED_REQUEST).unwrap_or(StatusCode::BAD_REQUEST);
            self.access.log_request(
                LogCaller::Known(actor),
                from,
                (method, path),
                (status, LogKind::FromJob),
            );
        }
    }
}

/// Runs all access checks of an origin. Returns the visitor and the request, or the response to send instead.
async fn enter(
    access: &Access,
    (target, read_only): (Target, ReadOnlyKeys),
    mut request: Request,
) -> Result<(Admitted, Request), Box<Response>> {
    let orchestrator = access.orchestrator();
    // The form comes from the server's own page, which is a different site, so its contents are checked and not its
    // origin.
    if entry_form::is_entry_form(&request) {
        return Err(Box::new(entry_form::handle(access, target, request).await));
    }
    if let Err(page) = origin_check::check(
        &JobDomains::new(access.settings()),
        &target,
        (request.method(), request.headers()),
    ) {
        return Err(Box::new(error_pages::answer(request.headers(), &page)));
    }
    let admitted = authentication::check(access, (target, read_only), &mut request).await?;
    if target.service == Service::Notebook {
        let transport = access.transport(&request);
        notebook_takeover::check(orchestrator, &target, (admitted.rights, transport), &mut request)?;
    }
    Ok((admitted, request))
}

async fn forward_to_job(
    orchestrator: &Orchestrator,
    target: Target,
    (transport, request): (Transport, Request),
) -> Response {
    let opened = tokio::time::timeout(START_TIMEOUT, open(orchestrator, target)).await;
    match opened {
        Ok(Ok(stream)) => proxy::forward(stream, target, transport, request).await,
        Ok(Err(error)) => error_pages::answer(request.headers(), &Page::of_error(target, &error)),
        Err(_) => error_pages::answer(request.headers(), &Page::Starting),
    }
}

async fn open(orchestrator: &Orchestrator, target: Target) -> Result<PortStream, OrchestratorError> {
    match target.service {
        Service::Notebook => orchestrator.open_notebook_server(target.job).await,
        Service::Port(port) => orchestrator.open_port(target.job, port).await,
    }
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    const JOB: &str = "01930d5e-7b1a-7c3e-9f00-3a5b1c2d4e6f";

    fn named(hosts: &[&str], uri: &str) -> HostKind {
        let mut headers = HeaderMap::new();
        for host in hosts {
            headers.append(header::HOST, HeaderValue::from_str(host).unwrap());
        }
        classify_host(&JobDomains::default(), &uri.parse().unwrap(), &headers)
    }

    #[test]
    fn the_host_decides_between_api_and_jobs() {
        for host in ["localhost:8000", "127.0.0.1", "caisson.example", "localhost.example", "xlocalhost"] {
            assert_eq!(named(&[host], "/"), HostKind::Api, "{host}");
        }
        let target = Target { job: JOB.parse().unwrap(), service: Service::Port(5173) };
        assert_eq!(named(&[&format!("{JOB}-5173.localhost:8000")], "/"), HostKind::Target(target));
        assert_eq!(named(&[&format!("{JOB}-5173.LOCALHOST")], "/"), HostKind::Target(target));
        let notebook = Target { service: Service::Notebook, ..target };
        assert_eq!(named(&[&format!("{JOB}-jupyter.localhost")], "/lab"), HostKind::Target(notebook));
    }

    #[test]
    fn a_name_below_localhost_never_reaches_the_api() {
        for host in
            ["a.localhost", "x-80.localhost:8000", &format!("{JOB}.localhost"), &format!("{JOB}-0.localhost")]
        {
            assert_eq!(named(&[host], "/"), HostKind::Nothing, "{host}");
        }
        let own = format!("{JOB}-80.localhost");
        assert_eq!(named(&[&own, "localhost"], "/"), HostKind::Nothing);
        assert_eq!(named(&["localhost", &own], "/"), HostKind::Nothing);
        assert_eq!(named(&["localhost"], &format!("http://{own}/")), HostKind::Nothing);
    }
}
