//! `caisson serve`

use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, Result};
use orchestrator::{DataFolder, Orchestrator};
use sandbox::Backend;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

use crate::cli::ServeArguments;
use crate::config::Config;
use crate::logging::{self, LogLevel};

/// Runs the server until it is told to stop.
pub(crate) fn run(arguments: ServeArguments) -> Result<ExitCode> {
    let config = Config::load(&arguments.host, &arguments.listen, arguments.insecure_listen)?;
    let level = logging::start(&config.log, config.log_format)?;
    let runtime =
        tokio::runtime::Builder::new_multi_thread().enable_all().build().context("starting the runtime")?;
    runtime.spawn(reload(arguments, level));
    runtime.block_on(serve(config))?;
    Ok(ExitCode::SUCCESS)
}

async fn serve(config: Config) -> Result<()> {
    // The folder first: a second server must not touch anything in it.
    let folder = DataFolder::open(&config.data)?;
    let listeners = bind(&config).await?;
    let backend = super::backend(&config)?;
    let capabilities = backend.preflight().await?;
    tracing::info!(isolation = ?capabilities.isolation, data = %config.data.display(), "this host can run sandboxes");
    if config.insecure_listen {
        tracing::warn!("nobody has to log in, and others may reach this server: whoever reaches it owns it");
    }
    let orchestrator = Orchestrator::start(folder, Arc::new(backend), config.jobs).await?;
    let app = server::router(orchestrator.clone(), &config.http);
    for listener in &listeners {
        tracing::info!("listening on http://{}", listener.local_addr().context("reading the address")?);
    }
    server::serve(listeners, app, &config.http, wait_for_end(orchestrator.clone())).await?;
    tracing::info!("stopping; jobs that run go on in their sandboxes and are taken up at the next start");
    orchestrator.shutdown().await;
    Ok(())
}

/// Reads the configuration again at SIGHUP. The log level changes at once; the rest waits for the next start, which
/// costs no job anything.
async fn reload(arguments: ServeArguments, level: LogLevel) {
    let Ok(mut hangup) = signal(SignalKind::hangup()) else { return };
    while hangup.recv().await.is_some() {
        let read = Config::load(&arguments.host, &arguments.listen, arguments.insecure_listen);
        match read.and_then(|config| level.set(&config.log).map(|()| config.log)) {
            Ok(log) => {
                tracing::info!(log, "configuration read; settings other than `log` change at the next start")
            }
            Err(error) => tracing::error!("the configuration is wrong, and nothing was changed: {error:#}"),
        }
    }
}

async fn bind(config: &Config) -> Result<Vec<TcpListener>> {
    let mut listeners = Vec::new();
    for address in &config.listen {
        let listener = TcpListener::bind(address).await.with_context(|| {
            format!("listening on {address}; is something else using the port? try --listen")
        })?;
        listeners.push(listener);
    }
    Ok(listeners)
}

/// Returns when the server shall go down: at a signal, or once the jobs that run are over where they are waited for.
/// A second signal ends the waiting.
async fn wait_for_end(orchestrator: Orchestrator) {
    wait_for_stop().await;
    tokio::select! {
        () = orchestrator.drain() => {}
        () = wait_for_stop() => tracing::info!("told to stop again: not waiting any longer"),
    }
}

/// Returns at SIGTERM or Ctrl-C.
async fn wait_for_stop() {
    let Ok(mut terminate) = signal(SignalKind::terminate()) else {
        return std::future::pending().await;
    };
    tokio::select! {
        _ = terminate.recv() => {}
        _ = tokio::signal::ctrl_c() => {}
    }
}
