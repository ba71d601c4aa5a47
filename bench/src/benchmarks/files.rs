//! The cost of logging the files that a job accesses: a medium npm project (this repository's web page with its
//! dependencies) is unpacked and built in a sandbox with the log and in one without.

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use sandbox::namespace::FileAuditing;

use crate::measure::{Samples, milliseconds};
use crate::report::{Baseline, Figure, Target, Unit};
use crate::sandboxes::Sandboxes;
use crate::{Stage, server};

const WORK: &str =
    "mkdir p && tar xf project.tar -C p && cd p && node node_modules/vite/bin/vite.js build --logLevel error";

/// Alternates: with the log, without it.
pub(crate) async fn measure(stage: &Stage) -> Result<Figure> {
    let folder = server::short_folder()?;
    let archive = folder.path().join("project.tar");
    pack(&archive)?;
    let listed = Sandboxes::with_list(stage, &folder.path().join("l"), FileAuditing::WherePossible)?;
    let unlisted = Sandboxes::with_list(stage, &folder.path().join("u"), FileAuditing::Off)?;
    let (mut with, mut without) = (Samples::default(), Samples::default());
    let mut lines = 0;
    // The first run of each warms the page cache.
    for turn in 0..=stage.plan.runs.clamp(1, 7) {
        for (sandboxes, samples) in [(&listed, &mut with), (&unlisted, &mut without)] {
            let mut living = sandboxes.start().await?;
            living.upload("project.tar", &archive).await?;
            let start = Instant::now();
            living.run_shell(WORK).await.context("unpacking and building the page")?;
            if turn > 0 {
                samples.add(milliseconds(start.elapsed()));
            }
            lines = sandboxes.listed_lines(living.id).await?.unwrap_or(lines);
            sandboxes.destroy(living.id).await?;
        }
    }
    ensure!(lines > 1000, "the list has {lines} lines: the host does not allow it");
    let (with, without) = (with.summary(), without.summary());
    Ok(Figure {
        name: "files",
        what: "an npm project (this repository's page) unpacked and built while its files are listed".into(),
        unit: Unit::Milliseconds,
        ours: with,
        target: Target::None,
        beside: vec![Baseline {
            what: "the same without a list".into(),
            summary: without,
            against: None,
            target: Target::TimesSlower(1.15),
        }],
        notes: vec![format!("{lines} lines; in turns, the first of each not counted")],
    })
}

fn pack(target: &Path) -> Result<()> {
    let web = Path::new(env!("CARGO_MANIFEST_DIR")).join("../web");
    ensure!(web.join("node_modules/vite").is_dir(), "web/node_modules is missing: run ./build-web first");
    let status = Command::new("tar")
        // Excludes only the top-level folder: packages have folders of that name too.
        .args(["--anchored", "--exclude=./dist", "-cf"])
        .arg(target)
        .arg("-C")
        .arg(&web)
        .arg(".")
        .status()
        .context("running tar")?;
    ensure!(status.success(), "tar ended with {status}");
    Ok(())
}
