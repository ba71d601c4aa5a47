//! `caisson run` of one step from a cold process, with its in-process server.

use std::process::Command;
use std::time::Instant;

use anyhow::Result;

use crate::measure::{Samples, settle};
use crate::report::{Baseline, Figure, Target, Unit};
use crate::{Stage, bare, server};

const STEPS: &str = r#"[{"tool":"shell","command":"true"}]"#;

/// Alternates: `caisson run`, `docker run`.
pub(crate) async fn measure(stage: &Stage) -> Result<Figure> {
    let folder = server::short_folder()?;
    let steps = folder.path().join("steps.json");
    std::fs::write(&steps, STEPS)?;
    let run = || {
        let mut command = Command::new(&stage.caisson);
        command.arg("run").arg("--steps").arg(&steps).env("CAISSON_DATA", folder.path().join("data"));
        bare::run(command.env_remove("CAISSON_URL").current_dir(folder.path()))
    };
    // The first run writes the two programs and the image, which happens once per data folder.
    let start = Instant::now();
    run()?;
    let first_ms = crate::measure::milliseconds(start.elapsed());
    stage.docker.run_true()?;
    let (mut ours, mut docker) = (Samples::default(), Samples::default());
    for _ in 0..stage.plan.runs {
        settle().await;
        let start = Instant::now();
        run()?;
        ours.since(start);
        settle().await;
        let start = Instant::now();
        stage.docker.run_true()?;
        docker.since(start);
    }
    Ok(Figure {
        name: "run",
        what: "`caisson run` of one step `true`, a new process with its server inside, to its end".into(),
        unit: Unit::Milliseconds,
        ours: ours.summary(),
        target: Target::AtMost(150.0),
        beside: vec![Baseline {
            what: "`docker run --rm --network none` of `true`, with an engine that runs already".into(),
            summary: docker.summary(),
            against: None,
            target: Target::None,
        }],
        notes: vec![format!(
            "the very first run in an empty data folder took {first_ms:.0} ms and is not counted"
        )],
    })
}
