//! `caisson replay`

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Result, ensure};
use clap::Args;
use serde_json::Value;

use super::watch::view::View;
use crate::arguments::{OutputArguments, ServerArguments};
use crate::client::Client;
use crate::client::{events, ids};

/// The longest pause between two events.
const LONGEST_WAIT: Duration = Duration::from_secs(2);

/// `caisson replay`
#[derive(Debug, Args)]
#[command(after_help = "\
Prints the recorded events again. Nothing runs and no model is called.

Examples:
  caisson replay 1c2d4e6f
  caisson replay 1c2d4e6f --speed 20
  caisson replay 1c2d4e6f --speed 0")]
pub(crate) struct ReplayArguments {
    /// Id or name of the job.
    #[arg(value_name = "ID")]
    id: String,
    /// Speed factor; 0 prints everything at once.
    #[arg(long, value_name = "FACTOR", default_value_t = 5.0)]
    speed: f64,
    #[command(flatten)]
    server: ServerArguments,
    #[command(flatten)]
    output: OutputArguments,
}

/// Replays a job.
pub(crate) async fn run(arguments: ReplayArguments) -> Result<ExitCode> {
    ensure!(
        arguments.speed >= 0.0 && arguments.speed.is_finite(),
        "--speed: {} is not a valid factor; use 0 or more",
        arguments.speed
    );
    let client = Client::new(&arguments.server)?;
    let id = ids::job(&client, &arguments.id).await?;
    let events = all_events(&client, &id).await?;
    let mut view = View::new(arguments.output.json);
    let mut before: Option<i64> = None;
    for event in &events {
        let time = event["time_ms"].as_i64().unwrap_or(0);
        if let Some(before) = before.filter(|_| arguments.speed > 0.0) {
            let passed = Duration::from_millis(u64::try_from(time - before).unwrap_or(0));
            // For tiny speeds the division overflows a duration.
            let slowed = Duration::try_from_secs_f64(passed.as_secs_f64() / arguments.speed);
            tokio::time::sleep(slowed.unwrap_or(LONGEST_WAIT).min(LONGEST_WAIT)).await;
        }
        before = Some(time);
        view.show(event);
    }
    let word = client.get(&format!("/status/{id}")).await?;
    view.say(word["status"].as_str().unwrap_or_default());
    Ok(ExitCode::SUCCESS)
}

/// All events of a finished job.
pub(crate) async fn all_events(client: &Client, id: &str) -> Result<Vec<Value>> {
    let status = client.get(&format!("/status/{id}")).await?;
    let word = status["status"].as_str().unwrap_or_default();
    ensure!(
        ["complete", "failed", "cancelled"].contains(&word),
        "job {id} has not ended; follow it with `caisson logs -f --events {id}`"
    );
    let mut all = Vec::new();
    events::follow(client, &format!("/v1/jobs/{id}/events"), |event| all.push(event.clone())).await?;
    Ok(all)
}
