//! `caisson open`

use std::process::{ExitCode, Stdio};
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use serde_json::json;
use tokio::sync::oneshot;

use crate::arguments::{OutputArguments, ServerArguments};
use crate::client::Client;
use crate::client::ids;
use crate::config::client_environment;
use crate::output::{print, print_json, say};

/// The program that opens addresses in the user's browser.
const OPENER: &str = if cfg!(target_os = "macos") { "open" } else { "xdg-open" };
/// How long to wait for the program. One that still runs has become the browser.
const PATIENCE: Duration = Duration::from_secs(3);

/// `caisson open`
#[derive(Debug, Args)]
#[command(after_help = "\
If there is no browser, as over SSH or in a container, prints the address. A server with API keys asks for a login.

Examples:
  caisson open 1c2d4e6f
  caisson open nightly --json | jq -r .url")]
pub(crate) struct OpenArguments {
    /// Id or name of the job.
    #[arg(value_name = "ID")]
    id: String,
    #[command(flatten)]
    server: ServerArguments,
    #[command(flatten)]
    output: OutputArguments,
}

/// Opens the page of a job.
pub(crate) async fn run(arguments: OpenArguments) -> Result<ExitCode> {
    let client = Client::new(&arguments.server)?;
    let id = ids::job(&client, &arguments.id).await?;
    // The page of a job that does not exist would only say so.
    client.get(&format!("/status/{id}")).await?;
    let url = format!("{}/#/jobs/{id}", client.url());
    let is_open = client_environment::has_display() && is_opened(OPENER, &url).await;
    if arguments.output.json {
        print_json(&json!({ "url": url, "opened": is_open }))?;
    } else if is_open {
        say(&format!("opened {url} in the browser"));
    } else {
        print(&format!("{url}\n"))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Starts the program; whether it succeeded, or still runs.
async fn is_opened(program: &str, url: &str) -> bool {
    let mut command = std::process::Command::new(program);
    command.arg(url).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let Ok(mut child) = command.spawn() else { return false };
    let (sender, ended) = oneshot::channel();
    // Not a task of the runtime, which would wait for the browser at its end.
    std::thread::spawn(move || sender.send(child.wait().is_ok_and(|status| status.success())));
    match tokio::time::timeout(PATIENCE, ended).await {
        Ok(ended) => ended.unwrap_or(false),
        Err(_still_running) => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn missing_or_failing_browser_is_noticed() {
        assert!(is_opened("true", "http://localhost/#/jobs/1").await);
        assert!(!is_opened("false", "http://localhost/#/jobs/1").await);
        assert!(!is_opened("no-such-program", "http://localhost/#/jobs/1").await);
    }
}
