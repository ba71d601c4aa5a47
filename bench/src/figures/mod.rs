//! One file a figure. Each measures ours and the others in turns and gives back one [`Figure`].

mod acceptance;
mod cold;
mod crowd;
mod exec;
mod job;
mod memory;
mod recovery;

use std::time::Instant;

use anyhow::{Context, Result};

use crate::Stage;
use crate::report::Figure;

/// Measures all figures whose name contains a text.
pub(crate) async fn all(stage: Stage, only: String) -> Result<Vec<Figure>> {
    let mut figures = Vec::new();
    for name in ["cold", "exec", "crowd", "memory", "acceptance", "job", "recovery"] {
        if !name.contains(&only) {
            continue;
        }
        let start = Instant::now();
        eprint!("measuring {name} ... ");
        let measured = match name {
            "cold" => cold::measure(&stage).await.map(|figure| vec![figure]),
            "exec" => exec::measure(&stage).await.map(|figure| vec![figure]),
            "crowd" => crowd::measure(&stage).await.map(|figure| vec![figure]),
            "memory" => memory::measure(&stage).await.map(|figure| vec![figure]),
            "acceptance" => acceptance::measure(&stage).await,
            "job" => job::measure(&stage).await.map(|figure| vec![figure]),
            _ => recovery::measure(&stage).await.map(|figure| vec![figure]),
        };
        figures.extend(measured.with_context(|| format!("measuring {name}"))?);
        eprintln!("{:.0} s", start.elapsed().as_secs_f64());
    }
    Ok(figures)
}
