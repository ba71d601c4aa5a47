//! `caisson rm`

use std::process::ExitCode;

use anyhow::{Result, bail};
use clap::Args;
use serde_json::json;

use super::job_requests::JobsArguments;
use crate::client::Client;
use crate::client::ids::{self, Kind};
use crate::output::{print, print_json};

/// `caisson rm`
#[derive(Debug, Args)]
#[command(after_help = "\
Only finished jobs can be deleted; `caisson cancel` ends a running one.

Examples:
  caisson rm 1c2d4e6f
  caisson rm $(caisson jobs --state failed --json | jq -r '.jobs[].job_id')")]
pub(crate) struct RemoveArguments {
    #[command(flatten)]
    jobs: JobsArguments,
}

pub(crate) async fn run(arguments: RemoveArguments) -> Result<ExitCode> {
    let JobsArguments { ids, server, output } = arguments.jobs;
    let client = Client::new(&server)?;
    let mut removed = Vec::new();
    let ended = remove(&client, &ids, output.json, &mut removed).await;
    if output.json {
        print_json(&json!({ "removed": removed }))?;
    }
    ended.map(|()| ExitCode::SUCCESS)
}

/// Removes jobs one by one and records those removed: if one is refused, those before it are already gone.
async fn remove(client: &Client, typed: &[String], json: bool, removed: &mut Vec<String>) -> Result<()> {
    for typed in typed {
        let target = ids::target(client, typed).await?;
        let id = target.id;
        if target.kind == Kind::Sandbox {
            bail!("{id} is a bare sandbox, not a job; end it with `caisson sandboxes rm {id}`");
        }
        client.delete(&format!("/v1/jobs/{id}")).await?;
        if !json {
            print(&format!("deleted {id}\n"))?;
        }
        removed.push(id);
    }
    Ok(())
}
