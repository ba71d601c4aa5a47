//! Benchmarks Caisson side by side with its alternatives. `bench/run` prepares the environment.

mod bare;
mod benchmarks;
mod docker;
mod http;
mod measure;
mod model;
mod report;
mod sandboxes;
mod server;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Parser;

use crate::docker::Docker;
use crate::measure::Plan;
use crate::report::{Report, Verdict};

/// Prints the figures of Caisson side by side with what a user would pick instead.
#[derive(Debug, Parser)]
#[command(name = "caisson-bench", max_term_width = 110)]
struct Arguments {
    /// The server's program, built for release.
    #[arg(long, value_name = "FILE")]
    caisson: PathBuf,
    /// The launcher's program, built by ./build-guest.
    #[arg(long, value_name = "FILE")]
    launcher: PathBuf,
    /// The guest's program, built by ./build-guest.
    #[arg(long, value_name = "FILE")]
    guest: PathBuf,
    /// Socket of the Docker engine to compare with.
    #[arg(long, value_name = "FILE")]
    docker_socket: PathBuf,
    /// Image in that engine which has `true` and `sleep`.
    #[arg(long, value_name = "NAME")]
    docker_image: String,
    /// Only figures whose name contains this: cold, exec, crowd, memory, image, acceptance, job, pool, run, idle,
    /// throughput, desktop, cell, web, recovery, agent, docker, egress, files, access.
    #[arg(long, value_name = "NAME")]
    only: Option<String>,
    /// Folder of images with `default`, which the figures of the desktop are made on; built by `caisson image build`.
    #[arg(long, value_name = "FOLDER")]
    images: Option<PathBuf>,
    /// Few runs, for trying; the figures are not worth much.
    #[arg(long)]
    quick: bool,
    /// Prints JSON instead of a Markdown table.
    #[arg(long)]
    json: bool,
}

/// The environment of the benchmarks.
pub(crate) struct Stage {
    pub(crate) caisson: PathBuf,
    pub(crate) launcher: PathBuf,
    pub(crate) guest: PathBuf,
    pub(crate) docker: Docker,
    pub(crate) images: Option<PathBuf>,
    pub(crate) plan: Plan,
}

fn main() -> Result<ExitCode> {
    let arguments = Arguments::parse();
    let stage = Stage {
        caisson: arguments.caisson,
        launcher: arguments.launcher,
        guest: arguments.guest,
        images: arguments.images,
        docker: Docker { socket: arguments.docker_socket, image: arguments.docker_image },
        plan: if arguments.quick { Plan::QUICK } else { Plan::FULL },
    };
    // The same kind of runtime as the server's.
    let runtime =
        tokio::runtime::Builder::new_multi_thread().enable_all().build().context("starting the runtime")?;
    let only = arguments.only.unwrap_or_default();
    let figures = runtime.block_on(async { tokio::spawn(benchmarks::all(stage, only)).await })??;
    let report = Report::new(figures);
    println!("{}", if arguments.json { report.to_json()? } else { report.to_markdown() });
    let missed = report.figures.iter().any(|figure| figure.verdict() == Verdict::Miss);
    Ok(if missed { ExitCode::from(3) } else { ExitCode::SUCCESS })
}
