//! `caisson openapi`

use std::process::ExitCode;

use anyhow::Result;

use crate::output::print;

pub(crate) fn run() -> Result<ExitCode> {
    print(&format!("{}\n", server::openapi().to_pretty_json()?))?;
    Ok(ExitCode::SUCCESS)
}
