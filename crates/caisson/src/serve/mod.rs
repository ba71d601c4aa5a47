//! Runs the server: the one of `caisson serve`, and one inside this process for a single command.

pub(crate) mod bind;
mod extra_listeners;
mod host_reports;
pub(crate) mod one_shot;
mod reload;
mod running_config;

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use futures::FutureExt;
use orchestrator::{DataFolder, Orchestrator};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use server::HostReports;
use store::LocalDatabase as _;
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};

use self::extra_listeners::ExtraListeners;
use self::running_config::RunningConfig;
use crate::config::Config;
use crate::config::database::DATABASE;
use crate::host::{backend, programs};
use crate::logging::LogLevel;
use crate::telemetry::Exporter;

/// At shutdown, how long to wait for blocking threads.
const SHUTDOWN_PATIENCE: Duration = Duration::from_secs(10);

/// Runs a server until it receives a stop signal. It calls `load` at each SIGHUP to read the configuration again.
pub(crate) fn run(
    config: Config,
    load: impl Fn() -> Result<Config> + Send + Sync + 'static,
    level: LogLevel,
    exporter: Option<Exporter>,
) -> Result<()> {
    raise_open_file_limit();
    let runtime =
        tokio::runtime::Builder::new_multi_thread().enable_all().build().context("starting the runtime")?;
    if let Some(exporter) = exporter {
        runtime.spawn(async {
            if let Err(error) = exporter.run().await {
                tracing::warn!("traces are not sent: {error:#}");
            }
        });
    }
    let served = runtime.block_on(serve(config, load, level));
    // Blocking work that is still running then, such as syncing a disk, is repeated by the next server.
    runtime.shutdown_timeout(SHUTDOWN_PATIENCE);
    served
}

/// Raises the soft limit on open files to the hard limit. Shells set 1,024 for compatibility with old programs, but
/// each running job needs two and each connection one. Programs in sandboxes have their own limits.
fn raise_open_file_limit() {
    let maximum = getrlimit(Resource::Nofile).maximum;
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }) {
        tracing::warn!(%error, "cannot raise the limit of open files");
    }
}

async fn serve(
    config: Config,
    load: impl Fn() -> Result<Config> + Send + Sync + 'static,
    level: LogLevel,
) -> Result<()> {
    // From now on these signals no longer end the process by default.
    let hangup = signal(SignalKind::hangup()).context("listening for SIGHUP")?;
    let mut stops = StopSignals::listen()?;
    let running = Arc::new(RunningConfig::new(config.clone(), load));
    // Until the server is ready there is nothing to shut down.
    let ready = tokio::select! {
        () = stops.next() => {
            tracing::info!("stop signal received before the server was ready");
            return Ok(());
        }
        ready = get_ready(&config, &running) => ready?,
    };
    let ReadyServer { listeners, exposed, host, orchestrator } = ready;
    tokio::spawn(reload::run(hangup, running, level, orchestrator.clone()));
    let mut http = config.http.clone();
    http.access_log = server::AccessLog::open(&config.data)?;
    let app = server::router(orchestrator.clone(), host, &http);
    let api_port = listeners.first().and_then(|listener| listener.local_addr().ok());
    let api_port = api_port.map_or(0, |address| address.port());
    for listener in &listeners {
        let scheme = if config.http.certificate.is_some() { "https" } else { "http" };
        tracing::info!("listening on {scheme}://{}", listener.local_addr().context("reading the address")?);
    }
    protocol::release_program_pages();
    let ended = wait_for_end(stops, orchestrator.clone()).shared();
    let sides = exposed.serve(&app, api_port, &orchestrator, &http, &ended);
    let (served, ()) = tokio::join!(server::serve(listeners, app, &http, ended), sides);
    served?;
    tracing::info!("stopping; running jobs continue in their sandboxes and resume at the next start");
    orchestrator.shutdown().await;
    Ok(())
}

/// The parts of a server that is ready to serve.
struct ReadyServer {
    listeners: Vec<TcpListener>,
    exposed: ExtraListeners,
    host: HostReports,
    orchestrator: Orchestrator,
}

async fn get_ready(config: &Config, running: &Arc<RunningConfig>) -> Result<ReadyServer> {
    // Lock the folder first: a second server must not touch anything in it.
    let folder = DataFolder::open(&config.data)?;
    let listeners = bind_all(config).await?;
    let exposed = ExtraListeners::bind(config).await?;
    let backend = backend::make(config)?;
    programs::sweep(&config.data);
    let capabilities = backend.preflight().await?;
    tracing::info!(isolation = %capabilities.isolation, data = %config.data.display(), "this host can run sandboxes");
    let missing: Vec<String> = capabilities.unenforced().iter().map(ToString::to_string).collect();
    if !missing.is_empty() {
        tracing::warn!("limits not enforced on this host: {}; `caisson doctor` says why", missing.join(", "));
    }
    let wanted = config.jobs.defaults.isolation;
    if capabilities.isolation < wanted {
        tracing::warn!(
            has = %capabilities.isolation, %wanted,
            "jobs are refused unless they accept less isolation by name; `caisson doctor` says what is missing"
        );
    }
    let host = host_reports::reports(running, &backend);
    let store = DATABASE.open(&config.data)?;
    let orchestrator = Orchestrator::start(folder, store, backend, config.jobs.clone()).await?;
    warn_if_exposed(config, &orchestrator);
    Ok(ReadyServer { listeners, exposed, host, orchestrator })
}

/// Warns about what others who can reach this server could do.
fn warn_if_exposed(config: &Config, orchestrator: &Orchestrator) {
    let fixed_ports = config.expose.addresses();
    let is_reached = config.listen.iter().chain(&fixed_ports).any(|address| !address.ip().is_loopback());
    if !orchestrator.requires_authentication() && (is_reached || config.insecure_listen) {
        tracing::warn!("no authentication on a public address: anyone who can reach this server controls it");
    } else if is_reached && config.http.certificate.is_none() && config.http.trusted_proxies.is_empty() {
        tracing::warn!("no TLS on a public address: API keys are sent in clear text");
    }
}

async fn bind_all(config: &Config) -> Result<Vec<TcpListener>> {
    let mut listeners = Vec::new();
    for address in &config.listen {
        listeners.push(bind::bind(*address, "--listen").await?);
    }
    Ok(listeners)
}

/// Returns when the server must shut down: on a signal, or, if it waits for running jobs, once they have ended. A
/// second signal ends the wait.
async fn wait_for_end(mut stops: StopSignals, orchestrator: Orchestrator) {
    stops.next().await;
    tokio::select! {
        () = orchestrator.drain() => {}
        () = stops.next() => tracing::info!("second stop signal received: not waiting any longer"),
    }
}

/// The stop signals of the server. No signal is lost once this exists.
struct StopSignals {
    terminate: Signal,
    interrupt: Signal,
}

impl StopSignals {
    fn listen() -> Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate()).context("listening for SIGTERM")?,
            interrupt: signal(SignalKind::interrupt()).context("listening for SIGINT")?,
        })
    }

    /// Returns on SIGTERM or Ctrl-C.
    async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn server_raises_its_open_file_limit() {
        let maximum = getrlimit(Resource::Nofile).maximum;
        setrlimit(Resource::Nofile, Rlimit { current: Some(100), maximum }).unwrap();
        raise_open_file_limit();
        assert_eq!(getrlimit(Resource::Nofile).current, maximum);
    }
}
