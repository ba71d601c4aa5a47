//! A hundred sandboxes at once.

use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result};
use futures::future::try_join_all;

use crate::measure::{Samples, milliseconds, settle};
use crate::report::{Baseline, Figure, Target, Unit};
use crate::sandboxes::{RunningSandbox, Sandboxes};
use crate::{Stage, server};

/// The number of concurrent sandboxes.
const SANDBOXES: u32 = 100;
/// The number of concurrent containers; more would only take longer.
const CONTAINERS: u32 = 20;

/// Alternates: all sandboxes, all containers.
pub(crate) async fn measure(stage: &Stage) -> Result<Figure> {
    let folder = server::short_folder()?;
    let sandboxes = Arc::new(Sandboxes::new(stage, &folder.path().join("s"))?);
    let first = sandboxes.start().await?;
    sandboxes.destroy(first.id).await?;
    let (mut ours, mut docker) = (Samples::default(), Samples::default());
    for _ in 0..stage.plan.crowd_runs {
        settle().await;
        ours.add(start_sandboxes(&sandboxes).await?);
        settle().await;
        docker.add(start_containers(stage).await?);
    }
    Ok(Figure {
        name: "crowd",
        what: format!("{SANDBOXES} sandboxes started at once, all alive: time per sandbox"),
        unit: Unit::Milliseconds,
        ours: ours.summary(),
        target: Target::None,
        beside: vec![Baseline {
            what: format!(
                "{CONTAINERS} x `docker run --rm --network none` of `true` at once, time per container"
            ),
            summary: docker.summary(),
            against: None,
            target: Target::TimesFaster(20.0),
        }],
        notes: vec![format!(
            "each of the {SANDBOXES} answered an exec, and a second one when all were there; taking them down is not counted"
        )],
    })
}

/// Starts all sandboxes, runs a command in each once all are running, and destroys them. Returns the time until the
/// last first answer, per sandbox.
async fn start_sandboxes(sandboxes: &Arc<Sandboxes>) -> Result<f64> {
    let start = Instant::now();
    let starts = (0..SANDBOXES).map(|_| {
        let sandboxes = Arc::clone(sandboxes);
        tokio::spawn(async move { sandboxes.start().await })
    });
    let crowd: Result<Vec<RunningSandbox>> = try_join_all(starts).await?.into_iter().collect();
    let each = milliseconds(start.elapsed()) / f64::from(SANDBOXES);
    // Clean up even after an error.
    let alive = match crowd {
        Ok(mut crowd) => try_join_all(crowd.iter_mut().map(RunningSandbox::run_true)).await.map(drop),
        Err(error) => Err(error),
    };
    sandboxes.destroy_all().await?;
    alive.context("not all sandboxes were alive")?;
    Ok(each)
}

async fn start_containers(stage: &Stage) -> Result<f64> {
    let start = Instant::now();
    run_containers(stage, CONTAINERS).await?;
    Ok(milliseconds(start.elapsed()) / f64::from(CONTAINERS))
}

/// Runs `count` containers at once, each with `true`, and waits for all.
pub(super) async fn run_containers(stage: &Stage, count: u32) -> Result<()> {
    let runs = (0..count).map(|_| {
        let docker = stage.docker.clone();
        tokio::task::spawn_blocking(move || docker.run_true())
    });
    try_join_all(runs).await?.into_iter().collect()
}
