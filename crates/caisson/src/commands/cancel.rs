//! `caisson cancel`

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use serde_json::json;

use super::job_requests::{JobRequest, JobsArguments, send_to_all};

/// `caisson cancel`
#[derive(Debug, Args)]
#[command(after_help = "\
Caisson still collects the workspace; `caisson download` fetches it.

Examples:
  caisson cancel 1c2d4e6f
  caisson cancel nightly
  caisson cancel 1c2d4e6f 8a9b0c1d")]
pub(crate) struct CancelArguments {
    #[command(flatten)]
    jobs: JobsArguments,
}

pub(crate) async fn run(arguments: CancelArguments) -> Result<ExitCode> {
    send_to_all(&arguments.jobs, &JobRequest { route: "cancel", body: json!({}), done: "is being cancelled" })
        .await
}
