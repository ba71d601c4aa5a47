//! `caisson run`: submits a job, shows its progress, downloads the result.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::Args;
use serde_json::{Map, Value, json};

use super::watch::view::View;
use super::watch::{JobLocation, watch_to_end};
use super::{download, steps_file, upload};
use crate::arguments::{HostArguments, LimitArguments, OutputArguments, ServerArguments, parse_pair};
use crate::client::Client;
use crate::config::Config;
use crate::config::client_environment;
use crate::output::{EXIT_CANCELLED, EXIT_ERROR, print, print_json, say};
use crate::serve::one_shot::OneShot;

/// `caisson run`
#[derive(Debug, Args)]
#[command(after_help = "\
The server is the one that --url or CAISSON_URL names, or http://127.0.0.1:8000. When none is named and none answers
there, the job runs in this process, in a folder that is removed afterwards.
Ctrl-C asks whether to cancel the job or to leave it running; a second one leaves at once. A job in this process is
cancelled, and its result fetched; a second Ctrl-C ends it at once, and nothing is kept.
With --json a line for each event, and at the end {\"kind\": \"result\", \"data\": {\"job_id\", \"path\", \"bytes\"}}; where the
job waits for a model, one line {\"kind\": \"waiting\", \"data\": {\"job_id\", \"status\", \"hint\", ...}}.
Two of --file must not have the same name. Links below a folder are left out, and told.
Exit code: 0 the job is complete, 1 it failed, 2 it could not be run, 3 it was cancelled, 130 it was left running.

Examples:
  caisson run --steps examples/hello.json
  caisson run --steps build.json --file src --file Makefile --out result
  caisson run --steps - --memory 512m <<< '[{\"tool\": \"shell\", \"command\": \"uname -a\"}]'
  caisson run --detach \"Write a poem about caissons into poem.txt\"")]
pub(crate) struct RunArguments {
    /// What to do, in plain words; needs a server with a model.
    #[arg(value_name = "TASK", conflicts_with = "steps")]
    task: Option<String>,
    /// Steps as JSON: a list of steps, or a whole job; `-` for standard input.
    #[arg(long, value_name = "FILE")]
    steps: Option<PathBuf>,
    /// A file or folder that the job finds in its workspace, under its own name; may be given more than once.
    #[arg(long, value_name = "PATH")]
    file: Vec<PathBuf>,
    /// Folder for the result; output.zip is put there. Without it, one named after the job.
    #[arg(long, value_name = "FOLDER")]
    out: Option<PathBuf>,
    /// Prints the job's id and leaves it running.
    #[arg(long, conflicts_with = "here")]
    detach: bool,
    /// Runs the job in this process, also where a server answers.
    #[arg(long, conflicts_with = "url")]
    here: bool,
    /// A name for people.
    #[arg(long)]
    name: Option<String>,
    /// A label for finding it again; may be given more than once.
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
        download::check(arguments.out.as_deref())?;
    }
    let client = Client::new(&arguments.server)?;
    let is_named = arguments.server.url.is_some() || client_environment::named_url().is_some();
    if !arguments.here && (is_named || client.is_answered().await) {
        return follow_job(&client, JobLocation::Server, arguments, job, uploads).await;
    }
    if arguments.detach {
        bail!("--detach needs a server to leave the job with: {:#}", client.not_reached());
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
        (None, None) => bail!("say what to run: `caisson run --steps FILE`, or `caisson run \"TASK\"`"),
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
        say("stopped while files were sent; the job is cancelled and was never started");
        return Ok(ExitCode::from(EXIT_CANCELLED));
    };
    let id = accepted["job_id"].as_str().context("the server sent no job id")?.to_owned();
    if arguments.detach {
        if arguments.output.json {
            print_json(&accepted)?;
        } else {
            print(&format!("{id}\n"))?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    let mut view = View::new(arguments.output.json);
    view.say(&format!("job {id}"));
    if let Some(hint) = accepted["hint"].as_str() {
        say(hint);
    }
    // A newly accepted job that is not pending waits for something that will not happen while we watch.
    if accepted["status"] != "pending" {
        view.show_waiting(&accepted);
        if location == JobLocation::ThisProcess {
            say("it ran in this process, so nothing is kept; a server would keep it: `caisson serve`");
        }
        return Ok(ExitCode::from(EXIT_ERROR));
    }
    watch_to_end(client, location, &id, arguments.out, &mut view).await
}
