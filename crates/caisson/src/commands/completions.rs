//! `caisson completions`

use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, Command};
use clap_complete::Shell;

use crate::output::print;

/// `caisson completions`
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  caisson completions bash > /etc/bash_completion.d/caisson
  caisson completions zsh > ~/.zfunc/_caisson
  caisson completions fish > ~/.config/fish/completions/caisson.fish")]
pub(crate) struct CompletionsArguments {
    /// Shell to print completions for.
    shell: Shell,
}

#[expect(clippy::needless_pass_by_value, reason = "every command takes its arguments the same way")]
/// Prints the completions of `command`, the whole program.
pub(crate) fn run(arguments: CompletionsArguments, mut command: Command) -> Result<ExitCode> {
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut command, "caisson", &mut script);
    print(&String::from_utf8_lossy(&script))?;
    Ok(ExitCode::SUCCESS)
}
