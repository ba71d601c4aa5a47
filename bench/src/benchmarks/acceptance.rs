//! How many step jobs per second a server accepts durably.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use futures::future::try_join_all;

use crate::Stage;
use crate::http::Connection;
use crate::measure::Samples;
use crate::report::{Baseline, Figure, Target, Unit};
use crate::server::Server;

const CONNECTIONS: usize = 32;
const SETTINGS: &str = "[jobs]\nmax_running = 1\nmax_queued = 1000000\n";
const JOB: &str = r#"{"steps":[{"tool":"shell","command":"true"}]}"#;
const LONG_JOB: &str = r#"{"steps":[{"tool":"shell","command":"sleep 3000","timeout_s":3600}]}"#;
const PAGE: usize = 1000;

/// What the scheduler does while jobs are submitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Meanwhile {
    /// One long job occupies the only slot, so that only acceptance is measured.
    Blocked,
    /// The scheduler runs the submitted jobs, one at a time.
    Running,
}

/// The results of one load test.
struct Load {
    rates: Samples,
    docker: Samples,
    accepted: u64,
    seconds: f64,
}

/// Measures twice: with a blocked scheduler, and with one that runs jobs on the same CPUs.
pub(crate) async fn measure(stage: &Stage) -> Result<Vec<Figure>> {
    let mut figures = Vec::new();
    for meanwhile in [Meanwhile::Blocked, Meanwhile::Running] {
        let server = Server::start(stage, SETTINGS).await?;
        let loaded = load_and_count(stage, &server, meanwhile).await;
        // Killed, not stopped: accepted jobs must survive that.
        let server = server.crash_and_restart(stage).await?;
        let counted = count_jobs(&server).await;
        server.remove(stage).await?;
        let (load, counted) = (loaded?, counted?);
        ensure!(counted == load.accepted, "{} jobs were accepted, {counted} are listed", load.accepted);
        figures.push(describe(&load, meanwhile, counted));
    }
    Ok(figures)
}

fn describe(load: &Load, meanwhile: Meanwhile, counted: u64) -> Figure {
    #[expect(clippy::cast_precision_loss, reason = "far fewer jobs than that")]
    let overall = load.accepted as f64 / load.seconds;
    let (name, what) = match meanwhile {
        Meanwhile::Blocked => {
            ("acceptance", "while the one place (`max_running = 1`) is held by a job that sleeps")
        }
        Meanwhile::Running => {
            ("acceptance-busy", "while the scheduler runs the queue, one job at a time, on the same cores")
        }
    };
    Figure {
        name,
        what: format!("step jobs accepted durably over HTTP, {what}"),
        unit: Unit::PerSecond,
        ours: load.rates.summary_of_rates(),
        target: Target::AtLeast(2000.0),
        beside: vec![Baseline {
            what: "`docker create`, one after another".into(),
            summary: load.docker.summary_of_rates(),
            against: None,
            target: Target::None,
        }],
        notes: vec![format!(
            "{} jobs answered with 202 in {:.1} s over {CONNECTIONS} connections, {overall:.0} /s over all; the load \
             generator runs on the same cores; after `kill -9` and a restart {counted} jobs were listed",
            load.accepted, load.seconds
        )],
    }
}

async fn load_and_count(stage: &Stage, server: &Server, meanwhile: Meanwhile) -> Result<Load> {
    let mut connections = Vec::new();
    for _ in 0..CONNECTIONS {
        connections.push(Connection::open(server.address).await?);
    }
    let mut accepted = 0;
    if meanwhile == Meanwhile::Blocked {
        accepted += occupy_slot(server).await?;
    }
    let mut load = Load { rates: Samples::default(), docker: Samples::default(), accepted, seconds: 0.0 };
    for _ in 0..stage.plan.runs {
        let start = Instant::now();
        let (count, back) = one_slice(stage, connections).await?;
        connections = back;
        let seconds = start.elapsed().as_secs_f64();
        #[expect(clippy::cast_precision_loss, reason = "far fewer jobs than that")]
        load.rates.add(count as f64 / seconds);
        load.accepted += count;
        load.seconds += seconds;
        let start = Instant::now();
        let container = stage.docker.create()?;
        load.docker.add(1.0 / start.elapsed().as_secs_f64());
        stage.docker.remove(&container)?;
    }
    Ok(load)
}

/// Occupies the only slot with a sleeping job; returns the number of jobs submitted for that.
async fn occupy_slot(server: &Server) -> Result<u64> {
    let id = submit(&mut Connection::open(server.address).await?, LONG_JOB).await?;
    let follower = Connection::open(server.address).await?;
    follower.follow_until(&format!("/v1/jobs/{id}/events"), &["event: call_started"]).await?;
    Ok(1)
}

/// Submits a job; returns its id.
pub(super) async fn submit(connection: &mut Connection, job: &str) -> Result<String> {
    let request = connection.post_bytes("/schedule", job);
    let (status, body) = connection.ask(&request).await?;
    ensure!(status == 202, "/schedule answers {status}: {}", String::from_utf8_lossy(&body));
    let answer: serde_json::Value = serde_json::from_slice(&body)?;
    Ok(answer["job_id"].as_str().context("the answer has no job_id")?.to_owned())
}

/// Submits jobs over all connections for one time slice; returns how many were accepted.
async fn one_slice(stage: &Stage, connections: Vec<Connection>) -> Result<(u64, Vec<Connection>)> {
    let stop = Arc::new(AtomicBool::new(false));
    let count = Arc::new(AtomicU64::new(0));
    let tasks = connections.into_iter().map(|mut connection| {
        let (stop, count) = (Arc::clone(&stop), Arc::clone(&count));
        tokio::spawn(async move {
            let request = connection.post_bytes("/schedule", JOB);
            while !stop.load(Ordering::Relaxed) {
                let (status, body) = connection.ask(&request).await?;
                ensure!(status == 202, "/schedule answers {status}: {}", String::from_utf8_lossy(&body));
                count.fetch_add(1, Ordering::Relaxed);
            }
            Ok(connection)
        })
    });
    let tasks: Vec<_> = tasks.collect();
    tokio::time::sleep(stage.plan.load_slice).await;
    stop.store(true, Ordering::Relaxed);
    let connections = try_join_all(tasks).await?.into_iter().collect::<Result<Vec<_>>>()?;
    Ok((count.load(Ordering::Relaxed), connections))
}

/// The number of jobs that `/v1/jobs` lists over all pages.
async fn count_jobs(server: &Server) -> Result<u64> {
    let mut connection = Connection::open(server.address).await?;
    let (mut count, mut before) = (0, String::new());
    loop {
        let (status, body) = connection.get(&format!("/v1/jobs?limit={PAGE}{before}")).await?;
        ensure!(status == 200, "/v1/jobs answers {status}: {}", String::from_utf8_lossy(&body));
        let page: serde_json::Value = serde_json::from_slice(&body)?;
        count += page["jobs"].as_array().map_or(0, Vec::len) as u64;
        match page["next"].as_str() {
            Some(next) => before = format!("&before={next}"),
            None => return Ok(count),
        }
    }
}
