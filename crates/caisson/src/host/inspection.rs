//! Inspects what this host supports: its folders, its backend, its default image, its limits.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result};
use sandbox::{Backend, BackendKind, Capabilities, Check, CheckState, SandboxError};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::runtime::Runtime;

use super::folders::Folders;
use super::programs::InMemory;
use super::{backend, images};
use crate::config::Config;
use crate::config::limits;

/// What the host supports; or why it cannot run sandboxes, with all checks.
pub(crate) type Inspection = Result<Capabilities, (SandboxError, Vec<Check>)>;

/// The report for the server's API.
pub(crate) async fn report(config: &Config, backend: &dyn Backend) -> Result<Value> {
    let folders = Folders::inspect(config);
    document(&run_checks(config, backend, folders.checks).await, backend.kind())
}

/// Inspects the host with a backend that changes nothing. Its experiments leave nothing behind.
pub(crate) fn inspect(config: &Config, runtime: &Runtime) -> Inspection {
    let folders = Folders::inspect(config);
    match for_inspection(config, folders.scratch.as_ref().map(TempDir::path)) {
        Ok((_programs, backend)) => runtime.block_on(run_checks(config, &*backend, folders.checks)),
        Err(error) => Err(first_failure(folders.checks, &format!("{error:#}"))),
    }
}

/// A backend that changes nothing, and its programs.
fn for_inspection(config: &Config, scratch: Option<&Path>) -> Result<(InMemory, Arc<dyn Backend>)> {
    let scratch = scratch.context("there is no folder for tests")?;
    let programs = InMemory::new().context("keeping the programs of sandboxes in memory")?;
    let backend = backend::make_for_inspection(config, programs.programs(), scratch)?;
    Ok((programs, backend))
}

async fn run_checks(config: &Config, backend: &dyn Backend, mut checks: Vec<Check>) -> Inspection {
    // The Docker backend reports on its own images.
    let image = (config.backend == BackendKind::Namespace).then(|| images::check(config));
    let preflight = backend.preflight().await;
    match &preflight {
        Ok(capabilities) => checks.extend(capabilities.checks.iter().cloned()),
        Err(_) => checks.extend(backend.checks().await),
    }
    checks.extend(image);
    checks.push(ceilings(config));
    match preflight {
        Ok(_) if checks.iter().any(|check| check.state == CheckState::Missing) => {
            Err(first_failure(checks, ""))
        }
        Ok(capabilities) => Ok(Capabilities { checks, ..capabilities }),
        Err(error) => Err((error, checks)),
    }
}

/// The limits that requests may ask for.
fn ceilings(config: &Config) -> Check {
    let name = "requests".to_owned();
    match limits::described(&config.jobs.ceilings.everybody) {
        Some(found) => Check { name, state: CheckState::Good, found, remedy: None },
        None => Check {
            name,
            state: CheckState::Weaker,
            found: "unlimited: the memory, CPUs and disk of the engine's host are unknown".into(),
            remedy: Some("set memory_mib, cpus and disk_mib in [limits.max]".into()),
        },
    }
}

/// The error of the first failed check; if none failed, an error with the text of `otherwise`.
fn first_failure(mut checks: Vec<Check>, otherwise: &str) -> (SandboxError, Vec<Check>) {
    let missing = checks.iter().find(|check| check.state == CheckState::Missing).cloned();
    let missing = missing.unwrap_or_else(|| {
        let remedy = Some("choose another data folder: --data FOLDER".to_owned());
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
    (SandboxError::HostUnsupported { what, remedy: missing.remedy.unwrap_or_default() }, checks)
}

/// The JSON document of an inspection.
pub(crate) fn document(inspection: &Inspection, backend: BackendKind) -> Result<Value> {
    let mut document = match inspection {
        Ok(capabilities) => serde_json::to_value(capabilities)?,
        Err((error, checks)) => json!({ "error": error.to_string(), "checks": checks }),
    };
    document["backend"] = serde_json::to_value(backend)?;
    Ok(document)
}
