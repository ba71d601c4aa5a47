//! `caisson doctor`

use std::io::IsTerminal;
use std::process::ExitCode;

use anyhow::{Context, Result};
use sandbox::{Backend, Check, CheckState};

use crate::cli::DoctorArguments;
use crate::config::Config;

/// The host cannot run sandboxes.
const EXIT_UNFIT: u8 = 1;

/// Looks at the host and says what it can do.
pub(crate) fn run(arguments: &DoctorArguments) -> Result<ExitCode> {
    let config = Config::load(&arguments.host, &[], false)?;
    let backend = super::backend(&config)?;
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().context("starting the runtime")?;
    let found = runtime.block_on(backend.preflight());
    super::print(&match &found {
        Ok(capabilities) if arguments.json => serde_json::to_string_pretty(capabilities)? + "\n",
        Ok(capabilities) => {
            let limits: Vec<String> = capabilities.enforced.iter().map(ToString::to_string).collect();
            let isolation = capabilities.isolation;
            table(&capabilities.checks)
                + &format!("\nisolation: {isolation:?}; limits that are enforced: {}\n", limits.join(", "))
        }
        Err(error) if arguments.json => format!("{}\n", serde_json::json!({ "error": error.to_string() })),
        Err(error) => table(&backend.checks()) + &format!("\nthis host cannot run sandboxes: {error}\n"),
    })?;
    Ok(if found.is_ok() { ExitCode::SUCCESS } else { ExitCode::from(EXIT_UNFIT) })
}

fn table(checks: &[Check]) -> String {
    let colours = std::io::stdout().is_terminal();
    let width = checks.iter().map(|check| check.name.len()).max().unwrap_or(0);
    let mut text = String::new();
    for Check { name, state, found, remedy } in checks {
        let (mark, colour) = match state {
            CheckState::Good => ("ok  ", "32"),
            CheckState::Weaker => ("weak", "33"),
            CheckState::Missing => ("no  ", "31"),
        };
        let mark = if colours { format!("\x1b[{colour}m{mark}\x1b[0m") } else { mark.to_owned() };
        text += &format!("{mark}  {name:width$}  {found}\n");
        if let Some(remedy) = remedy {
            text += &format!("      {:width$}  -> {remedy}\n", "");
        }
    }
    text
}
