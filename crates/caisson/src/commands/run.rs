//! `caisson run`: submits a job, shows its progress, downloads the result.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::Args;
use serde_json::{Map, Value, json};

use super::result_destination::ResultDestination;
use super::watch::view::View;
use super::watch::{JobLocation, watch_to_end};
use super::{steps_file, upload};
use crate::arguments::{HostArguments, LimitArguments, OutputArguments, ServerArguments, parse_pair};
use crate::client::Client;
use crate::config::Config;
use crate::config::client_environment;
use crate::output::{EXIT_CANCELLED, EXIT_ERROR, print, print_json, say};
use crate::serve::one_shot::OneShot;

/// `caisson run`
#[derive(Debug, Args)]
#[command(after_help = "\
Without --url and CAISSON_URL, `run` uses the server at http://127.0.0.1:8000. If no server answers there, the job runs in
this process, in a temporary folder.
Ctrl-C asks whether to cancel the job or leave it running; a second Ctrl-C leaves at once. If the job runs in this
process, Ctrl-C cancels it and downloads the result; a second Ctrl-C ends it at once and keeps nothing.
--json prints one line per event, then {\"kind\": \"result\", \"data\": {\"job_id\", \"path\", \"bytes\"}}. If the job waits for
a model, it prints one line {\"kind\": \"waiting\", \"data\": {\"job_id\", \"status\", \"hint\", ...}}.
Without --out, the result is output.zip in a folder named after the job. With --out, its files are unpacked into the
folder; existing files that they replace are named. Choose a folder of its own: the files come from the sandbox.
The names of --file must differ. Symlinks in a folder are skipped and reported.
Exit codes: 0 job complete, 1 job failed, 2 the job could not be run, 3 job cancelled, 130 job left running.

Examples:
  caisson run --steps examples/hello.json
  caisson run --steps build.json --file src --file Makefile --out result
  caisson run --steps build.json --name nightly --detach && caisson logs -f nightly
  caisson run --steps - --memory 512m <<< '[{\"tool\": \"shell\", \"command\": \"uname -a\"}]'
  caisson run --detach \"Write a poem about caissons into poem.txt\"")]
pub(crate) struct RunArguments {
    /// The task, in plain text; needs a server with a model.
    #[arg(value_name = "TASK", conflicts_with = "steps")]
    task: Option<String>,
    /// JSON file with a list of steps or a whole job; `-` reads standard input.
    #[arg(long, value_name = "FILE")]
    steps: Option<PathBuf>,
    /// File or folder to copy into the workspace; repeatable.
    #[arg(long, value_name = "PATH")]
    file: Vec<PathBuf>,
    /// Folder to unpack the result into.
    #[arg(long, value_name = "FOLDER")]
    out: Option<PathBuf>,
    /// Print the job id and leave the job running.
    #[arg(long, conflicts_with = "here")]
    detach: bool,
    /// Run the job in this process, even if a server answers.
    #[arg(long, conflicts_with = "url")]
    here: bool,
    /// Name of the job.
    #[arg(long)]
    name: Option<String>,
    /// Label of the job; repeatable.
    #[arg(long, value_name = "KEY=VALUE", value_parser = parse_pair)]
    label: Vec<(String, String)>,
    #[command(flatten)]
    limits: LimitArguments,
    #[command(flatten)]
    server: ServerArguments,
    #[command(flatten)]
    output: OutputArguments,
    /// Configuration file for a job that runs in this process.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

/// Runs the job until it ends.
pub(crate) async fn run(arguments: RunArguments) -> Result<ExitCode> {
    let job = job_of(&arguments)?;
    let uploads = upload::collect(&arguments.file)?;
    if !arguments.detach {
        let destination = arguments.out.clone().map(ResultDestination::Unpacked);
        ResultDestination::check_or_default(destination.as_ref())?;
    }
    let client = Client::new(&arguments.server)?;
    let is_named = arguments.server.url.is_some() || client_environment::named_url().is_some();
    if !arguments.here && (is_named || client.is_answered().await) {
        return follow_job(&client, JobLocation::Server, arguments, job, uploads).await;
    }
    if arguments.detach {
        bail!("--detach needs a server: {:#}", client.not_reached());
    }
    let host = HostArguments { config: arguments.config.clone(), ..HostArguments::default() };
    let (server, client) = OneShot::start(Config::load(&host, &[], false)?).await?;
    let ended = follow_job(&client, JobLocation::ThisProcess, arguments, job, uploads).await;
    server.end().await;
    ended
}

/// The request: the job from the file, overridden by flags.
fn job_of(arguments: &RunArguments) -> Result<Map<String, Value>> {
    let mut job = match (&arguments.steps, &arguments.task) {
        (Some(path), _) => steps_file::read(path)?,
        (None, Some(task)) => Map::from_iter([("task".to_owned(), json!(task))]),
        (None, None) => bail!("nothing to run; use `caisson run \"TASK\"` or `caisson run --steps FILE`"),
    };
    if let Some(name) = &arguments.name {
        job.insert("name".into(), json!(name));
    }
    if !arguments.label.is_empty() {
        let given = arguments.label.iter().map(|(key, value)| (key.clone(), json!(value)));
        match job.entry("labels").or_insert_with(|| json!({})) {
            Value::Object(labels) => labels.extend(given),
            other => bail!("labels: expected an object, found {other}"),
        }
    }
    arguments.limits.add_to(&mut job);
    Ok(job)
}

async fn follow_job(
    client: &Client,
    location: JobLocation,
    arguments: RunArguments,
    job: Map<String, Value>,
    uploads: Vec<upload::Upload>,
) -> Result<ExitCode> {
    let Some(accepted) = upload::submit(client, job, &uploads).await.context("the job was not accepted")?
    else {
        say("interrupted during the upload; the job was cancelled before it started");
        return Ok(ExitCode::from(EXIT_CANCELLED));
    };
    let id = accepted["job_id"].as_str().context("the server sent no job id")?.to_owned();
    if arguments.detach {
        if arguments.output.json {
            print_json(&accepted)?;
        } else {
            print(&format!("{id}\n"))?;
            if let Some(hint) = accepted["hint"].as_str() {
                say(hint);
            }
        }
        return Ok(ExitCode::SUCCESS);
    }
    let mut view = View::new(arguments.output.json);
    view.say(&format!("job {id}"));
    if let Some(hint) = accepted["hint"].as_str() {
        say(hint);
    }
    // A newly accepted job that is paused waits for something that will not happen while we watch.
    if accepted["detail"].as_str().is_some_and(|detail| detail.starts_with("paused")) {
        view.show_waiting(&accepted);
        if location == JobLocation::ThisProcess {
            say(
                "the job ran in this process, so nothing is kept; to keep jobs, start a server with `caisson serve`",
            );
        }
        return Ok(ExitCode::from(EXIT_ERROR));
    }
    let destination = arguments.out.map(ResultDestination::Unpacked);
    watch_to_end(client, location, &id, destination, &mut view).await
}
