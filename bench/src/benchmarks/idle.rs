//! The memory of an idle server.

use anyhow::{Context, Result};

use crate::Stage;
use crate::measure::{Samples, settle};
use crate::report::{Baseline, Figure, Target, Unit};
use crate::sandboxes::proportional_bytes;
use crate::server::Server;

const MEGABYTE: f64 = 1e6;
/// Few runs: each is a full server start, and they hardly differ.
const RUNS: usize = 5;

/// Measures a server that has just become ready, and the running Docker engine for comparison.
pub(crate) async fn measure(stage: &Stage) -> Result<Figure> {
    let (mut ours, mut docker) = (Samples::default(), Samples::default());
    for _ in 0..RUNS {
        let server = Server::start(stage, "").await?;
        settle().await;
        let used = server.pid().and_then(proportional_bytes);
        server.remove(stage).await?;
        ours.add(used? / MEGABYTE);
        docker.add(engine_bytes(stage)? / MEGABYTE);
    }
    Ok(Figure {
        name: "idle",
        what: "memory of a server that is ready and has nothing to do: PSS".into(),
        unit: Unit::Megabytes,
        ours: ours.summary(),
        target: Target::AtMost(30.0),
        beside: vec![Baseline {
            what: "docker: PSS of `dockerd` and its `containerd`".into(),
            summary: docker.summary(),
            against: None,
            target: Target::None,
        }],
        notes: vec!["a megabyte is 1,000,000 bytes; nothing has run in this server yet".into()],
    })
}

fn engine_bytes(stage: &Stage) -> Result<f64> {
    let file = stage.docker.socket.with_file_name("docker.pid");
    let text = std::fs::read_to_string(&file).with_context(|| format!("reading {}", file.display()))?;
    let engine: u32 = text.trim().parse().with_context(|| format!("reading {}", file.display()))?;
    let children = std::fs::read_to_string(format!("/proc/{engine}/task/{engine}/children"))?;
    let mut bytes = proportional_bytes(engine)?;
    for child in children.split_whitespace() {
        bytes += proportional_bytes(child.parse()?)?;
    }
    Ok(bytes)
}
