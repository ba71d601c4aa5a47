//! What the full image costs a job that only uses the shell: nothing in it may start before it is used.

use anyhow::{Context, Result};

use crate::measure::{Samples, wait_until_idle};
use crate::report::{Baseline, Figure, Target, Unit};
use crate::sandboxes::{Sandboxes, process_tree, proportional_bytes};
use crate::{Stage, server};

const MEGABYTE: f64 = 1e6;
/// The target: the maximum difference to an empty sandbox.
const AT_MOST: f64 = 10.0;

/// Alternates: a sandbox on the full image after a command, an empty one on the host image.
pub(crate) async fn measure(stage: &Stage) -> Result<Figure> {
    let images = stage.images.as_ref().context("--images with the image `default` is needed for this")?;
    let folder = server::short_folder()?;
    let full = Sandboxes::of_image(stage, &folder.path().join("f"), images, "default")?;
    let empty = Sandboxes::new(stage, &folder.path().join("e"))?;
    let (mut more, mut whole, mut least) = (Samples::default(), Samples::default(), Samples::default());
    for _ in 0..stage.plan.runs {
        let living = empty.start_idle().await?;
        let base = megabytes(&empty, living).await?;
        empty.destroy(living).await?;
        let living = full.start().await?;
        let used = megabytes(&full, living.id).await?;
        full.destroy(living.id).await?;
        more.add(used - base);
        whole.add(used);
        least.add(base);
    }
    Ok(Figure {
        name: "image",
        what: "idle sandbox on the full image after a command: memory above an empty sandbox".into(),
        unit: Unit::Megabytes,
        ours: more.summary(),
        target: Target::AtMost(AT_MOST),
        beside: vec![Baseline {
            what: "an empty sandbox, whole; the ratio is that of the whole of both".into(),
            summary: least.summary(),
            against: Some(whole.summary()),
            target: Target::None,
        }],
        notes: vec![
            "PSS of the launcher, the guest and all that runs in the sandbox; one lives at a time".into(),
        ],
    })
}

async fn megabytes(sandboxes: &Sandboxes, id: sandbox::SandboxId) -> Result<f64> {
    wait_until_idle().await;
    let mut bytes = 0.0;
    let [guest, launcher] = sandboxes.processes(id)?;
    for process in process_tree(guest)?.into_iter().chain([launcher]) {
        bytes += proportional_bytes(process)?;
    }
    Ok(bytes / MEGABYTE)
}
