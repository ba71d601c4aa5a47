//! `caisson cancel`

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use serde_json::json;

use crate::cli::{OutputArguments, ServerArguments};
use crate::client::Client;
use crate::ids;

/// `caisson cancel`
#[derive(Debug, Args)]
#[command(after_help = "\
The workspace is collected as far as it got; `caisson download` fetches it.

Examples:
  caisson cancel 1c2d4e6f
  caisson cancel 1c2d4e6f 8a9b0c1d")]
pub(crate) struct CancelArguments {
    /// The jobs.
    #[arg(required = true, value_name = "ID")]
    ids: Vec<String>,
    #[command(flatten)]
    server: ServerArguments,
    #[command(flatten)]
    output: OutputArguments,
}

/// Asks them to end.
pub(crate) async fn run(arguments: CancelArguments) -> Result<ExitCode> {
    let client = Client::new(arguments.server.url.as_deref())?;
    for typed in &arguments.ids {
        let id = ids::job(&client, typed).await?;
        let job = client.post(&format!("/v1/jobs/{id}/cancel"), &json!({})).await?;
        if arguments.output.json {
            super::print_json(&job)?;
        } else {
            super::print(&format!("{id} will end\n"))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}
