//! The binary: command line, configuration, wiring. The only crate that names concrete backends.

mod arguments;
mod cli;
mod client;
mod coded_error;
mod commands;
mod config;
mod demo;
mod host;
mod logging;
mod output;
mod serve;
mod signals;
mod telemetry;
mod tls;

use std::future::Future;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::FromArgMatches;

use crate::cli::{Cli, Command};
use crate::output::errors::{self, ErrorFormat};

fn main() -> ExitCode {
    let words: Vec<_> = std::env::args_os().collect();
    let parsed = cli::command()
        .try_get_matches_from(&words)
        .and_then(|matches| Ok((ErrorFormat::of(&matches), Cli::from_arg_matches(&matches)?)));
    let (error_format, cli) = match parsed {
        Ok(parsed) => parsed,
        Err(error) => return errors::report_usage_error(&error, &words),
    };
    let result = match cli.command {
        Command::Serve(arguments) => commands::serve::run(arguments),
        Command::Run(arguments) => wait_for(commands::run::run(arguments)),
        Command::Jobs(arguments) => wait_for(commands::jobs::run(arguments)),
        Command::Status(arguments) => wait_for(commands::status::run(arguments)),
        Command::Open(arguments) => wait_for(commands::open::run(arguments)),
        Command::Logs(arguments) => wait_for(commands::logs::run(arguments)),
        Command::Cancel(arguments) => wait_for(commands::cancel::run(arguments)),
        Command::Extend(arguments) => wait_for(commands::extend::run(arguments)),
        Command::Pause(arguments) => wait_for(commands::pause::run(arguments)),
        Command::Resume(arguments) => wait_for(commands::resume::run(arguments)),
        Command::Takeover(arguments) => wait_for(commands::takeover::take(arguments)),
        Command::Handback(arguments) => wait_for(commands::takeover::hand_back(arguments)),
        Command::Message(arguments) => wait_for(commands::message::run(arguments)),
        Command::Requests(arguments) => wait_for(commands::requests::run(arguments)),
        Command::Context(arguments) => wait_for(commands::context::run(arguments)),
        Command::Answer(arguments) => wait_for(commands::answer::run(arguments)),
        Command::Replay(arguments) => wait_for(commands::replay::run(arguments)),
        Command::Export(arguments) => wait_for(commands::export::run(arguments)),
        Command::Demo(arguments) => wait_for(commands::demo::run(arguments)),
        Command::Retry(arguments) => wait_for(commands::retry::run(arguments)),
        Command::Download(arguments) => wait_for(commands::download::run(arguments)),
        Command::Rm(arguments) => wait_for(commands::remove::run(arguments)),
        Command::Shell(arguments) => wait_for(commands::shell::run(arguments)),
        Command::Exec(arguments) => wait_for(commands::exec::run(arguments)),
        Command::Attach(arguments) => wait_for(commands::attach::run(arguments)),
        Command::Network(arguments) => wait_for(commands::network::run(arguments)),
        Command::Ports(arguments) => wait_for(commands::ports::run(arguments)),
        Command::Cp(arguments) => wait_for(commands::copy::run(arguments)),
        Command::Sandboxes(arguments) => wait_for(commands::sandboxes::run(arguments)),
        Command::Share(arguments) => wait_for(commands::share::run(arguments)),
        Command::Shares(arguments) => wait_for(commands::shares::run(arguments)),
        Command::Keys(arguments) => wait_for(commands::keys::run(arguments)),
        Command::Image(arguments) => commands::image::run(arguments),
        Command::Models(arguments) => wait_for(commands::models::run(arguments)),
        Command::Doctor(arguments) => commands::doctor::run(&arguments),
        Command::Backup(arguments) => commands::backup::back_up(&arguments),
        Command::Audit(arguments) => commands::audit::run(arguments),
        Command::Restore(arguments) => commands::backup::restore(&arguments),
        Command::Config(arguments) => commands::check::run(arguments),
        Command::Completions(arguments) => commands::completions::run(arguments, cli::command()),
        Command::Man(arguments) => commands::manual::run(arguments, cli::command()),
        Command::Openapi => commands::openapi::run(),
    };
    result.unwrap_or_else(|error| error_format.print(&error))
}

/// Runs a client command. A single thread is enough.
fn wait_for(command: impl Future<Output = Result<ExitCode>>) -> Result<ExitCode> {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().context("starting the runtime")?;
    runtime.block_on(Box::pin(command))
}
