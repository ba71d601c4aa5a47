//! `caisson extend`

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use serde_json::{Value, json};

use super::sandboxes::expiry_line;
use crate::arguments::{OutputArguments, ServerArguments, parse_seconds};
use crate::client::Client;
use crate::client::ids::{self, Kind};
use crate::output::{duration_text, print, print_json, time_text};

/// `caisson extend`
#[derive(Debug, Args)]
#[command(after_help = "\
TIME is added to the time limit of a job, whatever the job does at the moment. A bare sandbox has no time limit: it then
ends when it has not been used for TIME, counted from now.

Examples:
  caisson extend 1c2d4e6f 30m
  caisson extend 1c2d4e6f 2h --json")]
pub(crate) struct ExtendArguments {
    /// Id or name of the job or sandbox.
    #[arg(value_name = "ID")]
    id: String,
    /// How much time, such as 90s, 30m or 2h.
    #[arg(value_name = "TIME", value_parser = parse_seconds)]
    seconds: u64,
    #[command(flatten)]
    server: ServerArguments,
    #[command(flatten)]
    output: OutputArguments,
}

pub(crate) async fn run(arguments: ExtendArguments) -> Result<ExitCode> {
    let client = Client::new(&arguments.server)?;
    let target = ids::target(&client, &arguments.id).await?;
    let body = match target.kind {
        Kind::Job => json!({ "seconds": arguments.seconds }),
        Kind::Sandbox => json!({ "ttl_s": arguments.seconds }),
    };
    let extended = client.post(&target.path("extend"), &body).await?;
    if arguments.output.json {
        print_json(&extended)?;
    } else {
        let line = match target.kind {
            Kind::Job => job_line(&target.id, &extended),
            Kind::Sandbox => expiry_line(&target.id, &extended),
        };
        print(&format!("{line}\n"))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn job_line(id: &str, job: &Value) -> String {
    let limit = job["time_limit_s"].as_f64().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    let limit = duration_text(limit.and_then(|limit| limit.as_millis().try_into().ok()));
    let end = match &job["deadline_at"] {
        Value::Null => String::new(),
        deadline => format!(" and ends at {} at the latest", time_text(deadline)),
    };
    format!("{id} may work for {limit} in total{end}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_about_a_job_has_the_new_limit_and_the_deadline_if_there_is_one() {
        let mut job = json!({"time_limit_s": 5400.0, "deadline_at": "2026-01-02T03:04:05.678Z"});
        assert_eq!(
            job_line("1c2d", &job),
            "1c2d may work for 1h 30m in total and ends at 2026-01-02 03:04:05 at the latest"
        );
        job["deadline_at"] = Value::Null;
        assert_eq!(job_line("1c2d", &job), "1c2d may work for 1h 30m in total");
    }
}
