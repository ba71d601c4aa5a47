//! `caisson logs`

use std::io::Write;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::Args;
use futures::StreamExt;
use reqwest::Method;

use super::job_output;
use super::watch::view::{View, WatchEnd};
use crate::arguments::{OutputArguments, ServerArguments};
use crate::client::Client;
use crate::client::{events, ids};
use crate::output::{exit_code_of, print};

/// `caisson logs`
#[derive(Debug, Args)]
#[command(after_help = "\
Prints what the job printed: standard output and standard error of its steps, notebook cells and agent's commands, each
on the same stream here. Commands of `caisson exec` and of other API clients are left out. On a terminal, control
characters are removed.
--events prints what happened instead: states, calls with their output, plan, messages, connections. --json prints the
events as JSON lines.
With --follow, the exit code is that of the job, as for `run`; without it, 0 if the job exists.

Examples:
  caisson logs 1c2d4e6f
  caisson logs nightly --tail 20
  caisson logs -f 1c2d4e6f > output.txt
  caisson logs -f --events 1c2d4e6f
  caisson logs -f --json 1c2d4e6f | jq -r .kind")]
pub(crate) struct LogsArguments {
    /// Id or name of the job.
    id: String,
    /// Follow the job until it ends.
    #[arg(short, long)]
    follow: bool,
    /// Print only this number of lines from the end, or `all`.
    #[arg(
        short = 'n',
        long,
        value_name = "LINES",
        value_parser = parse_tail,
        default_value = "all",
        conflicts_with_all = ["events", "json"]
    )]
    tail: Tail,
    /// Print the events of the job.
    #[arg(long)]
    events: bool,
    #[command(flatten)]
    server: ServerArguments,
    #[command(flatten)]
    output: OutputArguments,
}

/// How much of the output so far to print.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Tail {
    All,
    Lines(usize),
}

fn parse_tail(text: &str) -> Result<Tail> {
    match (text, text.parse()) {
        ("all", _) => Ok(Tail::All),
        (_, Ok(lines)) => Ok(Tail::Lines(lines)),
        _ => bail!("expected a number of lines, or all"),
    }
}

pub(crate) async fn run(arguments: LogsArguments) -> Result<ExitCode> {
    let client = Client::new(&arguments.server)?;
    let id = ids::job(&client, &arguments.id).await?;
    let end = match (arguments.events || arguments.output.json, arguments.tail) {
        (true, _) => show_events(&client, &id, &arguments).await?,
        (false, Tail::All) => job_output::show(&client, &id, None, arguments.follow).await?,
        (false, Tail::Lines(lines)) => job_output::show(&client, &id, Some(lines), arguments.follow).await?,
    };
    if !arguments.follow || end == WatchEnd::OutputClosed {
        return Ok(ExitCode::SUCCESS);
    }
    let job = client.get(&format!("/status/{id}")).await?;
    Ok(exit_code_of(job["status"].as_str()))
}

async fn show_events(client: &Client, id: &str, arguments: &LogsArguments) -> Result<WatchEnd> {
    let path = format!("/v1/jobs/{id}/events");
    let json = arguments.output.json;
    match (arguments.follow, json) {
        (true, _) => return View::new(json).watch_until_closed(client, &path).await,
        (false, true) => print_events(client, &path).await?,
        (false, false) => print_log(client, id).await?,
    }
    Ok(WatchEnd::JobEnded)
}

/// Prints the events so far, one per line.
async fn print_events(client: &Client, path: &str) -> Result<()> {
    let mut position = 0;
    while let Some((events, last)) = events::page(client, path, position).await? {
        print(&events.iter().map(|event| format!("{event}\n")).collect::<String>())?;
        position = last;
    }
    Ok(())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tail_is_a_number_of_lines_or_all() {
        assert_eq!(parse_tail("all").unwrap(), Tail::All);
        assert_eq!(parse_tail("0").unwrap(), Tail::Lines(0));
        for text in ["", "-1", "many", "1.5"] {
            assert!(parse_tail(text).is_err(), "{text}");
        }
    }
}
