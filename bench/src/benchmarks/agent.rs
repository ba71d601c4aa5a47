//! The overhead of the agent loop beside model and tools, measured with a model server that answers immediately.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use crate::Stage;
use crate::bare;
use crate::http::Connection;
use crate::measure::{Samples, milliseconds, settle};
use crate::model::{Calls, Exchange, InstantModel};
use crate::report::{Baseline, Figure, Target, Unit};
use crate::sandboxes::resident_bytes;
use crate::server::Server;

const MEGABYTE: f64 = 1e6;
const PAUSE: Duration = Duration::from_millis(10);
const PATIENCE: Duration = Duration::from_secs(600);
/// The number of concurrent jobs.
const CROWD: u32 = 100;
/// The number of calls in an answer that makes the log long. Such a turn writes three events per call plus two.
const MANY_CALLS: usize = 40;
const MANY_EVENTS: usize = 3 * MANY_CALLS + 2;
/// The number of events that a turn with one call writes.
const FEW_EVENTS: usize = 5;

/// Three results: the loop with a short and a long log, the start of a call, a hundred agents.
pub(crate) async fn measure(stage: &Stage) -> Result<Vec<Figure>> {
    let mut figures = turns(stage).await?;
    figures.push(start_of_a_call(stage).await?);
    figures.push(crowd(stage).await?);
    Ok(figures)
}

fn note(number: usize, index: usize) -> (&'static str, Value) {
    ("notes", json!({"name": format!("note {}", index % 4), "text": format!("the text of note {number}")}))
}

fn finish() -> Calls {
    vec![("finish", json!({"summary": "done"}))]
}

/// One conversation: some turns with one call, many with many calls, some with one call again.
async fn turns(stage: &Stage) -> Result<Vec<Figure>> {
    let short = 100 / FEW_EVENTS;
    let measured = stage.plan.runs.max(10);
    let long = 10_000_usize.div_ceil(MANY_EVENTS);
    let (begin, end) = (short + measured, short + measured + long);
    let model = InstantModel::start(move |_, number| match number {
        number if number < begin => vec![note(number, 0)],
        number if number < end => (0..MANY_CALLS).map(|index| note(number * 100 + index, index)).collect(),
        number if number <= end + measured => vec![note(number, 1)],
        _ => finish(),
    })
    .await?;
    let server = Server::start(stage, &model.settings()).await?;
    let ran = run_job(&server, 1).await;
    server.remove(stage).await?;
    ran?;
    let exchanges = model.exchanges();
    ensure!(exchanges.len() > end + measured, "only {} turns were made", exchanges.len());
    // The time from the end of an answer to the next request: the log, the tool (which does nothing), the prompt.
    let gaps = |from: usize| -> Samples {
        let mut samples = Samples::default();
        for pair in exchanges[from..=from + measured].windows(2) {
            samples.add(milliseconds(pair[1].asked.duration_since(pair[0].answered)));
        }
        samples
    };
    let figure = |what: &str, samples: Samples, most: f64| {
        Figure {
        name: "agent",
        what: what.to_owned(),
        unit: Unit::Milliseconds,
        ours: samples.summary(),
        target: Target::AtMost(most),
        beside: Vec::new(),
        notes: vec![
            "from the last byte of an answer to the whole next request, as the model server sees it: the answer, the \
             call and its end are durable in between; the tool is `notes`, which does nothing outside of the log"
                .into(),
        ],
    }
    };
    Ok(vec![
        figure("the loop of an agent, one turn with about 100 events in the log", gaps(short), 5.0),
        figure("the loop of an agent, one turn with more than 10,000 events in the log", gaps(end), 10.0),
    ])
}

/// The time from the last byte of an answer until the shell that it called runs in the sandbox.
async fn start_of_a_call(stage: &Stage) -> Result<Figure> {
    const SHOW_TIME: &str = "echo at=$EPOCHREALTIME=";
    let turns = stage.plan.runs.max(10);
    let model = InstantModel::start(move |_, number| {
        // A different command each time, because an agent that repeats itself is stopped.
        let command = format!("{SHOW_TIME}; # {number}");
        if number < turns { vec![("shell", json!({"command": command}))] } else { finish() }
    })
    .await?;
    let server = Server::start(stage, &model.settings()).await?;
    let ran = run_job(&server, 1).await;
    server.remove(stage).await?;
    ran?;
    let (mut ours, mut plain) = (Samples::default(), Samples::default());
    for pair in model.exchanges().windows(2).take(turns) {
        ours.add((start_of(&pair[1])? - pair[0].answered_s) * 1e3);
        settle().await;
        let start = Instant::now();
        let mut bash = std::process::Command::new("bash");
        bare::run(bash.args(["-c", SHOW_TIME]))?;
        plain.since(start);
    }
    let median = plain.summary().median;
    let mut beyond = Samples::default();
    for pair in model.exchanges().windows(2).take(turns) {
        beyond.add((start_of(&pair[1])? - pair[0].answered_s).mul_add(1e3, -median));
    }
    Ok(Figure {
        name: "agent-call",
        what: "from a tool call's arrival to its start in the sandbox, minus a plain start of `bash`".into(),
        unit: Unit::Milliseconds,
        ours: beyond.summary(),
        target: Target::AtMost(2.0),
        beside: vec![Baseline {
            what: "plain fork and exec of `bash -c`, to its end; the ratio is that of the whole way".into(),
            summary: plain.summary(),
            against: Some(ours.summary()),
            target: Target::None,
        }],
        notes: vec![
            "from the last byte of the answer, which is made durable with the call before it is sent, to the time that \
             the shell in the sandbox prints first"
                .into(),
        ],
    })
}

