//! A thousand queued jobs, twenty at a time.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::acceptance::submit;
use super::crowd::run_containers;
use crate::Stage;
use crate::http::Connection;
use crate::measure::Samples;
use crate::report::{Baseline, Figure, Target, Unit};
use crate::sandboxes::resident_bytes;
use crate::server::Server;

const JOBS: u32 = 1000;
const AT_ONCE: u32 = 20;
const SETTINGS: &str = "[jobs]\nmax_running = 20\nmax_queued = 100000\n";
const JOB: &str = r#"{"steps":[{"tool":"shell","command":"echo one line"}]}"#;
const PAUSE: Duration = Duration::from_millis(20);
const PATIENCE: Duration = Duration::from_secs(300);
const MEGABYTE: f64 = 1e6;
/// A multiple of three: memory at the end is compared with memory after the first third.
const ROUNDS: u32 = 6;
/// The target: how much memory may grow from the first third to the end. Memory that the server keeps per job would
/// show here.
const MAX_MEMORY_GROWTH: f64 = 1.1;
/// Clock ticks per second of CPU time.
const TICKS: f64 = 100.0;

/// Measurements per round.
#[derive(Default)]
struct Rounds {
    ours: Samples,
    docker: Samples,
    /// Resident memory of the server after each round.
    memory: Vec<f64>,
    /// CPU milliseconds per job in each round.
    processor: Samples,
    /// Steal time in each round, in percent of CPU time.
    stolen: Samples,
}

/// Alternates: a thousand jobs, twenty containers at once.
pub(crate) async fn measure(stage: &Stage) -> Result<Vec<Figure>> {
    let server = Server::start(stage, SETTINGS).await?;
    let measured = in_turns(stage, &server).await;
    server.remove(stage).await?;
    let rounds = measured?;
    Ok(vec![rate(&rounds), memory(&rounds)])
}

fn rate(rounds: &Rounds) -> Figure {
    Figure {
        name: "throughput",
        what: format!(
            "{JOBS} step jobs of one line queued, {AT_ONCE} at a time: first accepted to last complete"
        ),
        unit: Unit::PerSecond,
        ours: rounds.ours.summary_of_rates(),
        target: Target::AtLeast(100.0),
        beside: vec![Baseline {
            what: format!("{AT_ONCE} x `docker run --rm --network none` of `true` at once"),
            summary: rounds.docker.summary_of_rates(),
            against: None,
            target: Target::None,
        }],
        notes: vec![
            format!(
                "a job took {:.1} ms of processor time, of all that ran on the machine: this program, which hands the jobs in, too",
                rounds.processor.summary().median
            ),
            format!(
                "the host of this machine withheld {:.0} % of the processors' time meanwhile",
                rounds.stolen.summary().median
            ),
        ],
    }
}

fn memory(rounds: &Rounds) -> Figure {
    let third = rounds.memory.len() / 3;
    let mean = |values: &[f64]| {
        let mut samples = Samples::default();
        values.iter().for_each(|bytes| samples.add(bytes / MEGABYTE));
        samples.summary()
    };
    let megabytes: Vec<String> =
        rounds.memory.iter().map(|bytes| format!("{:.1}", bytes / MEGABYTE)).collect();
    Figure {
        name: "throughput-memory",
        what: format!("resident memory of that server after {} jobs", JOBS * ROUNDS),
        unit: Unit::Megabytes,
        ours: mean(&rounds.memory[rounds.memory.len().saturating_sub(1)..]),
        target: Target::None,
        beside: vec![Baseline {
            what: format!("the same after {} jobs", JOBS * ROUNDS / 3),
            summary: mean(&rounds.memory[third.saturating_sub(1)..third]),
            against: None,
            target: Target::TimesSlower(MAX_MEMORY_GROWTH),
        }],
        notes: vec![format!("after each further {JOBS} jobs: {} MB", megabytes.join(", "))],
    }
}

async fn in_turns(stage: &Stage, server: &Server) -> Result<Rounds> {
    let mut rounds = Rounds::default();
    for round in 1..=ROUNDS {
        let before = CpuTime::now()?;
        let rate = f64::from(JOBS) / one_round(server, round * JOBS).await?;
        rounds.ours.add(rate);
        let after = CpuTime::now()?;
        rounds.processor.add((after.used - before.used) / TICKS * 1e3 / f64::from(JOBS));
        rounds.stolen.add((after.stolen - before.stolen) / (after.all - before.all) * 1e2);
        rounds.memory.push(resident_bytes(server.pid()?)?);
        let start = Instant::now();
        run_containers(stage, AT_ONCE).await?;
        rounds.docker.add(f64::from(AT_ONCE) / start.elapsed().as_secs_f64());
    }
    Ok(rounds)
}

/// CPU time of the whole machine since boot, in ticks. The server's own child times are not enough, because launchers
/// are not its children.
struct CpuTime {
    /// Used by any process.
    used: f64,
    /// Stolen by the host of a virtual machine while a process was ready to run.
    stolen: f64,
    /// Including idle time.
    all: f64,
}

impl CpuTime {
    fn now() -> Result<Self> {
        let stat = std::fs::read_to_string("/proc/stat")?;
        let line = stat.lines().next().unwrap_or_default();
        let fields: Vec<f64> = line.split_whitespace().filter_map(|field| field.parse().ok()).collect();
        let &[user, nice, system, idle, disks, interrupts, soft, stolen, ..] = fields.as_slice() else {
            bail!("no processor times in /proc/stat")
        };
        let used = user + nice + system + interrupts + soft;
        Ok(Self { used, stolen, all: used + idle + disks + stolen })
    }
}

/// Submits all jobs and waits for their end; returns the seconds.
async fn one_round(server: &Server, complete: u32) -> Result<f64> {
    let mut connection = Connection::open(server.address).await?;
    let start = Instant::now();
    for _ in 0..JOBS {
        submit(&mut connection, JOB).await?;
    }
    loop {
        let (status, body) = connection.get("/readyz").await?;
        ensure!(status == 200, "/readyz answers {status}");
        let state: serde_json::Value = serde_json::from_slice(&body)?;
        if state["queued"] == 0 && state["running"] == 0 {
            break;
        }
        if start.elapsed() > PATIENCE {
            bail!("after {} s this is left: {state}", PATIENCE.as_secs());
        }
        tokio::time::sleep(PAUSE).await;
    }
    let seconds = start.elapsed().as_secs_f64();
    let (_, metrics) = connection.get("/metrics").await?;
    let metrics = String::from_utf8_lossy(&metrics);
    let counted = metrics
        .lines()
        .find(|line| line.contains(r#"state="complete""#))
        .and_then(|line| line.rsplit(' ').next());
    let counted: u32 = counted.context("no figure of complete jobs")?.parse()?;
    ensure!(counted == complete, "{counted} jobs are complete instead of {complete}");
    Ok(seconds)
}
