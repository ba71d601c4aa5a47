//! `caisson demo`

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Args;
use serde_json::json;

use super::download;
use super::watch::view::View;
use super::watch::{JobLocation, watch_to_end};
use crate::arguments::{HostArguments, OutputArguments, ServerArguments};
use crate::client::Client;
use crate::config::Config;
use crate::config::client_environment;
use crate::demo;
use crate::output::say;
use crate::serve::one_shot::OneShot;

/// `caisson demo`
#[derive(Debug, Args)]
#[command(after_help = "\
No model is needed: what the model says was written down beforehand, and is marked as recorded. Everything else
happens: a sandbox, npm through the network rules for packages, the build, a server, the zip. It runs in this process,
or on the server that --url or CAISSON_URL names, where it is a job like any other.

Examples:
  caisson demo
  caisson demo --url http://127.0.0.1:8000
  caisson demo --out todo-app")]
pub(crate) struct DemoArguments {
    /// Folder for the result; output.zip is put there. Without it, one named after the job.
    #[arg(long, value_name = "FOLDER")]
    out: Option<PathBuf>,
    /// Configuration file for a demonstration in this process.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    server: ServerArguments,
    #[command(flatten)]
    output: OutputArguments,
}

/// Plays the dialogue against a real sandbox.
pub(crate) async fn run(arguments: DemoArguments) -> Result<ExitCode> {
    download::check(arguments.out.as_deref())?;
    let is_named = arguments.server.url.is_some() || client_environment::named_url().is_some();
    let ended = if is_named { on_server(arguments).await } else { here(arguments).await };
    if ended.as_ref().is_ok_and(|code| *code == ExitCode::SUCCESS) {
        say("\nNow a task of your own. Name a model, with its key in the environment:\n  \
             ANTHROPIC_API_KEY=... CAISSON_MODEL=anthropic/claude-sonnet-5 caisson serve\n\
             or start a local one (Ollama, llama.cpp), which is found by itself; `caisson models` shows what is there. Then:\n  \
             caisson run \"Write a poem about caissons into poem.txt\"");
    }
    ended
}

fn announce(json: bool) -> View {
    let mut view = View::new(json);
    view.say(&format!("task: {}", demo::TASK));
    view.say("The answers of the model are recorded; everything else is real.");
    view
}

/// Runs the demo on a server, which plays the recording itself.
async fn on_server(arguments: DemoArguments) -> Result<ExitCode> {
    let client = Client::new(&arguments.server)?;
    let accepted = client.post("/v1/demo", &json!({})).await.context("the job was not accepted")?;
    let id = accepted["job_id"].as_str().context("the server sent no job id")?.to_owned();
    let mut view = announce(arguments.output.json);
    view.say(&format!("job {id}, to be watched at {}/#/jobs/{id}", client.url()));
    watch_to_end(&client, JobLocation::Server, &id, arguments.out, &mut view).await
}

/// Runs the demo in this process.
async fn here(arguments: DemoArguments) -> Result<ExitCode> {
    let model = demo::start_model().await?;
    let host = HostArguments { config: arguments.config.clone(), ..HostArguments::default() };
    let mut config = Config::load(&host, &[], false)?;
    config.jobs.model = model::Settings {
        name: Some(demo::model_name(&model)),
        local: false,
        is_recorded: true,
        ..model::Settings::default()
    };
    let (server, client) = OneShot::start(config).await?;
    let mut view = announce(arguments.output.json);
    let shown = async {
        let accepted =
            client.post("/v1/jobs", &demo::job_without_model()).await.context("the job was not accepted")?;
        let id = accepted["job_id"].as_str().context("the server sent no job id")?.to_owned();
        watch_to_end(&client, JobLocation::ThisProcess, &id, arguments.out, &mut view).await
    };
    let ended = shown.await;
    server.end().await;
    ended
}
