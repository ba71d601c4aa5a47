//! A cold sandbox: from `create` until the guest has answered an exec of `true`.

use std::time::Instant;

use anyhow::Result;

use crate::measure::{Samples, settle};
use crate::report::{Baseline, Figure, Target, Unit};
use crate::sandboxes::Sandboxes;
use crate::{Stage, bare, server};

/// Alternates: a sandbox, docker, bwrap, a plain process.
pub(crate) async fn measure(stage: &Stage) -> Result<Figure> {
    let folder = server::short_folder()?;
    let sandboxes = Sandboxes::new(stage, &folder.path().join("s"))?;
    let (mut ours, mut docker) = (Samples::default(), Samples::default());
    let (mut bubblewrap, mut plain) = (Samples::default(), Samples::default());
    // The first sandbox prepares the image and the first disks, which happens once per data folder.
    let first = sandboxes.start().await?;
    sandboxes.destroy(first.id).await?;
    stage.docker.run_true()?;
    for _ in 0..stage.plan.runs {
        settle().await;
        let start = Instant::now();
        let living = sandboxes.start().await?;
        ours.since(start);
        sandboxes.destroy(living.id).await?;
        settle().await;
        let start = Instant::now();
        stage.docker.run_true()?;
        docker.since(start);
        settle().await;
        let start = Instant::now();
        bare::run_true_in_bubblewrap(folder.path())?;
        bubblewrap.since(start);
        settle().await;
        let start = Instant::now();
        bare::run_true()?;
        plain.since(start);
    }
    let beside = |what: &str, samples: &Samples, target| Baseline {
        what: what.into(),
        summary: samples.summary(),
        against: None,
        target,
    };
    Ok(Figure {
        name: "cold",
        what: "cold sandbox: create until the guest has answered an exec of `true`".into(),
        unit: Unit::Milliseconds,
        ours: ours.summary(),
        target: Target::None,
        beside: vec![
            beside("`docker run --rm --network none` of `true`", &docker, Target::TimesFaster(20.0)),
            beside("`bwrap --unshare-all` of `true`", &bubblewrap, Target::TimesSlower(2.5)),
            beside("plain fork and exec of `true`", &plain, Target::None),
        ],
        notes: vec![
            "ours has limits on memory, processor, processes and disk, seccomp, Landlock and a guest that goes on \
             serving; bwrap has none of these and ends with the command"
                .into(),
        ],
    })
}
