//! One file per benchmark. Each alternates between our product and its baselines, and returns [`Figure`]s.

mod acceptance;
mod access;
mod agent;
mod cell;
mod cold;
mod crowd;
mod desktop;
mod docker;
mod egress;
mod exec;
mod files;
mod idle;
mod image;
mod job;
mod memory;
mod pool;
mod recovery;
mod run;
mod throughput;
mod web;

use std::time::Instant;

use anyhow::{Context, Result};

use crate::Stage;
use crate::report::Figure;

/// All benchmarks, in the order in which they run.
const NAMES: [&str; 20] = [
    "cold",
    "exec",
    "crowd",
    "memory",
    "image",
    "acceptance",
    "job",
    "pool",
    "run",
    "idle",
    "throughput",
    "desktop",
    "cell",
    "web",
    "recovery",
    "agent",
    "docker",
    "egress",
    "files",
    "access",
];

/// Runs all benchmarks whose name contains `only`.
pub(crate) async fn all(stage: Stage, only: String) -> Result<Vec<Figure>> {
    let mut figures = Vec::new();
    for name in NAMES {
        if !name.contains(&only) {
            continue;
        }
        let start = Instant::now();
        eprint!("measuring {name} ... ");
        let measured = match name {
            "cold" => cold::measure(&stage).await.map(|figure| vec![figure]),
            "exec" => exec::measure(&stage).await.map(|figure| vec![figure]),
            "crowd" => crowd::measure(&stage).await.map(|figure| vec![figure]),
            "image" => image::measure(&stage).await.map(|figure| vec![figure]),
            "memory" => memory::measure(&stage).await.map(|figure| vec![figure]),
            "acceptance" => acceptance::measure(&stage).await,
            "access" => access::measure(&stage).await,
            "docker" => docker::measure(&stage).await.map(|figure| vec![figure]),
            "job" => job::measure(&stage).await.map(|figure| vec![figure]),
            "pool" => pool::measure(&stage).await.map(|figure| vec![figure]),
            "run" => run::measure(&stage).await.map(|figure| vec![figure]),
            "idle" => idle::measure(&stage).await.map(|figure| vec![figure]),
            "throughput" => throughput::measure(&stage).await,
            "egress" => egress::measure(&stage).await,
            "files" => files::measure(&stage).await.map(|figure| vec![figure]),
            "agent" => agent::measure(&stage).await,
            "desktop" => desktop::measure(&stage).await,
            "web" => web::measure(&stage).await,
            "cell" => cell::measure(&stage).await.map(|figure| vec![figure]),
            _ => recovery::measure(&stage).await.map(|figure| vec![figure]),
        };
        figures.extend(measured.with_context(|| format!("measuring {name}"))?);
        eprintln!("{:.0} s", start.elapsed().as_secs_f64());
    }
    Ok(figures)
}
