//! `caisson completions`

use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, CommandFactory};
use clap_complete::Shell;

use crate::cli::Cli;

/// `caisson completions`
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  caisson completions bash > /etc/bash_completion.d/caisson
  caisson completions zsh > ~/.zfunc/_caisson
  caisson completions fish > ~/.config/fish/completions/caisson.fish")]
pub(crate) struct CompletionsArguments {
    /// The shell.
    shell: Shell,
}

#[expect(clippy::needless_pass_by_value, reason = "every command takes its arguments the same way")]
pub(crate) fn run(arguments: CompletionsArguments) -> Result<ExitCode> {
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut Cli::command(), "caisson", &mut script);
    super::print(&String::from_utf8_lossy(&script))?;
    Ok(ExitCode::SUCCESS)
}
