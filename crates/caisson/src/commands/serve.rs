//! `caisson serve`

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use futures::FutureExt;
use orchestrator::{DataFolder, Orchestrator};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use server::HostReports;
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::cli::ServeArguments;
use crate::config::Config;
use crate::config_check;
use crate::embedded;
use crate::exposed::Exposed;
use crate::logging::{self, LogLevel};
use crate::reload;

/// At shutdown, how long to wait for blocking threads.
const SHUTDOWN_PATIENCE: Duration = Duration::from_secs(10);

/// Runs the server until it receives a stop signal.
pub(crate) fn run(arguments: ServeArguments) -> Result<ExitCode> {
    let config = Config::load(&arguments.host, &arguments.listen, arguments.insecure_listen)?;
    let (level, exporter) = logging::start(&config.log, config.log_format, config.telemetry.clone())?;
    for unknown in config_check::unknown_variables(&arguments.host) {
        tracing::warn!("{unknown}");
    }
    open_as_many_files_as_allowed();
    let runtime =
        tokio::runtime::Builder::new_multi_thread().enable_all().build().context("starting the runtime")?;
    if let Some(exporter) = exporter {
        runtime.spawn(async {
            if let Err(error) = exporter.run().await {
                tracing::warn!("traces are not sent: {error:#}");
            }
        });
    }
    let served = runtime.block_on(serve(arguments, config, level));
    // Blocking work that is still running then, such as syncing a disk, is repeated by the next server.
    runtime.shutdown_timeout(SHUTDOWN_PATIENCE);
    served?;
    Ok(ExitCode::SUCCESS)
}

/// Raises the soft limit on open files to the hard limit. Shells set 1,024 for compatibility with old programs, but
/// each running job needs two and each connection one. Programs in sandboxes have their own limits.
fn open_as_many_files_as_allowed() {
    let maximum = getrlimit(Resource::Nofile).maximum;
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }) {
        tracing::warn!(%error, "the number of open files stays limited as it was");
    }
}

async fn serve(arguments: ServeArguments, config: Config, level: LogLevel) -> Result<()> {
    // From now on these signals no longer end the process by default.
    let hangup = signal(SignalKind::hangup()).context("listening for SIGHUP")?;
    let mut stops = Stops::listen()?;
    // Until the server is ready there is nothing to shut down.
    let ready = tokio::select! {
        () = stops.next() => {
            tracing::info!("told to stop before this server was ready");
            return Ok(());
        }
        ready = get_ready(&config) => ready?,
    };
    let Ready { listeners, exposed, host, orchestrator } = ready;
    tokio::spawn(reload::run(hangup, arguments, level, config.clone(), orchestrator.clone()));
    let mut http = config.http.clone();
    http.access_log = server::AccessLog::open(&config.data)?;
    let app = server::router(orchestrator.clone(), host, &http);
    for listener in &listeners {
        let scheme = if config.http.certificate.is_some() { "https" } else { "http" };
        tracing::info!("listening on {scheme}://{}", listener.local_addr().context("reading the address")?);
    }
    protocol::give_back_program_pages();
    let ended = wait_for_end(stops, orchestrator.clone()).shared();
    let sides = exposed.serve(&orchestrator, &http, ended.clone());
    let (served, ()) = tokio::join!(server::serve(listeners, app, &http, ended), sides);
    served?;
    tracing::info!("stopping; jobs that run go on in their sandboxes and are taken up at the next start");
    orchestrator.shutdown().await;
    Ok(())
}

/// The parts of a server that is ready to serve.
struct Ready {
    listeners: Vec<TcpListener>,
    exposed: Exposed,
    host: HostReports,
    orchestrator: Orchestrator,
}

async fn get_ready(config: &Config) -> Result<Ready> {
    // Lock the folder first: a second server must not touch anything in it.
    let folder = DataFolder::open(&config.data)?;
    let listeners = bind(config).await?;
    let exposed = Exposed::bind(config).await?;
    let backend = super::backend::make(config)?;
    embedded::sweep(&config.data);
    let capabilities = backend.preflight().await?;
    tracing::info!(isolation = %capabilities.isolation, data = %config.data.display(), "this host can run sandboxes");
    let missing: Vec<String> = capabilities.unenforced().iter().map(ToString::to_string).collect();
    if !missing.is_empty() {
        tracing::warn!(
            "limits that are not enforced here: {}; `caisson doctor` says why",
            missing.join(", ")
        );
    }
    let wanted = config.jobs.defaults.isolation;
    if capabilities.isolation < wanted {
        tracing::warn!(
            has = %capabilities.isolation, %wanted,
            "jobs are refused unless they accept less isolation by name; `caisson doctor` says what is missing"
        );
    }
    let host = crate::host::reports(config, &backend);
    let orchestrator = Orchestrator::start(folder, backend, config.jobs.clone()).await?;
    warn_of_others(config, &orchestrator);
    Ok(Ready { listeners, exposed, host, orchestrator })
}

/// Warns about what others who can reach this server could do.
fn warn_of_others(config: &Config, orchestrator: &Orchestrator) {
    let is_reached = config.listen.iter().any(|address| !address.ip().is_loopback());
    if !orchestrator.needs_keys() && (is_reached || config.insecure_listen) {
        tracing::warn!("nobody has to log in, and others may reach this server: whoever reaches it owns it");
    } else if is_reached && config.http.certificate.is_none() && config.http.trusted_proxies.is_empty() {
        tracing::warn!("others may reach this server without TLS: keys can be read on the way");
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

/// Returns when the server must shut down: on a signal, or, if it waits for running jobs, once they have ended. A
/// second signal ends the wait.
async fn wait_for_end(mut stops: Stops, orchestrator: Orchestrator) {
    stops.next().await;
    tokio::select! {
        () = orchestrator.drain() => {}
        () = stops.next() => tracing::info!("told to stop again: not waiting any longer"),
    }
}

/// The stop signals of the server. No signal is lost once this exists.
struct Stops {
    terminate: Signal,
    interrupt: Signal,
}

impl Stops {
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
    fn a_server_opens_as_many_files_as_it_is_allowed_to() {
        let maximum = getrlimit(Resource::Nofile).maximum;
        setrlimit(Resource::Nofile, Rlimit { current: Some(100), maximum }).unwrap();
        open_as_many_files_as_allowed();
        assert_eq!(getrlimit(Resource::Nofile).current, maximum);
    }
}
