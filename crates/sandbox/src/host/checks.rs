//! Checks that several backends make, and the results of checks.

use std::path::Path;

use crate::error::SandboxError;
use crate::spec::{Check, CheckState};

const LOW_DISK_GIB: u64 = 5;

pub(crate) fn good(name: &str, found: impl Into<String>) -> Check {
    Check { name: name.into(), state: CheckState::Good, found: found.into(), remedy: None }
}

pub(crate) fn flawed(state: CheckState, name: &str, found: impl Into<String>, remedy: &str) -> Check {
    Check { name: name.into(), state, found: found.into(), remedy: Some(remedy.into()) }
}

/// Fails with the first check whose subject is missing.
pub(crate) fn refuse_missing(checks: &[Check]) -> Result<(), SandboxError> {
    let Some(missing) = checks.iter().find(|check| check.state == CheckState::Missing) else { return Ok(()) };
    Err(SandboxError::HostUnsupported {
        what: format!("{}: {}", missing.name, missing.found),
        remedy: missing.remedy.clone().unwrap_or_default(),
    })
}

/// Whether a program that sandboxes need is there.
pub(crate) fn program(name: &str, path: &Path) -> Check {
    if path.starts_with("/proc/self/fd") {
        return good(name, "part of this program");
    }
    if path.is_file() {
        return good(name, path.display().to_string());
    }
    flawed(CheckState::Missing, name, format!("{} is missing", path.display()), "restart the server")
}

/// The free space of the disk that holds a directory.
pub(crate) fn free_disk(directory: &Path) -> Check {
    let name = "free disk";
    // A folder that does not exist yet will be on the disk of its closest existing parent.
    let there = directory.ancestors().find(|path| path.exists()).unwrap_or(directory);
    let Ok(figures) = rustix::fs::statvfs(there) else {
        return flawed(
            CheckState::Weaker,
            name,
            format!("{} cannot be read", directory.display()),
            "check the path",
        );
    };
    let gib = (figures.f_bavail.saturating_mul(figures.f_frsize)) >> 30;
    let found = format!("{gib} GiB in {}", directory.display());
    if gib >= LOW_DISK_GIB {
        return good(name, found);
    }
    flawed(CheckState::Weaker, name, found, "free some disk space, or move the data folder")
}
