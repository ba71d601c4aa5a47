//! `caisson doctor`

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, Result};
use sandbox::{Backend, BackendKind, Capabilities, Check, CheckState, SandboxError};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::doctor_folders::Folders;
use crate::cli::DoctorArguments;
use crate::config::Config;
use crate::config_backend::BackendChoice;
use crate::config_limits;
use crate::embedded::InMemory;
use crate::terminal::Colours;

/// The host cannot run sandboxes.
const EXIT_UNFIT: u8 = 1;

/// Checks the host and prints what it supports. Its experiments leave nothing behind.
pub(crate) fn run(arguments: &DoctorArguments) -> Result<ExitCode> {
    let config = Config::load(&arguments.host, &[], false)?;
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().context("starting the runtime")?;
    let folders = Folders::look_at(&config);
    let found = match to_look(&config, folders.scratch.as_ref().map(TempDir::path)) {
        Ok((_programs, backend)) => runtime.block_on(look(&config, &*backend, folders.checks)),
        Err(error) => Err(unfit(folders.checks, &format!("{error:#}"))),
    };
    super::print(&match &found {
        found if arguments.json => {
            serde_json::to_string_pretty(&document(found, kind_of(config.backend))?)? + "\n"
        }
        Ok(capabilities) => table(capabilities, Colours::of_output()),
        Err((error, checks)) => {
            lines(checks, Colours::of_output()) + &format!("\nthis host cannot run sandboxes: {error}\n")
        }
    })?;
    Ok(if found.is_ok() { ExitCode::SUCCESS } else { ExitCode::from(EXIT_UNFIT) })
}

/// The report for the server's API.
pub(crate) async fn report(config: &Config, backend: &dyn Backend) -> Result<Value> {
    let folders = Folders::look_at(config);
    document(&look(config, backend, folders.checks).await, backend.kind())
}

/// A backend that changes nothing, and its programs.
fn to_look(config: &Config, scratch: Option<&Path>) -> Result<(InMemory, Arc<dyn Backend>)> {
    let scratch = scratch.context("there is no folder to try anything in")?;
    let programs = InMemory::new().context("keeping the programs of sandboxes in memory")?;
    let backend = super::backend::make_to_look(config, programs.programs(), scratch)?;
    Ok((programs, backend))
}

fn kind_of(choice: BackendChoice) -> BackendKind {
    match choice {
        BackendChoice::Namespace => BackendKind::Namespace,
        BackendChoice::Docker => BackendKind::Docker,
    }
}

type Found = Result<Capabilities, (SandboxError, Vec<Check>)>;

async fn look(config: &Config, backend: &dyn Backend, mut checks: Vec<Check>) -> Found {
    // The Docker backend reports on its own images.
    let image = (config.backend == BackendChoice::Namespace).then(|| super::image::check(config));
    let found = backend.preflight().await;
    match &found {
        Ok(capabilities) => checks.extend(capabilities.checks.iter().cloned()),
        Err(_) => checks.extend(backend.checks().await),
    }
    checks.extend(image);
    checks.push(ceilings(config));
    match found {
        Ok(_) if checks.iter().any(|check| check.state == CheckState::Missing) => Err(unfit(checks, "")),
        Ok(capabilities) => Ok(Capabilities { checks, ..capabilities }),
        Err(error) => Err((error, checks)),
    }
}

/// The limits that requests may ask for.
fn ceilings(config: &Config) -> Check {
    let name = "requests".to_owned();
    match config_limits::described(&config.jobs.ceilings.everybody) {
        Some(found) => Check { name, state: CheckState::Good, found, remedy: None },
        None => Check {
            name,
            state: CheckState::Weaker,
            found: "may ask for any amount of memory, CPUs or disk: what the engine's host has is not known"
                .into(),
            remedy: Some("set memory_mib, cpus and disk_mib in [limits.max]".into()),
        },
    }
}

/// The error of the first failed check; if none failed, an error with the text of `otherwise`.
fn unfit(mut checks: Vec<Check>, otherwise: &str) -> (SandboxError, Vec<Check>) {
    let missing = checks.iter().find(|check| check.state == CheckState::Missing).cloned();
    let missing = missing.unwrap_or_else(|| {
        let remedy = Some("name another folder for the data: --data FOLDER".to_owned());
        let check = Check {
            name: "sandboxes".into(),
            state: CheckState::Missing,
            found: otherwise.to_owned(),
            remedy,
        };
        checks.push(check.clone());
        check
    });
    let what = format!("{}: {}", missing.name, missing.found);
    (SandboxError::HostUnfit { what, remedy: missing.remedy.unwrap_or_default() }, checks)
}

fn document(found: &Found, backend: BackendKind) -> Result<Value> {
    let mut document = match found {
        Ok(capabilities) => serde_json::to_value(capabilities)?,
        Err((error, checks)) => json!({ "error": error.to_string(), "checks": checks }),
    };
    document["backend"] = serde_json::to_value(backend)?;
    Ok(document)
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
