//! `caisson status`

use std::fmt::Write as _;
use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use serde_json::Value;

use crate::arguments::{OutputArguments, ServerArguments};
use crate::client::Client;
use crate::client::ids;
use crate::output::table::{Table, state_cell};
use crate::output::terminal::strip_control_characters;
use crate::output::{duration_text, exit_code_of, print, print_json, time_text, value_text};

/// `caisson status`
#[derive(Debug, Args)]
#[command(after_help = "\
Exit codes: 0 job complete, running or waiting, 1 job failed, 2 the command failed, 3 job cancelled.

Examples:
  caisson status 1c2d4e6f
  caisson status 1c2d4e6f --json | jq -r .state")]
pub(crate) struct StatusArguments {
    /// Id or name of the job.
    id: String,
    #[command(flatten)]
    server: ServerArguments,
    #[command(flatten)]
    output: OutputArguments,
}

/// Prints a job's status.
pub(crate) async fn run(arguments: StatusArguments) -> Result<ExitCode> {
    let client = Client::new(&arguments.server)?;
    let id = ids::job(&client, &arguments.id).await?;
    let job = client.get(&format!("/v1/jobs/{id}")).await?;
    if arguments.output.json {
        print_json(&job)?;
    } else {
        print(&describe(&job))?;
    }
    Ok(match job["status"].as_str() {
        Some("pending" | "running") => ExitCode::SUCCESS,
        status => exit_code_of(status),
    })
}

fn describe(job: &Value) -> String {
    let mut text = String::new();
    let mut line = |name: &str, value: &str| {
        if !value.is_empty() {
            let _ = writeln!(text, "{name:<9}{}", strip_control_characters(value));
        }
    };
    line("job", &value_text(&job["job_id"]));
    line("name", job["name"].as_str().unwrap_or_default());
    line("state", &value_text(&job["detail"]));
    line("why", job["reason"].as_str().unwrap_or_default());
    line("task", job["task"].as_str().and_then(|task| task.lines().next()).unwrap_or_default());
    line("created", &time_text(&job["created_at"]));
    line("took", &duration_text(job["duration_ms"].as_u64()));
    line("result", job["download_url"].as_str().unwrap_or_default());
    let steps = job["steps"].as_array().map(Vec::as_slice).unwrap_or_default();
    if steps.is_empty() {
        return text;
    }
    let mut table = Table::new(&["STEP", "STATE", "EXIT", "TOOK", "WHAT"]);
    for (index, step) in steps.iter().enumerate() {
        let what = step["name"].as_str().map_or_else(|| value_text(&step["tool"]), ToOwned::to_owned);
        table.add(vec![
            (index + 1).to_string().into(),
            state_cell(&value_text(&step["status"])),
            value_text(&step["exit_code"]).into(),
            duration_text(step["duration_ms"].as_u64()).into(),
            what.into(),
        ]);
    }
    text + "\n" + &table.show()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn unknown_fields_are_not_shown() {
        let text = describe(&json!({"job_id": "1", "detail": "queued", "name": null, "steps": []}));
        assert_eq!(text, "job      1\nstate    queued\n");
    }
}
