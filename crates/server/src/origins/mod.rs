//! Serves what jobs themselves serve, such as notebooks and dev servers. Each has its own origin, separate from the
//! API's.
//!
//! `<job>-jupyter.localhost` is the notebook server of a job and `<job>-<port>.localhost` is a port of its sandbox.
//! Browsers resolve such names to the local machine. Clients that reach the server by a public name use
//! `<job>-<port>.<job_domain>`, if the operator has configured one ([`JobNames`]). Where neither works there is a
//! second listener ([`previews`]), which serves one of these origins at a time. Requests are forwarded, WebSockets
//! included.

mod cookies;
mod enter;
mod entry;
mod expose;
mod framing;
mod lock;
mod names;
mod pages;
mod permission;
mod proxy;
mod second;
mod target;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, Method, StatusCode, Uri, header};
use axum::middleware::Next;
use axum::response::Response;
use orchestrator::{Actor, Orchestrator, OrchestratorError, PortStream};

pub(crate) use entry::entrance;
pub use expose::{exposed_desktop, exposed_notebook, forward_desktop};
pub(crate) use names::JobNames;
pub use second::previews;

use self::entry::Visiting;
use self::pages::Page;
use self::target::{Service, Target};
use crate::access::{Access, Kind, Transport, Who};
use crate::authority::Authority;

/// How long a request waits for a notebook server to start before it gets a page that says so.
const START_PATIENCE: Duration = Duration::from_secs(2);

/// The status that the access log shows for a client that disconnected before the response.
const HUNG_UP: u16 = 499;

/// Middleware: serves the origins of jobs and passes everything else on to the API.
pub(crate) async fn route(State(access): State<Arc<Access>>, request: Request, next: Next) -> Response {
    let names = access.job_names();
    match named_target(&names, request.uri(), request.headers()) {
        Named::Api => next.run(request).await,
        Named::Nothing => pages::answer(request.headers(), &Page::NoSuchOrigin),
        Named::Target(target) => {
            let asked = request.headers().clone();
            let page = names.page(access.transport(&request), &asked);
            let mut answer = serve(&access, target, request).await;
            framing::fit(answer.headers_mut(), &asked, (&target, page.as_deref()));
            answer
        }
    }
}

/// What the host of a request refers to.
#[derive(Debug, PartialEq, Eq)]
enum Named {
    /// The API, not an origin of a job.
    Api,
    /// A name below a job domain that no job can have.
    Nothing,
    Target(Target),
}

fn named_target(names: &JobNames, uri: &Uri, headers: &HeaderMap) -> Named {
    let named = headers.get_all(header::HOST).iter().map(header::HeaderValue::as_bytes);
    let in_line = uri.authority().map(|authority| authority.as_str().as_bytes());
    let hosts: Vec<Option<Authority>> =
        named.chain(in_line).map(|text| std::str::from_utf8(text).ok().and_then(Authority::parse)).collect();
    let labels: Vec<Option<&str>> =
        hosts.iter().map(|host| host.as_ref().and_then(|host| names.label(&host.host))).collect();
    match labels.as_slice() {
        [Some(first), rest @ ..] if rest.iter().all(|other| *other == Some(*first)) => {
            Target::parse(first).map_or(Named::Nothing, Named::Target)
        }
        // A request with two different host names is rejected.
        labels if labels.iter().any(Option::is_some) => Named::Nothing,
        _ => Named::Api,
    }
}

/// Forwards a request into a job's sandbox, or answers with an error page. Logs it as the API logs its requests.
async fn serve(access: &Access, target: Target, request: Request) -> Response {
    let (method, from) = (request.method().clone(), access.client(&request));
    let path = format!("//{target}{}", request.uri().path());
    let (who, response) = match enter(access, target, request).await {
        Ok((visitor, request)) => {
            let transport = access.transport(&request);
            let actor = visitor.actor;
            let mut left = Left { access, deed: Some((&actor, from, &method, &path)) };
            let response = pass_on(access.orchestrator(), target, (transport, request)).await;
            left.deed = None;
            drop(left);
            (Some(actor), Ok(response))
        }
        Err(response) => (None, Err(*response)),
    };
    // A rejection by the job's own server is not logged as one of ours.
    let kind = if response.is_ok() { Kind::OfJob } else { Kind::Plain };
    let response = response.unwrap_or_else(|refused| refused);
    let who = who.as_ref().map_or(Who::Nobody, Who::Known);
    access.note(who, from, (&method, &path), (response.status(), kind));
    response
}

