//! Fixed loopback ports for a single user on the local machine. They always show the newest running job.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::HeaderMap;
use axum::middleware::from_fn;
use axum::response::{IntoResponse, Redirect, Response};
use futures::StreamExt;
use orchestrator::{Gate, Orchestrator, PortStream, Visitor};
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy};
use tokio::net::{TcpListener, TcpStream};

use super::error_pages::{self, Page};
use super::preview_listener::loopback_only;
use super::target::{Service, Target};
use crate::access::Access;
use crate::settings::ServerSettings;
use crate::streams::{InputMode, ViewerFilter};

/// The number of concurrent viewers.
const MAX_VIEWERS: usize = 32;
/// How long to wait after `accept` fails.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves the notebook server of the newest running job.
pub fn exposed_notebook(orchestrator: Orchestrator, settings: &ServerSettings) -> Router {
    let access = Access::new(orchestrator, Arc::new(settings.clone()));
    Router::new().fallback(notebook).layer(from_fn(loopback_only)).with_state(Arc::new(access))
}

async fn notebook(State(access): State<Arc<Access>>, request: Request) -> Response {
    match access.orchestrator().newest_running().await {
        Ok(Some(job)) => super::serve(&access, Target { job, service: Service::Notebook }, request).await,
        Ok(None) => error_pages::answer(request.headers(), &Page::NoRunningJob),
        Err(error) => error_pages::answer(request.headers(), &Page::InternalError(error.to_string())),
    }
}

/// Serves `/` and `/vnc.html`, which redirect to the desktop page of the newest running job in the API. If the server
/// has keys, only callers who may see the job learn its id.
pub fn exposed_desktop(orchestrator: Orchestrator, settings: &ServerSettings, api: String) -> Router {
    let state = Arc::new((Access::new(orchestrator, Arc::new(settings.clone())), api));
    let page = axum::routing::get(desktop);
    Router::new()
        .route("/", page.clone())
        .route("/vnc.html", page)
        .layer(from_fn(loopback_only))
        .with_state(state)
}

async fn desktop(State(state): State<Arc<(Access, String)>>, request_headers: HeaderMap) -> Response {
    let (access, api) = &*state;
    let Ok(Some((caller, _))) = access.caller(&request_headers) else {
        // The web page asks for a key.
        return Redirect::temporary(&format!("{api}/")).into_response();
    };
    match access.orchestrator().newest_running().await {
        Ok(Some(job)) if !access.can_see(&caller, job).await.unwrap_or(false) => {
            error_pages::answer(&request_headers, &Page::NoRunningJob)
        }
        Ok(Some(job)) => Redirect::temporary(&format!("{api}/v1/jobs/{job}/desktop")).into_response(),
        Ok(None) => error_pages::answer(&request_headers, &Page::NoRunningJob),
        Err(error) => error_pages::answer(&request_headers, &Page::InternalError(error.to_string())),
    }
}

/// Forwards plain VNC connections to the desktop of the newest running job until `ended` completes.
pub async fn forward_desktop(
    listener: TcpListener,
    orchestrator: Orchestrator,
    ended: impl Future<Output = ()> + Send,
) {
    let connections =
        futures::stream::unfold(
            listener,
            |listener| async move { Some((listener.accept().await, listener)) },
        );
    let carrying = connections.for_each_concurrent(MAX_VIEWERS, |accepted| {
        let orchestrator = orchestrator.clone();
        async move {
            let Ok((connection, _)) = accepted else {
                return tokio::time::sleep(ACCEPT_PAUSE).await;
            };
            let _ = connection.set_nodelay(true);
            if orchestrator.requires_authentication() {
                tracing::warn!(
                    "expose.vnc: plain VNC cannot ask for a key, so nothing is shown while there are keys"
                );
                return;
            }
            let Ok(Some(job)) = orchestrator.newest_running().await else { return };
            match orchestrator.open_desktop(job).await {
                Ok(stream) => carry(connection, stream, orchestrator.gate(job, Visitor::default())).await,
                Err(error) => tracing::info!(%job, %error, "the desktop cannot be shown"),
            }
        }
    });
    tokio::select! {
        () = carrying => {}
        () = ended => {}
    }
}

/// Forwards a viewer's connection. While somebody has taken the sandbox over, the viewer can only watch.
async fn carry(connection: TcpStream, desktop: PortStream, gate: Gate) {
    let (mut from_viewer, mut to_viewer) = connection.into_split();
    let (mut from_desktop, mut to_desktop) = tokio::io::split(desktop);
    let inwards = async {
        let mut viewer = ViewerFilter::new();
        let mut piece = vec![0; 16 * 1024];
        while let Ok(count @ 1..) = from_viewer.read(&mut piece).await {
            let input_mode = if gate.check().is_ok() { InputMode::Full } else { InputMode::ViewOnly };
            let Ok(passed) = viewer.take(&piece[..count], input_mode) else { return };
            if to_desktop.write_all(&passed).await.is_err() || to_desktop.flush().await.is_err() {
                return;
            }
        }
    };
    tokio::select! {
        () = inwards => {}
        _ = copy(&mut from_desktop, &mut to_viewer) => {}
    }
}
