//! `caisson doctor`

use std::process::ExitCode;

use anyhow::{Context, Result};
use sandbox::{Backend, Capabilities, Check, CheckState};

use crate::cli::DoctorArguments;
use crate::config::Config;
use crate::terminal::Colours;

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
        Ok(capabilities) => table(capabilities, Colours::of_output()),
        Err(error) if arguments.json => {
            let answer = serde_json::json!({ "error": error.to_string(), "checks": backend.checks() });
            serde_json::to_string_pretty(&answer)? + "\n"
        }
        Err(error) => {
            lines(&backend.checks(), Colours::of_output())
                + &format!("\nthis host cannot run sandboxes: {error}\n")
        }
    })?;
    Ok(if found.is_ok() { ExitCode::SUCCESS } else { ExitCode::from(EXIT_UNFIT) })
}

fn table(capabilities: &Capabilities, colours: Colours) -> String {
    let limits: Vec<String> = capabilities.enforced.iter().map(ToString::to_string).collect();
    let isolation = capabilities.isolation;
    lines(&capabilities.checks, colours)
        + &format!("\nisolation: {isolation:?}; limits that are enforced: {}\n", limits.join(", "))
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
