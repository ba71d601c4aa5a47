//! `caisson retry`

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use serde_json::json;

use crate::arguments::{OutputArguments, ServerArguments};
use crate::client::Client;
use crate::client::ids;
use crate::output::{print, print_json, value_text};

/// `caisson retry`
#[derive(Debug, Args)]
#[command(after_help = "\
Prints the id of the new job, which has the same steps, limits and files.

Examples:
  caisson retry 1c2d4e6f
  caisson logs -f $(caisson retry 1c2d4e6f)")]
pub(crate) struct RetryArguments {
    /// Id or name of the job.
    id: String,
    #[command(flatten)]
    server: ServerArguments,
    #[command(flatten)]
    output: OutputArguments,
}

pub(crate) async fn run(arguments: RetryArguments) -> Result<ExitCode> {
    let client = Client::new(&arguments.server)?;
    let id = ids::job(&client, &arguments.id).await?;
    let accepted = client.post(&format!("/v1/jobs/{id}/retry"), &json!({})).await?;
    if arguments.output.json {
        print_json(&accepted)?;
    } else {
        print(&format!("{}\n", value_text(&accepted["job_id"])))?;
    }
    Ok(ExitCode::SUCCESS)
}