/// The time that a shell printed, in seconds since 1970.
fn start_of(exchange: &Exchange) -> Result<f64> {
    let printed = exchange.result.rsplit("at=").next().and_then(|text| text.split('=').next());
    printed.and_then(|text| text.parse().ok()).with_context(|| format!("no time in {}", exchange.result))
}

/// A hundred agents at once: all must complete; measures the server's resource usage per agent.
async fn crowd(stage: &Stage) -> Result<Figure> {
    let model = InstantModel::start(|turn, _| match turn {
        0 => vec![("plan", json!({"items": ["look", "write"]}))],
        1 => vec![("shell", json!({"command": "echo hello > hello.txt; sleep 0.2; ls"}))],
        2 => vec![("read_file", json!({"path": "hello.txt"}))],
        _ => {
            let done = |text: &str| json!({"text": text, "status": "done"});
            [vec![("plan", json!({"items": [done("look"), done("write")]}))], finish()].concat()
        }
    })
    .await?;
    let settings = format!("{}[jobs]\nmax_running = {CROWD}\n", model.settings());
    let server = Server::start(stage, &settings).await?;
    let measured = async {
        // The first job warms the server up.
        run_job(&server, 1).await?;
        settle().await;
        let before = resident_bytes(server.pid()?)?;
        let start = Instant::now();
        let most = run_jobs(&server, CROWD, CROWD + 1).await?;
        Ok::<_, anyhow::Error>((before, most, start.elapsed()))
    };
    let measured = measured.await;
    server.remove(stage).await?;
    let (before, most, time) = measured?;
    let mut each = Samples::default();
    each.add((most - before).max(0.0) / f64::from(CROWD) / MEGABYTE);
    Ok(Figure {
        name: "agent-crowd",
        what: format!("{CROWD} agent jobs at once, all complete: memory of the server for each at most"),
        unit: Unit::Megabytes,
        ours: each.summary(),
        target: Target::AtMost(1.0),
        beside: Vec::new(),
        notes: vec![format!(
            "four turns each, with a command and a file; all were complete after {:.1} s; resident memory {:.1} MB before, \
             {:.1} MB at most",
            time.as_secs_f64(),
            before / MEGABYTE,
            most / MEGABYTE
        )],
    })
}

async fn run_job(server: &Server, complete: u32) -> Result<f64> {
    run_jobs(server, 1, complete).await
}

/// Submits jobs and waits until all are complete; returns the server's peak memory.
async fn run_jobs(server: &Server, jobs: u32, complete: u32) -> Result<f64> {
    let mut connection = Connection::open(server.address).await?;
    let body = json!({"task": "work", "budget": {"turns": 10_000, "tool_calls": 1_000_000}}).to_string();
    let request = connection.post_bytes("/schedule", &body);
    for _ in 0..jobs {
        let (status, answer) = connection.ask(&request).await?;
        ensure!(status == 202, "a job was answered with {status}: {}", String::from_utf8_lossy(&answer));
    }
    let (start, mut most) = (Instant::now(), 0.0_f64);
    loop {
        most = most.max(resident_bytes(server.pid()?)?);
        let (_, metrics) = connection.get("/metrics").await?;
        let counted = counted(&String::from_utf8_lossy(&metrics), "complete");
        if counted == complete {
            return Ok(most);
        }
        let (_, list) = connection.get("/v1/jobs?limit=5").await?;
        let list = String::from_utf8_lossy(&list).into_owned();
        if list.contains("\"status\":\"failed\"") || start.elapsed() > PATIENCE {
            bail!(
                "{counted} of {complete} jobs are complete: {}",
                list.chars().take(600).collect::<String>()
            );
        }
        tokio::time::sleep(PAUSE).await;
    }
}

fn counted(metrics: &str, state: &str) -> u32 {
    let wanted = format!("state=\"{state}\"");
    let line = metrics.lines().find(|line| line.contains(&wanted));
    line.and_then(|line| line.rsplit(' ').next()).and_then(|text| text.parse().ok()).unwrap_or(0)
}
