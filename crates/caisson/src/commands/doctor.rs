//! `caisson doctor`

use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Args;
use sandbox::{Capabilities, Check, CheckState};

use crate::arguments::HostArguments;
use crate::config::Config;
use crate::host::inspection::{document, inspect, kind_of};
use crate::output::print;
use crate::output::terminal::Colours;

/// The host cannot run sandboxes.
const EXIT_UNFIT: u8 = 1;

/// `caisson doctor`
#[derive(Debug, Args)]
#[command(after_help = "\
Exit code: 0 this host can run sandboxes, 1 it cannot.

Examples:
  caisson doctor
  caisson doctor --json | jq .isolation")]
pub(crate) struct DoctorArguments {
    #[command(flatten)]
    pub(crate) host: HostArguments,
    /// Prints JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Checks the host and prints what it supports. Its experiments leave nothing behind.
pub(crate) fn run(arguments: &DoctorArguments) -> Result<ExitCode> {
    let config = Config::load(&arguments.host, &[], false)?;
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().context("starting the runtime")?;
    let inspection = inspect(&config, &runtime);
    print(&match &inspection {
        inspection if arguments.json => {
            serde_json::to_string_pretty(&document(inspection, kind_of(config.backend))?)? + "\n"
        }
        Ok(capabilities) => table(capabilities, Colours::of_output()),
        Err((error, checks)) => {
            lines(checks, Colours::of_output()) + &format!("\nthis host cannot run sandboxes: {error}\n")
        }
    })?;
    Ok(if inspection.is_ok() { ExitCode::SUCCESS } else { ExitCode::from(EXIT_UNFIT) })
}

fn table(capabilities: &Capabilities, colours: Colours) -> String {
    let limits: Vec<String> = capabilities.enforced.iter().map(ToString::to_string).collect();
    let isolation = capabilities.isolation;
    lines(&capabilities.checks, colours)
        + &format!("\nisolation: {isolation}; limits that are enforced: {}\n", limits.join(", "))
}

fn lines(checks: &[Check], colours: Colours) -> String {
    let width = checks.iter().map(|check| check.name.len()).max().unwrap_or(0);
    let mut text = String::new();
    for Check { name, state, found, remedy } in checks {
        let (mark, colour) = match state {
            CheckState::Good => ("ok  ", "32"),
            CheckState::Weaker => ("weak", "33"),
            CheckState::Missing => ("no  ", "31"),
        };
        let mark = colours.paint(colour, mark);
        text += &format!("{mark}  {name:width$}  {found}\n");
        if let Some(remedy) = remedy {
            text += &format!("      {:width$}  -> {remedy}\n", "");
        }
    }
    text
}
