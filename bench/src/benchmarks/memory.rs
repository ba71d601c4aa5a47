//! The memory of an idle sandbox.

use anyhow::Result;

use crate::measure::{Samples, wait_until_idle};
use crate::report::{Baseline, Figure, Target, Unit};
use crate::sandboxes::{Sandboxes, parent, proportional_bytes};
use crate::{Stage, server};

const MEGABYTE: f64 = 1e6;

/// Alternates: guest and launcher of a sandbox, first process and shim of a container. Only one runs at a time, so
/// that it shares no memory with another of its kind.
pub(crate) async fn measure(stage: &Stage) -> Result<Figure> {
    let folder = server::short_folder()?;
    let sandboxes = Sandboxes::new(stage, &folder.path().join("s"))?;
    let (mut ours, mut docker) = (Samples::default(), Samples::default());
    let (mut guests, mut launchers) = (Samples::default(), Samples::default());
    for _ in 0..stage.plan.runs {
        let living = sandboxes.start().await?;
        wait_until_idle().await;
        let [guest, launcher] = sandboxes.processes(living.id)?.map(proportional_bytes);
        let (guest, launcher) = (guest? / MEGABYTE, launcher? / MEGABYTE);
        guests.add(guest);
        launchers.add(launcher);
        ours.add(guest + launcher);
        sandboxes.destroy(living.id).await?;
        let container = stage.docker.start_idle()?;
        wait_until_idle().await;
        let used = container_bytes(stage, &container);
        stage.docker.remove(&container)?;
        docker.add(used? / MEGABYTE);
    }
    let (guest, launcher) = (guests.summary().median, launchers.summary().median);
    Ok(Figure {
        name: "memory",
        what: "memory of an idle sandbox: PSS of guest and launcher".into(),
        unit: Unit::Megabytes,
        ours: ours.summary(),
        target: Target::AtMost(3.0),
        beside: vec![Baseline {
            what: "docker: PSS of shim and the container's first process (`sleep` of busybox)".into(),
            summary: docker.summary(),
            against: None,
            target: Target::None,
        }],
        notes: vec![format!(
            "guest {guest:.2} MB, launcher {launcher:.2} MB; one sandbox at a time, after an exec; a megabyte is 1,000,000 bytes"
        )],
    })
}

fn container_bytes(stage: &Stage, container: &str) -> Result<f64> {
    let first = stage.docker.pid(container)?;
    Ok(proportional_bytes(first)? + proportional_bytes(parent(first)?)?)
}
