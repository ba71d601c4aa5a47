//! A sandbox of the warm pool: from frozen until its guest has greeted.

use std::time::Instant;

use anyhow::Result;

use crate::measure::{Samples, settle};
use crate::report::{Baseline, Figure, Target, Unit};
use crate::sandboxes::Sandboxes;
use crate::{Stage, server};

/// Alternates: a frozen sandbox is handed out, a sandbox is created from scratch.
pub(crate) async fn measure(stage: &Stage) -> Result<Figure> {
    let folder = server::short_folder()?;
    let sandboxes = Sandboxes::new(stage, &folder.path().join("s"))?;
    let (mut handed_out, mut greeted, mut cold) =
        (Samples::default(), Samples::default(), Samples::default());
    let first = sandboxes.start().await?;
    sandboxes.destroy(first.id).await?;
    for _ in 0..stage.plan.runs {
        one_of_the_pool(&sandboxes, &mut handed_out, &mut greeted).await?;
        settle().await;
        let start = Instant::now();
        let living = sandboxes.start().await?;
        cold.since(start);
        sandboxes.destroy(living.id).await?;
    }
    Ok(Figure {
        name: "pool",
        what: "a sandbox of the warm pool: frozen until its guest has greeted on a new link".into(),
        unit: Unit::Milliseconds,
        ours: greeted.summary(),
        target: Target::AtMost(1.0),
        beside: vec![Baseline {
            what: "a cold sandbox of ours, until it has answered an exec of `true`".into(),
            summary: cold.summary(),
            against: None,
            target: Target::None,
        }],
        notes: vec![format!(
            "letting it go alone took {:.2} ms (p90 {:.2} ms)",
            handed_out.summary().median,
            handed_out.summary().p90
        )],
    })
}

async fn one_of_the_pool(sandboxes: &Sandboxes, out: &mut Samples, greeted: &mut Samples) -> Result<()> {
    let id = sandboxes.start_frozen().await?;
    settle().await;
    let start = Instant::now();
    sandboxes.thaw(id).await?;
    out.since(start);
    let link = sandboxes.greet(id).await?;
    greeted.since(start);
    drop(link);
    sandboxes.destroy(id).await
}
