//! `caisson message`

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use serde_json::json;

use crate::arguments::{OutputArguments, ServerArguments};
use crate::client::Client;
use crate::client::ids;
use crate::output::{print, print_json};

/// `caisson message`
#[derive(Debug, Args)]
#[command(after_help = "\
The agent reads it in its next turn. A job that is paused because its agent is stuck resumes.

Examples:
  caisson message 1c2d4e6f \"Use SQLite instead of a file\"")]
pub(crate) struct MessageArguments {
    /// Id or name of the job.
    #[arg(value_name = "ID")]
    id: String,
    /// Text of the message.
    #[arg(value_name = "TEXT")]
    text: String,
    #[command(flatten)]
    server: ServerArguments,
    #[command(flatten)]
    output: OutputArguments,
}

/// Sends a message to an agent.
pub(crate) async fn run(arguments: MessageArguments) -> Result<ExitCode> {
    let client = Client::new(&arguments.server)?;
    let id = ids::job(&client, &arguments.id).await?;
    let job = client.post(&format!("/v1/jobs/{id}/message"), &json!({"text": arguments.text})).await?;
    if arguments.output.json {
        print_json(&job)?;
    } else {
        print(&format!("message sent; the agent of {id} reads it in its next turn\n"))?;
    }
    Ok(ExitCode::SUCCESS)
}
