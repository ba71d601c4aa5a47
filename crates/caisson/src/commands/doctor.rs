//! `caisson doctor`

use std::process::ExitCode;

use anyhow::{Context, Result};
use sandbox::{Backend, Capabilities, Check, CheckState, SandboxError};
use serde_json::{Value, json};

use crate::cli::DoctorArguments;
use crate::config::Config;
use crate::config_backend::BackendChoice;
use crate::terminal::Colours;

/// The host cannot run sandboxes.
const EXIT_UNFIT: u8 = 1;

/// Looks at the host and says what it can do.
pub(crate) fn run(arguments: &DoctorArguments) -> Result<ExitCode> {
    let config = Config::load(&arguments.host, &[], false)?;
    let backend = super::backend::make(&config)?;
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().context("starting the runtime")?;
    let found = runtime.block_on(look(&config, &*backend));
    super::print(&match &found {
        found if arguments.json => serde_json::to_string_pretty(&document(found, &*backend)?)? + "\n",
        Ok(capabilities) => table(capabilities, Colours::of_output()),
        Err((error, checks)) => {
            lines(checks, Colours::of_output()) + &format!("\nthis host cannot run sandboxes: {error}\n")
        }
    })?;
    Ok(if found.is_ok() { ExitCode::SUCCESS } else { ExitCode::from(EXIT_UNFIT) })
}

/// The same for who asks the server.
pub(crate) async fn report(config: &Config, backend: &dyn Backend) -> Result<Value> {
    document(&look(config, backend).await, backend)
}

type Found = Result<Capabilities, (SandboxError, Vec<Check>)>;

async fn look(config: &Config, backend: &dyn Backend) -> Found {
    // Images of the engine are for the backend to tell of.
    let image = (config.backend == BackendChoice::Namespace).then(|| super::image::check(config));
    match backend.preflight().await {
        Ok(mut capabilities) => {
            capabilities.checks.extend(image);
            Ok(capabilities)
        }
        Err(error) => {
            let mut checks = backend.checks().await;
            checks.extend(image);
            Err((error, checks))
        }
    }
}

fn document(found: &Found, backend: &dyn Backend) -> Result<Value> {
    let mut document = match found {
        Ok(capabilities) => serde_json::to_value(capabilities)?,
        Err((error, checks)) => json!({ "error": error.to_string(), "checks": checks }),
    };
    document["backend"] = serde_json::to_value(backend.kind())?;
    Ok(document)
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
