//! `caisson man`

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Args, Command};

/// `caisson man`
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  caisson man /usr/local/share/man/man1
  caisson man ./man && man ./man/caisson-run.1")]
pub(crate) struct ManualArguments {
    /// Target folder; created if it does not exist.
    #[arg(value_name = "FOLDER")]
    folder: PathBuf,
}

/// Writes a page for `command`, the whole program, and one per subcommand.
#[expect(clippy::needless_pass_by_value, reason = "every command takes its arguments the same way")]
pub(crate) fn run(arguments: ManualArguments, command: Command) -> Result<ExitCode> {
    let folder = &arguments.folder;
    std::fs::create_dir_all(folder).with_context(|| format!("creating the folder {}", folder.display()))?;
    clap_mangen::generate_to(command, folder)
        .with_context(|| format!("writing manual pages into {}", folder.display()))?;
    Ok(ExitCode::SUCCESS)
}
