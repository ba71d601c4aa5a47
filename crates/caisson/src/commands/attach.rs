//! `caisson attach`

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;

use crate::arguments::ServerArguments;
use crate::client::Client;
use crate::client::{exec, ids};

/// `caisson attach`
#[derive(Debug, Args)]
#[command(after_help = "\
The job keeps running. The exit code is that of the shell, or 125 if the shell could not be run.

Examples:
  caisson attach 1c2d4e6f")]
pub(crate) struct AttachArguments {
    /// Id or name of the job or bare sandbox.
    id: String,
    #[command(flatten)]
    server: ServerArguments,
}

/// Opens the shell and runs until it exits.
pub(crate) async fn run(arguments: AttachArguments) -> Result<ExitCode> {
    let client = Client::new(&arguments.server)?;
    let target = ids::target(&client, &arguments.id).await?;
    exec::run(&client, &target, super::shell::shell()).await
}
