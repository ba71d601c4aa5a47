//! A container as a sandbox: from `create` until the guest has answered an exec of `true`, compared with plain
//! `docker run`.

use std::time::Instant;

use anyhow::Result;

use crate::measure::{Samples, settle};
use crate::report::{Baseline, Figure, Target, Unit};
use crate::sandboxes::Sandboxes;
use crate::{Stage, server};

/// The target: the maximum ratio of a sandbox's time to a plain container's.
const AT_MOST: f64 = 1.15;

/// Alternates: a sandbox, then docker's command line, with the same engine and the same image.
pub(crate) async fn measure(stage: &Stage) -> Result<Figure> {
    let folder = server::short_folder()?;
    let sandboxes = Sandboxes::in_docker(stage, &folder.path().join("s"))?;
    let (mut ours, mut plain) = (Samples::default(), Samples::default());
    // The first sandbox prepares the image and the first disks, which happens once per data folder.
    let first = sandboxes.start().await?;
    sandboxes.destroy(first.id).await?;
    for number in 0..stage.plan.runs {
        settle().await;
        let start = Instant::now();
        let living = sandboxes.start().await?;
        ours.since(start);
        sandboxes.destroy(living.id).await?;
        settle().await;
        let name = format!("caisson-bench-{number}");
        let start = Instant::now();
        stage.docker.run_true_and_keep(&name)?;
        plain.since(start);
        stage.docker.remove(&name)?;
    }
    let beside = Baseline {
        what: "`docker run --network none` of `true`, the same engine and image".into(),
        summary: plain.summary(),
        against: None,
        target: Target::TimesSlower(AT_MOST),
    };
    Ok(Figure {
        name: "docker",
        what: "Docker backend: create until the guest has answered an exec of `true`".into(),
        unit: Unit::Milliseconds,
        ours: ours.summary(),
        target: Target::None,
        beside: vec![beside],
        notes: vec![
            "ours has a sized disk, limits, a seccomp profile of its own and a guest that goes on serving; removing \
             the containers is not counted on either side"
                .into(),
        ],
    })
}
