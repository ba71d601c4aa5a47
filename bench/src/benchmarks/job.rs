//! A whole step job over HTTP: submitted, its events followed, complete with its zip.

use std::time::Instant;

use anyhow::{Result, ensure};

use super::acceptance::submit;
use crate::Stage;
use crate::http::Connection;
use crate::measure::{Samples, settle};
use crate::report::{Baseline, Figure, Target, Unit};
use crate::server::Server;

const JOB: &str = r#"{"steps":[{"tool":"shell","command":"true"}]}"#;

/// Alternates: a job, `docker run` alone.
pub(crate) async fn measure(stage: &Stage) -> Result<Figure> {
    let server = Server::start(stage, "").await?;
    let measured = in_turns(stage, &server).await;
    server.remove(stage).await?;
    let (ours, docker) = measured?;
    Ok(Figure {
        name: "job",
        what: "a whole step job over HTTP, one step `true`: schedule to `complete` with its zip".into(),
        unit: Unit::Milliseconds,
        ours: ours.summary(),
        target: Target::AtMost(60.0),
        beside: vec![Baseline {
            what: "`docker run --rm --network none` of `true` alone".into(),
            summary: docker.summary(),
            against: None,
            target: Target::TimesFaster(5.0),
        }],
        notes: vec![
            "followed by server-sent events; that the zip is there is checked after the clock has stopped"
                .into(),
        ],
    })
}

async fn in_turns(stage: &Stage, server: &Server) -> Result<(Samples, Samples)> {
    let (mut ours, mut docker) = (Samples::default(), Samples::default());
    one_job(server, &mut Samples::default()).await?;
    for _ in 0..stage.plan.runs {
        settle().await;
        one_job(server, &mut ours).await?;
        settle().await;
        let start = Instant::now();
        stage.docker.run_true()?;
        docker.since(start);
    }
    Ok((ours, docker))
}

async fn one_job(server: &Server, samples: &mut Samples) -> Result<()> {
    let mut connection = Connection::open(server.address).await?;
    let start = Instant::now();
    let id = submit(&mut connection, JOB).await?;
    let ends = [r#""state":"complete""#, r#""state":"failed""#, "event: problem", "event: end"];
    let end = connection.follow_until(&format!("/v1/jobs/{id}/events"), &ends).await?;
    samples.since(start);
    ensure!(end == 0, "job {id} did not become complete");
    let (status, zip) =
        Connection::open(server.address).await?.get(&format!("/jobs/{id}/output.zip")).await?;
    ensure!(status == 200 && zip.starts_with(b"PK"), "the zip of job {id} answers {status}");
    Ok(())
}
