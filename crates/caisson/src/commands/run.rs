//! `caisson run`: sends a job, shows what happens, fetches the result.

use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use futures::StreamExt;
use reqwest::Client;
use serde_json::Value;

use super::progress::{Colours, Progress};
use crate::cli::RunArguments;
use crate::{config, steps_file};

const EXIT_FAILED: u8 = 1;
const EXIT_CANCELLED: u8 = 3;
/// How often a lost connection is tried again, a second apart.
const RECONNECTS: u32 = 60;

/// Sends the job and stays until it is over.
pub(crate) fn run(arguments: RunArguments) -> Result<ExitCode> {
    let job = steps_file::read(&arguments.steps)?;
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().context("starting the runtime")?;
    runtime.block_on(follow_job(arguments, job))
}

async fn follow_job(arguments: RunArguments, job: Value) -> Result<ExitCode> {
    let url = config::server_url(arguments.url);
    // The server is ours and near: a proxy that the environment names is not for it.
    let client = Client::builder().no_proxy().build().context("preparing the client")?;
    let accepted = send(&client, &url, &job).await?;
    let id = accepted["job_id"].as_str().context("the server sent no job id")?.to_owned();
    let mut view = View::new(arguments.json);
    view.say(&format!("job {id}"));
    if let Some(hint) = accepted["hint"].as_str() {
        view.say(hint);
    }
    if accepted["detail"].as_str().is_some_and(|detail| detail.starts_with("paused")) {
        return Ok(ExitCode::SUCCESS);
    }
    tokio::select! {
        watched = watch(&client, &url, &id, &mut view) => watched?,
        _ = tokio::signal::ctrl_c() => {
            view.say(&format!("the job goes on; see {url}/status/{id}"));
            return Ok(ExitCode::from(EXIT_FAILED));
        }
    }
    finish(&client, &url, &id, arguments.out, &view).await
}

async fn send(client: &Client, url: &str, job: &Value) -> Result<Value> {
    let response = client.post(format!("{url}/v1/jobs")).json(job).send().await;
    let response = response.with_context(|| {
        format!(
            "reaching the server at {url}; is it running? start it with `caisson serve`, or set CAISSON_URL"
        )
    })?;
    let accepted = response.status().is_success();
    let answer: Value = response.json().await.context("reading the server's answer")?;
    if !accepted {
        bail!("the server refused the job: {}", answer["detail"].as_str().unwrap_or("no reason given"));
    }
    Ok(answer)
}

/// Shows events until the job is over; after a lost connection it goes on where it was.
async fn watch(client: &Client, url: &str, id: &str, view: &mut View) -> Result<()> {
    let mut last_id = 0;
    let mut failures = 0;
    loop {
        match watch_once(client, url, id, view, &mut last_id).await {
            Ok(true) => return Ok(()),
            Ok(false) => failures = 0,
            Err(error) if failures >= RECONNECTS => return Err(error),
            Err(_) => failures += 1,
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

/// Returns whether the end was reached.
async fn watch_once(
    client: &Client,
    url: &str,
    id: &str,
    view: &mut View,
    last_id: &mut u64,
) -> Result<bool> {
    let response = client
        .get(format!("{url}/v1/jobs/{id}/events"))
        .header("Accept", "text/event-stream")
        .header("Last-Event-ID", last_id.to_string())
        .send()
        .await?
        .error_for_status()?;
    let mut body = response.bytes_stream();
    let mut buffer = Vec::new();
    while let Some(bytes) = body.next().await {
        buffer.extend_from_slice(&bytes?);
        while let Some(end) = buffer.windows(2).position(|pair| pair == b"\n\n") {
            let message: Vec<u8> = buffer.drain(..end + 2).collect();
            if take(&String::from_utf8_lossy(&message), view, last_id) {
                return Ok(true);
            }
        }
    }
    Ok(false)
}

/// Takes one message of the stream; `true` at its end.
fn take(message: &str, view: &mut View, last_id: &mut u64) -> bool {
    let mut data = String::new();
    let mut kind = "";
    for line in message.lines() {
        if let Some(value) = line.strip_prefix("id:") {
            *last_id = value.trim().parse().unwrap_or(*last_id);
        } else if let Some(value) = line.strip_prefix("event:") {
            kind = value.trim();
        } else if let Some(value) = line.strip_prefix("data:") {
            data += value.strip_prefix(' ').unwrap_or(value);
        }
    }
    if kind == "end" {
        return true;
    }
    if let Ok(event) = serde_json::from_str::<Value>(&data) {
        view.show(&event);
    }
    false
}

async fn finish(client: &Client, url: &str, id: &str, out: Option<PathBuf>, view: &View) -> Result<ExitCode> {
    let status: Value = client.get(format!("{url}/status/{id}")).send().await?.json().await?;
    if status["result"].is_string() {
        let folder = out.unwrap_or_else(|| PathBuf::from(format!("caisson-{id}")));
        let path = download(client, url, id, &folder).await?;
        view.say(&format!("result: {}", path.display()));
    }
    match status["status"].as_str() {
        Some("complete") => {
            view.say("complete");
            Ok(ExitCode::SUCCESS)
        }
        Some("cancelled") => {
            view.say("cancelled");
            Ok(ExitCode::from(EXIT_CANCELLED))
        }
        _ => {
            view.say(&format!("failed: {}", status["reason"].as_str().unwrap_or("no reason given")));
            Ok(ExitCode::from(EXIT_FAILED))
        }
    }
}

async fn download(client: &Client, url: &str, id: &str, folder: &Path) -> Result<PathBuf> {
    std::fs::create_dir_all(folder).with_context(|| format!("making the folder {}", folder.display()))?;
    let path = folder.join("output.zip");
    let response = client.get(format!("{url}/jobs/{id}/output.zip")).send().await?.error_for_status()?;
    let mut file = std::fs::File::create(&path).with_context(|| format!("writing {}", path.display()))?;
    let mut body = response.bytes_stream();
    while let Some(bytes) = body.next().await {
        file.write_all(&bytes?).with_context(|| format!("writing {}", path.display()))?;
    }
    Ok(path)
}

/// What the person or program in front sees.
enum View {
    People(Progress),
    Programs,
}

impl View {
    fn new(json: bool) -> Self {
        if json {
            return Self::Programs;
        }
        let colours = if std::io::stdout().is_terminal() { Colours::On } else { Colours::Off };
        Self::People(Progress::new(colours))
    }

    fn say(&self, line: &str) {
        if matches!(self, Self::People(_)) {
            let _ = super::print(&format!("{line}\n"));
        }
    }

    fn show(&mut self, event: &Value) {
        // A reader that has gone does not stop the job.
        let _ = super::print(&match self {
            Self::People(progress) => progress.show(event),
            Self::Programs => format!("{event}\n"),
        });
    }
}
