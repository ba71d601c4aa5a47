//! What jobs serve themselves: notebooks and dev servers, each on an origin of its own, never on the API's.
//!
//! `<job>-jupyter.localhost` is the notebook server of a job, `<job>-<port>.localhost` what listens on a port of it.
//! Browsers resolve such names to this machine. For who comes by a public name there is `<job>-<port>.<job_domain>`, where the
//! operator has set one ([`JobNames`]). For who cannot use them there is a second listener ([`previews`]), which
//! serves one of these at a time. Requests are passed on as they are, WebSockets included.

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

/// How long a person looks at a blank page while a notebook server starts, before being told.
const START_PATIENCE: Duration = Duration::from_secs(2);

/// What stands in the log in the place of an answer that nobody waited for.
const HUNG_UP: u16 = 499;

/// Serves the origins of jobs; everything else goes on to the API.
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

/// What a request's host names.
#[derive(Debug, PartialEq, Eq)]
enum Named {
    /// No origin of a job.
    Api,
    /// An origin that no job can have.
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
        // Two names for one request: whoever means well writes one.
        labels if labels.iter().any(Option::is_some) => Named::Nothing,
        _ => Named::Api,
    }
}

/// Passes a request on to what a job serves, or says why not; what is worth a line is noted as it is for the API.
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
    // What the job itself refuses is its own affair.
    let kind = if response.is_ok() { Kind::OfJob } else { Kind::Plain };
    let response = response.unwrap_or_else(|refused| refused);
    let who = who.as_ref().map_or(Who::Nobody, Who::Known);
    access.note(who, from, (&method, &path), (response.status(), kind));
    response
}

/// Notes a request that was passed on when who sent it hangs up before there is an answer.
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

/// Lets a request in, or answers it.
async fn enter(
    access: &Access,
    target: Target,
    mut request: Request,
) -> Result<(Visiting, Request), Box<Response>> {
    let orchestrator = access.orchestrator();
    // The form comes from the server's own page, which is another site: what it shows decides, not where it is from.
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
