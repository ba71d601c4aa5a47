//! What a server does first with a job it finds: opens the store, reads the job's log, folds it into a view.

use std::fmt::Write as _;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use job::{
    CallEnd, CallRef, Event, EventBody, Fence, JobDefaults, JobId, JobState, JobView, Kinds, NewEvent,
    NewJob, call_of_step,
};
use store::{NewRecord, SqliteStore, Store};

use crate::measure::{Samples, settle};
use crate::report::{Baseline, Figure, Target, Unit};
use crate::{Stage, server};

const EVENTS: usize = 10_000;
/// The number of events per append.
const BATCH: usize = 500;
/// Events of one step: its start, its output, its end.
const EVENTS_OF_A_STEP: usize = 50;

/// Alternates: the store, a flat file of JSON lines.
pub(crate) async fn measure(stage: &Stage) -> Result<Figure> {
    let folder = server::short_folder()?;
    let (database, lines) = (folder.path().join("caisson.db"), folder.path().join("events.jsonl"));
    let job = JobId::generate();
    let log = write(&database, job).await?;
    let mut text = String::new();
    for event in &log {
        writeln!(text, "{}", serde_json::to_string(event)?)?;
    }
    std::fs::write(&lines, &text)?;
    let (mut ours, mut flat) = (Samples::default(), Samples::default());
    let (mut opened, mut read) = (Samples::default(), Samples::default());
    for _ in 0..stage.plan.runs {
        settle().await;
        let start = Instant::now();
        let store = SqliteStore::open(&database)?;
        opened.since(start);
        let events = store.all_events(job, Kinds::All, 0).await?;
        read.since(start);
        let view = JobView::of_log(job, &events).context("the log has no creation")?;
        ours.since(start);
        ensure!(
            events.len() == EVENTS && view.state == JobState::Running,
            "{} events came back",
            events.len()
        );
        drop(store);
        settle().await;
        let start = Instant::now();
        let expected = read_lines(job, &lines)?;
        flat.since(start);
        ensure!(view == expected, "the two ways give different views");
    }
    Ok(Figure {
        name: "recovery",
        what: "10,000 logged events of one job recovered: open the store, read, fold".into(),
        unit: Unit::Milliseconds,
        ours: ours.summary(),
        target: Target::AtMost(50.0),
        beside: vec![Baseline {
            what: "the same events from a flat file of JSON lines, read and folded".into(),
            summary: flat.summary(),
            against: None,
            target: Target::None,
        }],
        notes: vec![format!(
            "{} KB as JSON lines; both files are in the page cache; of ours, the store is open after {:.1} ms and the \
             events are read after {:.1} ms",
            text.len() / 1000,
            opened.summary().median,
            read.summary().median
        )],
    })
}

fn read_lines(job: JobId, path: &Path) -> Result<JobView> {
    let text = std::fs::read_to_string(path)?;
    let events: Vec<Event> = text.lines().map(serde_json::from_str).collect::<Result<_, _>>()?;
    JobView::of_log(job, &events).context("the log has no creation")
}

/// Writes a job whose log has [`EVENTS`] entries; returns the log.
async fn write(database: &Path, job: JobId) -> Result<Vec<Event>> {
    let steps = vec![r#"{"tool":"shell","command":"make test"}"#; EVENTS / EVENTS_OF_A_STEP].join(",");
    let request: NewJob = serde_json::from_str(&format!("{{\"steps\":[{steps}]}}"))?;
    let state = |state| NewEvent::from(EventBody::StateChanged { state, code: None, reason: None });
    let store = SqliteStore::open(database)?;
    let events = vec![state(JobState::Queued), state(JobState::Starting), state(JobState::Running)];
    let record =
        NewRecord { id: job, spec: request.check(&JobDefaults::default())?, events, idempotency: None };
    store.create(record).await?;
    let first = store.all_events(job, Kinds::All, 0).await?.len();
    let rest: Vec<NewEvent> = (0..EVENTS - first).map(event_of_a_step).collect();
    for batch in rest.chunks(BATCH) {
        store.append(job, Fence::Anybody, batch.to_vec()).await?;
    }
    Ok(store.all_events(job, Kinds::All, 0).await?)
}

fn event_of_a_step(index: usize) -> NewEvent {
    let (step, place) = (index / EVENTS_OF_A_STEP, index % EVENTS_OF_A_STEP);
    let call = CallRef { id: call_of_step(step), attempt: 1 };
    let body = match place {
        0 => EventBody::CallStarted {
            step: Some(step),
            tool: "shell".into(),
            input: serde_json::json!({"command": "make test"}),
        },
        place if place == EVENTS_OF_A_STEP - 1 => {
            EventBody::CallEnded(CallEnd { exit_code: Some(0), duration_ms: 1234, ..CallEnd::default() })
        }
        place => EventBody::CallOutput {
            stream: "stdout".into(),
            next_chunk: place as u64,
            text: format!("test number {index} of the suite that this step runs ... ok\n"),
            base64: false,
            held_bytes: 0,
        },
    };
    body.of(&call)
}
