//! `caisson doctor`

use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Args;
use sandbox::{Check, CheckState};
use serde_json::Value;

use crate::arguments::{HostArguments, ServerArguments};
use crate::client::described::Described;
use crate::host::inspection::{document, inspect};
use crate::output::terminal::Colours;
use crate::output::{print, print_json};

/// The host cannot run sandboxes.
const EXIT_UNFIT: u8 = 1;

/// `caisson doctor`
#[derive(Debug, Args)]
#[command(after_help = "\
If a server answers at --url, CAISSON_URL or the configured address, it checks its own host and folders. Otherwise, and
with --data, --run-dir or --backend, this command checks this host.
Exit codes: 0 the host can run sandboxes, 1 it cannot.

Examples:
  caisson doctor
  caisson doctor --data ./data             check this host, whether or not a server runs
  caisson doctor --json | jq .isolation")]
pub(crate) struct DoctorArguments {
    #[command(flatten)]
    pub(crate) host: HostArguments,
    #[command(flatten)]
    pub(crate) server: ServerArguments,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Checks the host of the server that answers, or this host, and prints what it supports. The experiments leave nothing
/// behind.
pub(crate) fn run(arguments: &DoctorArguments) -> Result<ExitCode> {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().context("starting the runtime")?;
    let described = runtime.block_on(Described::find(&arguments.server, &arguments.host, "/v1/doctor"))?;
    described.announce();
    let report = match described {
        Described::Server { answer, .. } => answer,
        Described::Folder { config, .. } => document(&inspect(&config, &runtime), config.backend)?,
    };
    if arguments.json {
        print_json(&report)?;
    } else {
        print(&describe(&report, Colours::of_output()))?;
    }
    Ok(if report["error"].is_null() { ExitCode::SUCCESS } else { ExitCode::from(EXIT_UNFIT) })
}

fn describe(report: &Value, colours: Colours) -> String {
    let checks = report["checks"].as_array().into_iter().flatten();
    // A server of another version may have checks that this program does not know.
    let checks: Vec<Check> = checks.filter_map(|check| serde_json::from_value(check.clone()).ok()).collect();
    let conclusion = match report["error"].as_str() {
        Some(error) => format!("this host cannot run sandboxes: {error}"),
        None => {
            let isolation = report["isolation"].as_str().unwrap_or("unknown");
            let limits = report["enforced"].as_array().into_iter().flatten();
            let limits: Vec<&str> = limits.filter_map(Value::as_str).collect();
            format!("isolation: {isolation}; enforced limits: {}", limits.join(", "))
        }
    };
    lines(&checks, colours) + &format!("\n{conclusion}\n")
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
