//! `caisson jobs`

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use serde_json::Value;

use crate::arguments::{OutputArguments, ServerArguments, parse_pair};
use crate::client::Client;
use crate::client::encoding::encode;
use crate::client::ids;
use crate::output::table::{Cell, Table, state_cell};
use crate::output::{duration_text, print, print_json, say, time_text, value_text};

/// The maximum page size of the server.
const MAX_PAGE: i64 = 1000;

/// `caisson jobs`
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  caisson jobs
  caisson jobs --state running,queued
  caisson jobs --after 1c2d4e6f
  caisson jobs --label project=demo --limit 5 --json")]
pub(crate) struct JobsArguments {
    /// Only jobs in these states, comma-separated: queued, starting, running, paused, collecting, complete, failed, cancelled.
    #[arg(long, value_name = "STATES")]
    state: Option<String>,
    /// Only jobs with this label.
    #[arg(long, value_name = "KEY=VALUE", value_parser = parse_pair)]
    label: Option<(String, String)>,
    /// Maximum number of jobs.
    #[arg(long, value_name = "NUMBER", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=MAX_PAGE))]
    limit: u32,
    /// Only jobs older than this one.
    #[arg(long, value_name = "ID")]
    after: Option<String>,
    #[command(flatten)]
    server: ServerArguments,
    #[command(flatten)]
    output: OutputArguments,
}

pub(crate) async fn run(arguments: JobsArguments) -> Result<ExitCode> {
    let client = Client::new(&arguments.server)?;
    let mut path = format!("/v1/jobs?limit={}", arguments.limit);
    if let Some(states) = &arguments.state {
        path += &format!("&state={}", encode(states));
    }
    if let Some(after) = &arguments.after {
        path += &format!("&before={}", ids::job(&client, after).await?);
    }
    if let Some((key, value)) = &arguments.label {
        path += &format!("&label={}", encode(&format!("{key}:{value}")));
    }
    let page = client.get(&path).await?;
    if arguments.output.json {
        print_json(&page)?;
        return Ok(ExitCode::SUCCESS);
    }
    let jobs = page["jobs"].as_array().map(Vec::as_slice).unwrap_or_default();
    if jobs.is_empty() {
        print("no jobs\n")?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut table = Table::new(&["ID", "STATE", "STEPS", "CREATED", "TOOK", "NAME", "WHY"]);
    for job in jobs {
        table.add(row(job));
    }
    print(&table.show())?;
    if let Some(last) = page["next"].as_str() {
        say(&format!("more jobs: --after {}", ids::short(last)));
    }
    Ok(ExitCode::SUCCESS)
}

fn row(job: &Value) -> Vec<Cell> {
    let state = value_text(&job["state"]);
    let why = match state.as_str() {
        "complete" => String::new(),
        _ => value_text(&job["reason"]),
    };
    let name = job["name"].as_str().or_else(|| job["task"].as_str()).unwrap_or_default();
    vec![
        ids::short(&value_text(&job["job_id"])).into(),
        state_cell(&state),
        format!("{}/{}", job["steps_succeeded"], job["steps_total"]).into(),
        time_text(&job["created_at"]).into(),
        duration_text(job["duration_ms"].as_u64()).into(),
        name.chars().take(30).collect::<String>().into(),
        why.into(),
    ]
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_job_is_a_row_with_the_end_of_its_id() {
        let mut table = Table::new(&["ID", "STATE", "STEPS", "CREATED", "TOOK", "NAME", "WHY"]);
        table.add(row(&json!({
            "job_id": "01930d5e-7b1a-7c3e-9f00-3a5b1c2d4e6f", "state": "failed", "steps_succeeded": 1, "steps_total": 3,
            "created_at": "2026-01-02T03:04:05.678Z", "duration_ms": 61_000, "name": "first", "reason": "step 2 failed"
        })));
        let shown = table.show();
        assert!(
            shown.contains("1c2d4e6f  failed  1/3    2026-01-02 03:04:05  1m 01s  first  step 2 failed"),
            "{shown}"
        );
    }
}
