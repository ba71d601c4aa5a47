//! `caisson run`: submits a job, shows its progress, downloads the result.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::Args;
use serde_json::{Map, Value, json};

use super::interrupt::{self, Answer, Asked};
use super::view::View;
use super::{download, upload};
use crate::cli::{HostArguments, LimitArguments, OutputArguments, ServerArguments, parse_pair};
use crate::client::Client;
use crate::config::Config;
use crate::one_shot::OneShot;
use crate::{config_client, steps_file};

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

/// Where the job runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// On a server, where it goes on without this process.
    Server,
    /// In this process, and ends with it.
    Here,
}

/// Runs the job until it ends.
pub(crate) async fn run(arguments: RunArguments) -> Result<ExitCode> {
    let job = job_of(&arguments)?;
    let uploads = upload::collect(&arguments.file)?;
    if !arguments.detach {
        download::check(arguments.out.as_deref())?;
    }
    let client = Client::new(&arguments.server)?;
    let is_named = arguments.server.url.is_some() || config_client::named_url().is_some();
    if !arguments.here && (is_named || client.is_answered().await) {
        return follow_job(&client, Place::Server, arguments, job, uploads).await;
    }
    if arguments.detach {
        bail!("--detach needs a server to leave the job with: {:#}", client.not_reached());
    }
    let host = HostArguments { config: arguments.config.clone(), ..HostArguments::default() };
    let (server, client) = OneShot::start(Config::load(&host, &[], false)?).await?;
    let ended = follow_job(&client, Place::Here, arguments, job, uploads).await;
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
    place: Place,
    arguments: RunArguments,
    job: Map<String, Value>,
    uploads: Vec<upload::Upload>,
) -> Result<ExitCode> {
    let Some(accepted) = upload::submit(client, job, &uploads).await.context("the job was not accepted")?
    else {
        super::say("stopped while files were sent; the job is cancelled and was never started");
        return Ok(ExitCode::from(super::EXIT_CANCELLED));
    };
    let id = accepted["job_id"].as_str().context("the server sent no job id")?.to_owned();
    if arguments.detach {
        if arguments.output.json {
            super::print_json(&accepted)?;
        } else {
            super::print(&format!("{id}\n"))?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    let mut view = View::new(arguments.output.json);
    view.say(&format!("job {id}"));
    if let Some(hint) = accepted["hint"].as_str() {
        super::say(hint);
    }
    // A newly accepted job that is not pending waits for something that will not happen while we watch.
    if accepted["status"] != "pending" {
        view.tell_waiting(&accepted);
        if place == Place::Here {
            super::say("it ran in this process, so nothing is kept; a server would keep it: `caisson serve`");
        }
        return Ok(ExitCode::from(super::EXIT_TROUBLE));
    }
    watch_to_the_end(client, place, &id, arguments.out, &mut view).await
}

/// Watches a job and downloads its result, unless the user stops watching.
pub(super) async fn watch_to_the_end(
    client: &Client,
    place: Place,
    id: &str,
    out: Option<PathBuf>,
    view: &mut View,
) -> Result<ExitCode> {
    let left = match watch(client, place, id, view).await? {
        Watched::Left => format!("job {id} goes on: `caisson logs -f {id}`, `caisson cancel {id}`"),
        Watched::Over => {
            tokio::select! {
                ended = finish(client, place, id, out, view) => return ended,
                () = interrupt::told_to_stop_at(place) => {}
            }
            format!("the result of job {id} was not fetched: `caisson download {id}`")
        }
    };
    Ok(match place {
        Place::Server => {
            super::say(&left);
            ExitCode::from(super::EXIT_LEFT)
        }
        Place::Here => {
            super::say(&format!("job {id} is ended; nothing is kept"));
            ExitCode::from(super::EXIT_CANCELLED)
        }
    })
}

/// Why watching a job ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Watched {
    Over,
    Left,
}

/// Watches the job to its end, and handles Ctrl-C.
async fn watch(client: &Client, place: Place, id: &str, view: &mut View) -> Result<Watched> {
    let path = format!("/v1/jobs/{id}/events");
    let mut asked = match place {
        Place::Server => Asked::on_a_server(view.question()),
        Place::Here => Asked::in_this_process(view.question()),
    };
    // The future is kept across signals, because watching again from the start would show everything again.
    let mut watching = std::pin::pin!(view.watch(client, &path));
    loop {
        tokio::select! {
            ended = watching.as_mut() => return ended.map(|()| Watched::Over),
            answer = interrupt::next(&mut asked) => match answer {
                Answer::GoOn => {}
                Answer::Leave => return Ok(Watched::Left),
                Answer::Cancel => {
                    super::say("cancelling; the workspace is collected as far as it got");
                    let (path, nothing) = (format!("/v1/jobs/{id}/cancel"), json!({}));
                    let mut cancelling = std::pin::pin!(client.post(&path, &nothing));
                    loop {
                        tokio::select! {
                            // The job may have ended on its own in the meantime.
                            _ = cancelling.as_mut() => break,
                            again = interrupt::next(&mut asked) => if again == Answer::Leave {
                                return Ok(Watched::Left);
                            },
                        }
                    }
                }
            },
        }
    }
}

async fn finish(
    client: &Client,
    place: Place,
    id: &str,
    out: Option<PathBuf>,
    view: &mut View,
) -> Result<ExitCode> {
    let status = client.get(&format!("/status/{id}")).await?;
    let word = status["status"].as_str();
    let fetched = match status["result"].is_string() {
        true => download::fetch(client, id, out).await.map(Some),
        false => Ok(None),
    };
    if let Ok(Some((path, bytes))) = &fetched {
        view.tell_result(id, path, *bytes);
    }
    match word {
        Some("complete" | "cancelled") => view.say(word.unwrap_or_default()),
        _ => view.say(&format!("failed: {}", status["reason"].as_str().unwrap_or("no reason given"))),
    }
    fetched.with_context(|| match place {
        Place::Server => format!("the result was not fetched; try again: `caisson download {id}`"),
        Place::Here => "the result was not fetched, and nothing is kept".to_owned(),
    })?;
    Ok(super::exit_code_of(word))
}
