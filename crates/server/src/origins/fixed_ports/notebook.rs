//! The port that serves the JupyterLab of the newest running job.

use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::middleware::from_fn_with_state;
use axum::response::Response;
use orchestrator::Orchestrator;

use super::FixedPort;
use crate::guard::{Guard, host_guard};
use crate::origins::authentication::ReadOnlyKeys;
use crate::origins::serve;
use crate::origins::target::{Service, Target};
use crate::settings::ServerSettings;

/// Serves the notebook server of the newest running job. A key that may only read the job can look at it.
pub fn exposed_notebook(orchestrator: Orchestrator, settings: &ServerSettings, api_port: u16) -> Router {
    Router::new()
        .fallback(show)
        .layer(from_fn_with_state(Arc::new(Guard::new(settings)), host_guard))
        .with_state(Arc::new(FixedPort::new(orchestrator, settings, api_port)))
}

async fn show(State(port): State<Arc<FixedPort>>, request: Request) -> Response {
    match port.newest_job(request.headers()).await {
        Ok(job) => {
            let target = Target { job: job.job_id, service: Service::Notebook };
            serve(&port.access, (target, ReadOnlyKeys::Watch), request).await
        }
        Err(page) => port.refuse(&request, &page),
    }
}
