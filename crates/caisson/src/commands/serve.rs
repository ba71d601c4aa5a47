//! `caisson serve`

use std::net::SocketAddr;
use std::process::ExitCode;

use anyhow::Result;
use clap::Args;

use crate::arguments::HostArguments;
use crate::config::{Config, check};
use crate::{logging, serve};

/// `caisson serve`
#[derive(Debug, Args)]
#[command(after_help = "\
Settings come from flags, then the environment (CAISSON_DATA, CAISSON_LISTEN, ...), then the file, then defaults.
SIGHUP reloads the file. The log level, models and job limits change at once; the log names the settings that need a
restart.

Examples:
  caisson serve --data ./data
  caisson serve --listen 127.0.0.1:8000 --listen 127.0.0.1:3001")]
pub(crate) struct ServeArguments {
    #[command(flatten)]
    pub(crate) host: HostArguments,
    /// Address to listen on; repeatable.
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) listen: Vec<SocketAddr>,
    /// Allow listening on public addresses without API keys; anyone who can reach them controls the server.
    #[arg(long)]
    pub(crate) insecure_listen: bool,
}

/// Runs the server until it receives a stop signal.
pub(crate) fn run(arguments: ServeArguments) -> Result<ExitCode> {
    let config = load(&arguments)?;
    let (level, exporter) = logging::start(&config.log, config.log_format, config.telemetry.clone())?;
    for unknown in check::unknown_variables(&arguments.host) {
        tracing::warn!("{unknown}");
    }
    serve::run(config, move || load(&arguments), level, exporter)?;
    Ok(ExitCode::SUCCESS)
}

fn load(arguments: &ServeArguments) -> Result<Config> {
    Config::load_for_server(&arguments.host, &arguments.listen, arguments.insecure_listen)
}
