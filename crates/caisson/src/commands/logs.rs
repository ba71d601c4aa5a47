//! `caisson logs`

use std::io::Write;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Args;
use futures::StreamExt;
use reqwest::Method;

use super::watch::view::{View, WatchEnd};
use crate::arguments::{OutputArguments, ServerArguments};
use crate::client::Client;
use crate::client::ids;
use crate::output::{exit_code_of, print};

/// `caisson logs`
#[derive(Debug, Args)]
#[command(after_help = "\
Without --follow the exit code says only whether there was a log; with it, how the job ended, as for `run`.

Examples:
  caisson logs 1c2d4e6f
  caisson logs -f 1c2d4e6f
  caisson logs -f --json 1c2d4e6f | jq -r .kind")]
pub(crate) struct LogsArguments {
    /// The job.
    id: String,
    /// Stays until the job is over.
    #[arg(short, long)]
    follow: bool,
    #[command(flatten)]
    server: ServerArguments,
    #[command(flatten)]
    output: OutputArguments,
}

/// Shows the job's output.
pub(crate) async fn run(arguments: LogsArguments) -> Result<ExitCode> {
    let client = Client::new(&arguments.server)?;
    let id = ids::job(&client, &arguments.id).await?;
    if !arguments.follow && !arguments.output.json {
        print_log(&client, &id).await?;
        return Ok(ExitCode::SUCCESS);
    }
    let path = format!("/v1/jobs/{id}/events");
    if !arguments.follow {
        print_events(&client, &path).await?;
        return Ok(ExitCode::SUCCESS);
    }
    if View::new(arguments.output.json).watch_until_closed(&client, &path).await? == WatchEnd::OutputClosed {
        return Ok(ExitCode::SUCCESS);
    }
    let job = client.get(&format!("/status/{id}")).await?;
    Ok(exit_code_of(job["status"].as_str()))
}

/// Prints the events so far, one per line.
async fn print_events(client: &Client, path: &str) -> Result<()> {
    let mut after = 0;
    loop {
        let page = client.get(&format!("{path}?format=json&limit=1000&after={after}")).await?;
        let events = page["events"].as_array().map(Vec::as_slice).unwrap_or_default();
        if events.is_empty() {
            return Ok(());
        }
        print(&events.iter().map(|event| format!("{event}\n")).collect::<String>())?;
        after = page["next"].as_u64().context("the server did not say where its list ends")?;
    }
}

async fn print_log(client: &Client, id: &str) -> Result<()> {
    let response = client.send(client.request(Method::GET, &format!("/v1/jobs/{id}/log"))).await?;
    let mut body = response.bytes_stream();
    let mut out = std::io::stdout().lock();
    while let Some(bytes) = body.next().await {
        // A closed output pipe, as with `head`, is not an error.
        match out.write_all(&bytes.context("reading the log")?) {
            Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => return Ok(()),
            written => written.context("writing the log")?,
        }
    }
    out.flush().context("writing the log")
}
