//! `caisson openapi`

use std::process::ExitCode;

use anyhow::Result;

pub(crate) fn run() -> Result<ExitCode> {
    super::print(&format!("{}\n", server::openapi().to_pretty_json()?))?;
    Ok(ExitCode::SUCCESS)
}
