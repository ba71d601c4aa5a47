//! The listeners beside the API's: the preview listener, and fixed ports for the newest running job.

use std::future::Future;
use std::net::SocketAddr;

use anyhow::Result;
use futures::future::{BoxFuture, FutureExt, join_all};
use orchestrator::Orchestrator;
use server::{Application, ServerSettings};
use tokio::net::TcpListener;

use super::bind::bind;
use crate::config::Config;

/// Bound listeners that are not served yet.
pub(crate) struct ExtraListeners {
    previews: Vec<TcpListener>,
    jupyter: Vec<TcpListener>,
    novnc: Vec<TcpListener>,
    vnc: Vec<TcpListener>,
}

impl ExtraListeners {
    /// Binds the configured addresses.
    pub(crate) async fn bind(config: &Config) -> Result<Self> {
        let expose = &config.expose;
        Ok(Self {
            previews: bind_all("preview_listen", &config.preview_listen).await?,
            jupyter: bind_all("expose.jupyter", &expose.addresses_of(expose.jupyter)).await?,
            novnc: bind_all("expose.novnc", &expose.addresses_of(expose.novnc)).await?,
            vnc: bind_all("expose.vnc", &expose.addresses_of(expose.vnc)).await?,
        })
    }

    /// Serves all listeners until shutdown. `api` and `api_port` are the application and the port of the API.
    pub(crate) fn serve<F>(
        self,
        api: &Application,
        api_port: u16,
        orchestrator: &Orchestrator,
        settings: &ServerSettings,
        ended: &F,
    ) -> impl Future<Output = ()> + use<F>
    where
        F: Future<Output = ()> + Clone + Send + 'static,
    {
        let mut all: Vec<BoxFuture<'static, ()>> = Vec::new();
        if !self.previews.is_empty() {
            all.extend(run(
                self.previews,
                &server::previews(orchestrator.clone(), settings),
                settings,
                ended,
            ));
        }
        if !self.jupyter.is_empty() {
            let app = server::exposed_notebook(orchestrator.clone(), settings, api_port);
            all.extend(run(self.jupyter, &app, settings, ended));
        }
        if !self.novnc.is_empty() {
            let app = server::exposed_desktop(api.clone(), orchestrator.clone(), settings, api_port);
            all.extend(run(self.novnc, &app, settings, ended));
        }
        for listener in self.vnc {
            all.push(server::forward_desktop(listener, orchestrator.clone(), ended.clone()).boxed());
        }
        join_all(all).map(drop)
    }
}

async fn bind_all(setting: &str, addresses: &[SocketAddr]) -> Result<Vec<TcpListener>> {
    let mut listeners = Vec::new();
    for address in addresses {
        let listener = bind(*address, &format!("the setting {setting}")).await?;
        tracing::info!("{setting}: listening on {address}");
        listeners.push(listener);
    }
    Ok(listeners)
}

/// Serves an application, with TLS if the server has a certificate. On loopback there is no TLS: nobody can intercept
/// the traffic there.
fn run<F>(
    listeners: Vec<TcpListener>,
    app: &Application,
    settings: &ServerSettings,
    ended: &F,
) -> Vec<BoxFuture<'static, ()>>
where
    F: Future<Output = ()> + Clone + Send + 'static,
{
    let is_local = |listener: &TcpListener| listener.local_addr().is_ok_and(|own| own.ip().is_loopback());
    let (local, reached): (Vec<_>, Vec<_>) = listeners.into_iter().partition(is_local);
    let plain = ServerSettings { certificate: None, ..settings.clone() };
    let groups = [(local, plain), (reached, settings.clone())];
    groups
        .into_iter()
        .filter(|(listeners, _)| !listeners.is_empty())
        .map(|(listeners, settings)| {
            let (app, ended) = (app.clone(), ended.clone());
            async move {
                if let Err(error) = server::serve(listeners, app, &settings, ended).await {
                    tracing::error!(%error, "an additional listener has stopped");
                }
            }
            .boxed()
        })
        .collect()
}