/// Logs a forwarded request whose client disconnects before there is a response.
struct Left<'a> {
    access: &'a Access,
    deed: Option<(&'a Actor, Option<IpAddr>, &'a Method, &'a str)>,
}

impl Drop for Left<'_> {
    fn drop(&mut self) {
        if let Some((actor, from, method, path)) = self.deed.take() {
            let status = StatusCode::from_u16(HUNG_UP).unwrap_or(StatusCode::BAD_REQUEST);
            self.access.note(Who::Known(actor), from, (method, path), (status, Kind::OfJob));
        }
    }
}

/// Runs all access checks of an origin. Returns the visitor and the request, or the response to send instead.
async fn enter(
    access: &Access,
    target: Target,
    mut request: Request,
) -> Result<(Visiting, Request), Box<Response>> {
    let orchestrator = access.orchestrator();
    // The form comes from the server's own page, which is a different site, so its contents are checked and not its
    // origin.
    if enter::is_meant(&request) {
        return Err(Box::new(enter::take(access, target, request).await));
    }
    if let Err(page) = permission::check(&access.job_names(), &target, (request.method(), request.headers()))
    {
        return Err(Box::new(pages::answer(request.headers(), &page)));
    }
    let visiting = entry::check(access, target, &mut request).await?;
    if target.service == Service::Notebook {
        let transport = access.transport(&request);
        lock::check(orchestrator, &target, (visiting.entered, transport), &mut request)?;
    }
    Ok((visiting, request))
}

async fn pass_on(
    orchestrator: &Orchestrator,
    target: Target,
    (transport, request): (Transport, Request),
) -> Response {
    let opened = tokio::time::timeout(START_PATIENCE, open(orchestrator, target)).await;
    match opened {
        Ok(Ok(stream)) => proxy::forward(stream, target, transport, request).await,
        Ok(Err(error)) => pages::answer(request.headers(), &Page::of_error(target, &error)),
        Err(_) => pages::answer(request.headers(), &Page::Starting),
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

    fn named(hosts: &[&str], uri: &str) -> Named {
        let mut headers = HeaderMap::new();
        for host in hosts {
            headers.append(header::HOST, HeaderValue::from_str(host).unwrap());
        }
        named_target(&JobNames::default(), &uri.parse().unwrap(), &headers)
    }

    #[test]
    fn the_host_decides_between_api_and_jobs() {
        for host in ["localhost:8000", "127.0.0.1", "caisson.example", "localhost.example", "xlocalhost"] {
            assert_eq!(named(&[host], "/"), Named::Api, "{host}");
        }
        let target = Target { job: JOB.parse().unwrap(), service: Service::Port(5173) };
        assert_eq!(named(&[&format!("{JOB}-5173.localhost:8000")], "/"), Named::Target(target));
        assert_eq!(named(&[&format!("{JOB}-5173.LOCALHOST")], "/"), Named::Target(target));
        let notebook = Target { service: Service::Notebook, ..target };
        assert_eq!(named(&[&format!("{JOB}-jupyter.localhost")], "/lab"), Named::Target(notebook));
    }

    #[test]
    fn a_name_below_localhost_never_reaches_the_api() {
        for host in
            ["a.localhost", "x-80.localhost:8000", &format!("{JOB}.localhost"), &format!("{JOB}-0.localhost")]
        {
            assert_eq!(named(&[host], "/"), Named::Nothing, "{host}");
        }
        let own = format!("{JOB}-80.localhost");
        assert_eq!(named(&[&own, "localhost"], "/"), Named::Nothing);
        assert_eq!(named(&["localhost", &own], "/"), Named::Nothing);
        assert_eq!(named(&["localhost"], &format!("http://{own}/")), Named::Nothing);
    }
}
