//! `caisson takeover` and `caisson handback`

use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Args;
use serde_json::json;

use crate::arguments::{OutputArguments, ServerArguments};
use crate::client::Client;
use crate::client::ids;
use crate::output::{print, print_json, say};

/// `caisson takeover`
#[derive(Debug, Args)]
#[command(after_help = "\
The agent pauses before its next call. Only requests with the printed token may run commands, type, click and write in
the sandbox; everyone else has read-only access. Commands send the token in CAISSON_TAKEOVER.

Examples:
  caisson takeover 1c2d4e6f --by Ada
  export CAISSON_TAKEOVER=$(caisson takeover 1c2d4e6f)
  caisson attach 1c2d4e6f
  caisson handback 1c2d4e6f")]
pub(crate) struct TakeoverArguments {
    /// Id or name of the job.
    #[arg(value_name = "ID")]
    id: String,
    /// Name to show to others.
    #[arg(long, value_name = "NAME")]
    by: Option<String>,
    #[command(flatten)]
    server: ServerArguments,
    #[command(flatten)]
    output: OutputArguments,
}

/// Takes a sandbox over and prints the token.
pub(crate) async fn take(arguments: TakeoverArguments) -> Result<ExitCode> {
    let client = Client::new(&arguments.server)?;
    let id = ids::job(&client, &arguments.id).await?;
    let body = match &arguments.by {
        Some(by) => json!({ "by": by }),
        None => json!({}),
    };
    let answer = client.post(&format!("/v1/jobs/{id}/takeover"), &body).await?;
    if arguments.output.json {
        print_json(&answer)?;
    } else {
        let token = answer["token"].as_str().context("the server sent no token")?;
        print(&format!("{token}\n"))?;
        say("the agent waits; export the token as CAISSON_TAKEOVER, and finish with `caisson handback`");
    }
    Ok(ExitCode::SUCCESS)
}

/// `caisson handback`
#[derive(Debug, Args)]
#[command(after_help = "\
The agent receives a list of changed files and executed commands, then continues.

Examples:
  caisson handback 1c2d4e6f
  caisson handback 1c2d4e6f --force      # without the token")]
pub(crate) struct HandbackArguments {
    /// Id or name of the job.
    #[arg(value_name = "ID")]
    id: String,
    /// End the takeover of another user.
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    server: ServerArguments,
    #[command(flatten)]
    output: OutputArguments,
}

/// Hands a sandbox back to the agent.
pub(crate) async fn hand_back(arguments: HandbackArguments) -> Result<ExitCode> {
    let client = Client::new(&arguments.server)?;
    let id = ids::job(&client, &arguments.id).await?;
    let job = client.post(&format!("/v1/jobs/{id}/handback"), &json!({"force": arguments.force})).await?;
    if arguments.output.json {
        print_json(&job)?;
    } else {
        print(&format!("{id} is resuming\n"))?;
    }
    Ok(ExitCode::SUCCESS)
}
