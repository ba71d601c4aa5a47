//! The web page in a real Chromium: transfer size of the first view, time until one can type, latency of a live
//! event, and the longest frame while scrolling through a long timeline.

use std::collections::HashMap;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::{Browser, Page};
use serde_json::{Value, json};

use super::acceptance::submit;
use crate::Stage;
use crate::http::Connection;
use crate::measure::Samples;
use crate::report::{Figure, Target, Unit};
use crate::server::Server;

/// Lines that a job prints, one after another.
const LINES: usize = 40;
/// Calls of the long timeline; each is two events.
const CALLS: usize = 2500;

/// Records when the task input exists and the browser has drawn it.
const NOTE_READY: &str = "new MutationObserver((_, watcher) => { if (document.querySelector('#task')) { watcher.disconnect(); \
    requestAnimationFrame(() => setTimeout(() => { globalThis.readyAt = performance.now(); })); } })\
    .observe(document, { childList: true, subtree: true });";

/// Records when each line of output appears.
const NOTE_LINES: &str = "globalThis.seen = {}; new MutationObserver(() => { const now = Date.now(); \
    for (const found of document.body.textContent.matchAll(/mark-(\\d+)-/g)) globalThis.seen[found[1]] ??= now; })\
    .observe(document, { childList: true, subtree: true, characterData: true });";

/// Scrolls from top to bottom and reports the longest frame.
const SCROLL: &str = "new Promise(done => { const scroller = document.querySelector('[data-scroller]'); scroller.scrollTop = 0; \
    let before = performance.now(), longest = 0, frames = 0; const step = () => { const now = performance.now(); \
    if (frames > 2) longest = Math.max(longest, now - before); before = now; frames += 1; scroller.scrollTop += 900; \
    if (frames > 150) done(longest); else requestAnimationFrame(step); }; requestAnimationFrame(step); })";

/// Measures all four.
pub(crate) async fn measure(stage: &Stage) -> Result<Vec<Figure>> {
    let server = Server::start(stage, "").await?;
    let measured = on(stage, &server).await;
    server.remove(stage).await?;
    measured
}

async fn on(stage: &Stage, server: &Server) -> Result<Vec<Figure>> {
    let browser = tokio::task::block_in_place(Browser::start);
    let start = format!("http://localhost:{}/", server.address.port());
    let (weight, ready) = tokio::task::block_in_place(|| first_view(stage, &browser, &start))?;
    let shown = live(server, &browser, &start).await?;
    let frames = long_timeline(stage, server, &browser, &start).await?;
    let figure = |name, what: &str, unit, samples: &Samples, target, note: &str| Figure {
        name,
        what: what.to_owned(),
        unit,
        ours: samples.summary(),
        target,
        beside: Vec::new(),
        notes: vec![note.to_owned()],
    };
    Ok(vec![
        figure(
            "web-weight",
            "the first view of the web page: bytes over the wire",
            Unit::Megabytes,
            &weight,
            Target::AtMost(0.2),
            "without a cache, as Chromium counts them, with headers; panes are loaded when they are opened",
        ),
        figure(
            "web-ready",
            "the web page: from the address typed until one can type a task",
            Unit::Milliseconds,
            &ready,
            Target::AtMost(1000.0),
            "without a cache, on localhost; the browser runs already",
        ),
        figure(
            "web-live",
            "a line that a job prints: from its event until it stands on the page",
            Unit::Milliseconds,
            &shown,
            Target::AtMost(100.0),
            "the event has its time when it is written; browser and server share the cores",
        ),
        figure(
            "web-frame",
            "the longest frame while a timeline of 5,000 events is scrolled through",
            Unit::Milliseconds,
            &frames,
            Target::None,
            "Chromium without a graphics card draws in software",
        ),
    ])
}

/// The transfer size in megabytes and the time until one can type, on a new page each time.
fn first_view(stage: &Stage, browser: &Browser, start: &str) -> Result<(Samples, Samples)> {
    let (mut weight, mut ready) = (Samples::default(), Samples::default());
    let mut page = browser.open("about:blank");
    page.ask("Network.enable", &json!({}));
    page.ask("Network.setCacheDisabled", &json!({"cacheDisabled": true}));
    page.ask("Page.addScriptToEvaluateOnNewDocument", &json!({"source": NOTE_READY}));
    for run in 0..=stage.plan.runs {
        page.ask("Page.navigate", &json!({"url": "about:blank"}));
        page.ask("Page.navigate", &json!({"url": start}));
        page.wait_for("one can type", "globalThis.readyAt > 0");
        let bytes = number(
            &mut page,
            "['navigation', 'resource'].flatMap(kind => performance.getEntriesByType(kind)).filter(entry => entry.startTime < globalThis.readyAt && !entry.name.includes('/v1/')).reduce((sum, entry) => sum + entry.transferSize, 0)",
        )?;
        ensure!(bytes > 1000.0, "the browser tells no sizes");
        // The first run starts the browser's own processes.
        if run > 0 {
            weight.add(bytes / 1e6);
            ready.add(number(&mut page, "globalThis.readyAt")?);
        }
    }
    Ok((weight, ready))
}

