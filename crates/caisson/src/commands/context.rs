//! `caisson context`

use std::process::ExitCode;

use anyhow::{Context as _, Result};
use clap::Args;
use reqwest::Method;

use crate::arguments::{OutputArguments, ServerArguments};
use crate::client::Client;
use crate::client::ids;
use crate::output::{print, print_json};

/// `caisson context`
#[derive(Debug, Args)]
#[command(after_help = "\
Prints a table with the tokens and events of each part of the prompt, then the parts in full.
--at with a `turn_started` event shows the prompt that was sent. With any other event it shows the prompt as it would
be sent after that event.

Examples:
  caisson context 1c2d4e6f
  caisson context 1c2d4e6f --at e57
  caisson context 1c2d4e6f --json | jq '.segments[] | select(.kind == \"summary\") | .covers, .cites'")]
pub(crate) struct ContextArguments {
    /// Id or name of the job.
    #[arg(value_name = "ID")]
    id: String,
    /// Event number, such as 57 or e57 [default: the newest].
    #[arg(long, value_name = "EVENT")]
    at: Option<String>,
    #[command(flatten)]
    server: ServerArguments,
    #[command(flatten)]
    output: OutputArguments,
}

/// Shows the model's context.
pub(crate) async fn run(arguments: ContextArguments) -> Result<ExitCode> {
    let client = Client::new(&arguments.server)?;
    let id = ids::job(&client, &arguments.id).await?;
    let at = match &arguments.at {
        Some(at) => {
            let number = at.trim().trim_start_matches('e').parse::<u64>();
            let number = number
                .with_context(|| format!("--at: `{at}` is not an event; write a number such as e57"))?;
            format!("&at={number}")
        }
        None => String::new(),
    };
    if arguments.output.json {
        print_json(&client.get(&format!("/v1/jobs/{id}/context?format=json{at}")).await?)?;
        return Ok(ExitCode::SUCCESS);
    }
    let request = client.request(Method::GET, &format!("/v1/jobs/{id}/context?format=text{at}"));
    let text = client.send(request).await?.text().await.context("reading the prompt")?;
    print(&text)?;
    Ok(ExitCode::SUCCESS)
}
