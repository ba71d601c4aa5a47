//! `caisson openapi`

use std::process::ExitCode;

use anyhow::Result;

/// Prints the document.
pub(crate) fn run() -> Result<ExitCode> {
    super::print(&format!("{}\n", server::openapi().to_pretty_json()?))?;
    Ok(ExitCode::SUCCESS)
}
