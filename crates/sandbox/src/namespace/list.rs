//! Finding every sandbox of this server again, by directory names.

use std::fs;

use super::Inner;
use crate::error::{SandboxError, failed};
use crate::spec::SandboxId;

/// Lists sandboxes in any phase, including the remains of ended ones.
pub(super) fn list(inner: &Inner) -> Result<Vec<SandboxId>, SandboxError> {
    let directory = inner.layout.sandboxes();
    let entries = fs::read_dir(&directory).map_err(|source| failed("listing", &directory, source))?;
    Ok(entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect())
}
