//! `caisson rm`

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use serde_json::json;

use crate::cli::{OutputArguments, ServerArguments};
use crate::client::Client;
use crate::ids;

/// `caisson rm`
#[derive(Debug, Args)]
#[command(after_help = "\
A job that is not over is refused: `caisson cancel` ends it.

Examples:
  caisson rm 1c2d4e6f
  caisson rm $(caisson jobs --state failed --json | jq -r '.jobs[].job_id')")]
pub(crate) struct RemoveArguments {
    /// The jobs.
    #[arg(required = true, value_name = "ID")]
    ids: Vec<String>,
    #[command(flatten)]
    server: ServerArguments,
    #[command(flatten)]
    output: OutputArguments,
}

/// Removes them.
pub(crate) async fn run(arguments: RemoveArguments) -> Result<ExitCode> {
    let client = Client::new(arguments.server.url.as_deref())?;
    let mut removed = Vec::new();
    for typed in &arguments.ids {
        let id = ids::job(&client, typed).await?;
        client.delete(&format!("/v1/jobs/{id}")).await?;
        if !arguments.output.json {
            super::print(&format!("{id} is gone\n"))?;
        }
        removed.push(id);
    }
    if arguments.output.json {
        super::print_json(&json!({ "removed": removed }))?;
    }
    Ok(ExitCode::SUCCESS)
}
