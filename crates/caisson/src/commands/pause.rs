//! `caisson pause`

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use serde_json::json;

use super::job_requests::{JobRequest, JobsArguments, send_to_all};

/// `caisson pause`
#[derive(Debug, Args)]
#[command(after_help = "\
The current call finishes first. The sandbox and its processes keep running.

Examples:
  caisson pause 1c2d4e6f
  caisson resume 1c2d4e6f")]
pub(crate) struct PauseArguments {
    #[command(flatten)]
    jobs: JobsArguments,
}

pub(crate) async fn run(arguments: PauseArguments) -> Result<ExitCode> {
    send_to_all(
        &arguments.jobs,
        &JobRequest { route: "pause", body: json!({}), done: "will pause after the current call" },
    )
    .await
}
