//! The overhead of an exec in a running sandbox over a plain process.

use std::time::Instant;

use anyhow::Result;

use crate::measure::{Samples, milliseconds};
use crate::report::{Baseline, Figure, Target, Unit};
use crate::sandboxes::Sandboxes;
use crate::{Stage, bare, server};

/// Alternates: an exec over the link, a plain process. The result is the difference within each pair.
pub(crate) async fn measure(stage: &Stage) -> Result<Figure> {
    let folder = server::short_folder()?;
    let sandboxes = Sandboxes::new(stage, &folder.path().join("s"))?;
    let mut living = sandboxes.start().await?;
    let (mut above, mut inside, mut plain) = (Samples::default(), Samples::default(), Samples::default());
    for _ in 0..stage.plan.short_runs {
        let start = Instant::now();
        living.run_true().await?;
        let with_link = milliseconds(start.elapsed());
        let start = Instant::now();
        bare::run_true()?;
        let without = milliseconds(start.elapsed());
        inside.add(with_link);
        plain.add(without);
        above.add(with_link - without);
    }
    sandboxes.destroy(living.id).await?;
    let inside = inside.summary();
    Ok(Figure {
        name: "exec",
        what: "exec round trip of `true` in a living sandbox, minus a plain fork and exec of `true`".into(),
        unit: Unit::Milliseconds,
        ours: above.summary(),
        target: Target::AtMost(1.0),
        beside: vec![Baseline {
            what: "plain fork and exec of `true`; the ratio is that of the whole round trip".into(),
            summary: plain.summary(),
            against: Some(inside),
            target: Target::None,
        }],
        notes: vec![format!(
            "the whole round trip took {:.2} ms (p90 {:.2} ms); it journals the call on disk",
            inside.median, inside.p90
        )],
    })
}
