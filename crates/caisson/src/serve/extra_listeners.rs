//! The listeners beside the API's: the preview listener, and fixed ports for the newest running job.

use std::future::Future;
use std::net::{Ipv4Addr, SocketAddr};

use anyhow::{Context, Result};
use futures::future::{BoxFuture, FutureExt, join_all};
use orchestrator::Orchestrator;
use server::ServerSettings;
use tokio::net::TcpListener;

use crate::config::Config;

/// Bound listeners that are not served yet.
pub(crate) struct ExtraListeners {
    previews: Vec<TcpListener>,
    jupyter: Option<TcpListener>,
    novnc: Option<TcpListener>,
    vnc: Option<TcpListener>,
    /// Address of the API.
    api: String,
}

impl ExtraListeners {
    /// Binds the configured addresses.
    pub(crate) async fn bind(config: &Config) -> Result<Self> {
        let mut previews = Vec::new();
        for address in &config.preview_listen {
            previews.push(bind("preview_listen", *address).await?);
        }
        let scheme = if config.http.certificate.is_some() { "https" } else { "http" };
        let own = config.listen.first().map(|address| format!("{scheme}://{address}"));
        Ok(Self {
            previews,
            jupyter: bind_port("expose.jupyter", config.expose.jupyter).await?,
            novnc: bind_port("expose.novnc", config.expose.novnc).await?,
            vnc: bind_port("expose.vnc", config.expose.vnc).await?,
            api: config.http.public_url.clone().or(own).unwrap_or_default(),
        })
    }

    /// Serves all listeners until shutdown.
    pub(crate) fn serve<F>(
        self,
        orchestrator: &Orchestrator,
        settings: &ServerSettings,
        ended: F,
    ) -> impl Future<Output = ()> + use<F>
    where
        F: Future<Output = ()> + Clone + Send + 'static,
    {
        let mut all: Vec<BoxFuture<'static, ()>> = Vec::new();
        // No TLS: these listen on loopback, where nobody can intercept the traffic.
        let settings = &ServerSettings { certificate: None, ..settings.clone() };
        if !self.previews.is_empty() {
            let app = server::previews(orchestrator.clone(), settings);
            all.push(run(self.previews, app, settings.clone(), ended.clone()));
        }
        if let Some(listener) = self.jupyter {
            let app = server::exposed_notebook(orchestrator.clone(), settings);
            all.push(run(vec![listener], app, settings.clone(), ended.clone()));
        }
        if let Some(listener) = self.novnc {
            let app = server::exposed_desktop(orchestrator.clone(), settings, self.api);
            all.push(run(vec![listener], app, settings.clone(), ended.clone()));
        }
        if let Some(listener) = self.vnc {
            all.push(server::forward_desktop(listener, orchestrator.clone(), ended).boxed());
        }
        join_all(all).map(drop)
    }
}

async fn bind_port(setting: &str, port: Option<u16>) -> Result<Option<TcpListener>> {
    match port {
        Some(port) => bind(setting, (Ipv4Addr::LOCALHOST, port).into()).await.map(Some),
        None => Ok(None),
    }
}

async fn bind(setting: &str, address: SocketAddr) -> Result<TcpListener> {
    let bound = TcpListener::bind(address).await;
    let listener = bound
        .with_context(|| format!("{setting}: listening on {address}; is something else using the port?"))?;
    tracing::info!("{setting}: listening on {address}");
    Ok(listener)
}

fn run(
    listeners: Vec<TcpListener>,
    app: server::Application,
    settings: ServerSettings,
    ended: impl Future<Output = ()> + Send + 'static,
) -> BoxFuture<'static, ()> {
    async move {
        if let Err(error) = server::serve(listeners, app, &settings, ended).await {
            tracing::error!(%error, "a listener beside the API's has stopped");
        }
    }
    .boxed()
}