/// The delay between the event of each line and its appearance on the page.
async fn live(server: &Server, browser: &Browser, start: &str) -> Result<Samples> {
    let command = format!(
        "until [ -e go ]; do sleep 0.05; done; for n in $(seq {LINES}); do echo mark-$n-; sleep 0.15; done"
    );
    let job = json!({"steps": [{"tool": "shell", "command": command}]}).to_string();
    let id = submit(&mut Connection::open(server.address).await?, &job).await?;
    let address = format!("{start}#/jobs/{id}");
    let seen = tokio::task::block_in_place(|| -> Result<Value> {
        let mut page = browser.open("about:blank");
        page.ask("Page.addScriptToEvaluateOnNewDocument", &json!({"source": NOTE_LINES}));
        page.ask("Page.navigate", &json!({"url": address}));
        page.wait_for("the command is shown", "document.querySelector('.call') !== null");
        // Ignores the command itself, which is not output.
        page.evaluate("globalThis.seen = {}; 0");
        page.evaluate(&format!("fetch('/v1/jobs/{id}/files/go', {{method: 'PUT', body: ''}}).then(() => 0)"));
        page.wait_for("the job is over", "document.body.innerText.includes('Complete')");
        Ok(page.evaluate("globalThis.seen"))
    })?;
    let (status, body) = Connection::open(server.address)
        .await?
        .get(&format!("/v1/jobs/{id}/events?format=json&limit=1000"))
        .await?;
    ensure!(status == 200, "the events answer {status}");
    let written = times_of_lines(&serde_json::from_slice(&body)?);
    let mut samples = Samples::default();
    for (line, time) in &written {
        let shown = seen[line.as_str()].as_f64().with_context(|| format!("line {line} was never seen"))?;
        samples.add((shown - time).max(0.0));
    }
    ensure!(written.len() == LINES, "{} of {LINES} lines are in the log", written.len());
    Ok(samples)
}

/// When the event of each line was written, in milliseconds since 1970.
fn times_of_lines(page: &Value) -> HashMap<String, f64> {
    let events =
        page["events"].as_array().into_iter().flatten().filter(|event| event["kind"] == "call_output");
    events
        .flat_map(|event| {
            let time = event["time_ms"].as_f64().unwrap_or_default();
            let text = event["data"]["text"].as_str().unwrap_or_default().to_owned();
            let marks: Vec<String> = text
                .lines()
                .filter_map(|line| Some(line.strip_prefix("mark-")?.strip_suffix('-')?.to_owned()))
                .collect();
            marks.into_iter().map(move |mark| (mark, time))
        })
        .collect()
}

async fn long_timeline(stage: &Stage, server: &Server, browser: &Browser, start: &str) -> Result<Samples> {
    let steps: Vec<Value> = (0..CALLS)
        .map(|number| json!({"tool": "write_file", "path": "same.txt", "content": format!("n{number}")}))
        .collect();
    let id =
        submit(&mut Connection::open(server.address).await?, &json!({ "steps": steps }).to_string()).await?;
    let ends = [r#""state":"complete""#, "event: problem", "event: end"];
    let end =
        Connection::open(server.address).await?.follow_until(&format!("/v1/jobs/{id}/events"), &ends).await?;
    ensure!(end == 0, "the long job did not become complete");
    tokio::task::block_in_place(|| {
        let mut page = browser.open(&format!("{start}#/jobs/{id}"));
        page.wait_for("all of it was read", "Number(document.querySelector('#replay')?.max) > 5000");
        let mut samples = Samples::default();
        for _ in 0..stage.plan.crowd_runs.min(5) {
            samples.add(number(&mut page, SCROLL)?);
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(samples)
    })
}

fn number(page: &mut Page, expression: &str) -> Result<f64> {
    page.evaluate(expression).as_f64().with_context(|| format!("no number: {expression}"))
}
