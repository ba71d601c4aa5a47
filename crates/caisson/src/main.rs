//! The binary: command line, configuration, wiring. The only place that names concrete backends.

mod cli;
mod commands;
mod config;
mod config_file;
mod embedded;
mod logging;
mod steps_file;

use std::process::ExitCode;

use clap::Parser;

use crate::cli::{Cli, Command};

fn main() -> ExitCode {
    let cli = Cli::parse();
    let result = match cli.command {
        Command::Serve(arguments) => commands::serve::run(arguments),
        Command::Run(arguments) => commands::run::run(arguments),
        Command::Doctor(arguments) => commands::doctor::run(&arguments),
        Command::Backup(arguments) => commands::backup::back_up(&arguments),
        Command::Restore(arguments) => commands::backup::restore(&arguments),
        Command::Openapi => commands::openapi::run(),
    };
    result.unwrap_or_else(|error| {
        eprintln!("caisson: {error:#}");
        ExitCode::from(commands::EXIT_TROUBLE)
    })
}
