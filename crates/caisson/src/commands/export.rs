//! `caisson export`

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Args;

use super::replay::all_events;
use super::{export_atif, export_steps};
use crate::arguments::ServerArguments;
use crate::client::Client;
use crate::client::ids;
use crate::output::{print_json, say};

/// `caisson export`
#[derive(Debug, Args)]
#[command(after_help = "\
--steps writes a step job with every command and file change of the run. It rebuilds the workspace without a model.
--atif writes a trajectory in the Agent Trajectory Interchange Format.

Examples:
  caisson export 1c2d4e6f --steps > again.json && caisson run --steps again.json
  caisson export 1c2d4e6f --atif --out trajectory.json")]
pub(crate) struct ExportArguments {
    /// Id or name of the job.
    #[arg(value_name = "ID")]
    id: String,
    /// Export a step job.
    #[arg(long, conflicts_with = "atif", required_unless_present = "atif")]
    steps: bool,
    /// Export a trajectory.
    #[arg(long)]
    atif: bool,
    /// Output file [default: standard output].
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    #[command(flatten)]
    server: ServerArguments,
}

/// Writes a run in another format.
pub(crate) async fn run(arguments: ExportArguments) -> Result<ExitCode> {
    let client = Client::new(&arguments.server)?;
    let id = ids::job(&client, &arguments.id).await?;
    let events = all_events(&client, &id).await?;
    let document = if arguments.steps {
        let exported = export_steps::steps_of(&events);
        for remark in &exported.remarks {
            say(remark);
        }
        exported.job
    } else {
        export_atif::trajectory_of(&id, &events)
    };
    match &arguments.out {
        None => print_json(&document)?,
        Some(path) => std::fs::write(path, format!("{document:#}\n"))
            .with_context(|| format!("writing {}", path.display()))?,
    }
    Ok(ExitCode::SUCCESS)
}
