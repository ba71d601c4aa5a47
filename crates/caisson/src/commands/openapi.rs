//! `caisson openapi`

use std::process::ExitCode;

use anyhow::Result;

/// Prints the document.
#[expect(clippy::print_stdout, reason = "this is what the command is for")]
pub(crate) fn run() -> Result<ExitCode> {
    println!("{}", server::openapi().to_pretty_json()?);
    Ok(ExitCode::SUCCESS)
}
