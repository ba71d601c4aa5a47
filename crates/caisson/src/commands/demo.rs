//! `caisson demo`

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Args;
use serde_json::json;

use super::result_destination::ResultDestination;
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
The demo needs no model: the model output is recorded and marked as such. Everything else is real: the sandbox, npm
through the egress policy `packages`, the build, the server and the zip. The demo runs in this process, or as an ordinary
job on the server of --url or CAISSON_URL.

Examples:
  caisson demo
  caisson demo --url http://127.0.0.1:8000
  caisson demo --out todo-app")]
pub(crate) struct DemoArguments {
    /// Folder for output.zip [default: a folder named after the job].
    #[arg(long, value_name = "FOLDER")]
    out: Option<PathBuf>,
    /// Configuration file for a demo in this process.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    server: ServerArguments,
    #[command(flatten)]
    output: OutputArguments,
}

/// Plays the dialogue against a real sandbox.
pub(crate) async fn run(arguments: DemoArguments) -> Result<ExitCode> {
    ResultDestination::check_or_default(destination_of(&arguments).as_ref())?;
    let is_named = arguments.server.url.is_some() || client_environment::named_url().is_some();
    let ended = if is_named { on_server(arguments).await } else { here(arguments).await };
    if ended.as_ref().is_ok_and(|code| *code == ExitCode::SUCCESS) {
        let model = if is_named {
            "Choose a model for the server:\n  caisson models set --provider anthropic --model claude-sonnet-5\n"
        } else {
            "Start a server with a model and its key:\n  \
             ANTHROPIC_API_KEY=... CAISSON_MODEL=anthropic/claude-sonnet-5 caisson serve\n"
        };
        say(&format!(
            "\nNext, run your own task. {model}\
             or start a local model (Ollama, llama.cpp), which the server detects; `caisson models` lists what it found. Then:\n  \
             caisson run \"Write a poem about caissons into poem.txt\""
        ));
    }
    ended
}

/// Where the zip goes.
fn destination_of(arguments: &DemoArguments) -> Option<ResultDestination> {
    arguments.out.clone().map(ResultDestination::ZipIn)
}

fn announce(json: bool) -> View {
    let mut view = View::new(json);
    view.say(&format!("task: {}", demo::TASK));
    view.say("The model output is recorded; everything else is real.");
    view
}

/// Runs the demo on a server, which plays the recording itself.
async fn on_server(arguments: DemoArguments) -> Result<ExitCode> {
    let client = Client::new(&arguments.server)?;
    let accepted = client.post("/v1/demo", &json!({})).await.context("the job was not accepted")?;
    let id = accepted["job_id"].as_str().context("the server sent no job id")?.to_owned();
    let mut view = announce(arguments.output.json);
    view.say(&format!("job {id}: watch it at {}/#/jobs/{id}", client.url()));
    watch_to_end(&client, JobLocation::Server, &id, destination_of(&arguments), &mut view).await
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
        watch_to_end(&client, JobLocation::ThisProcess, &id, destination_of(&arguments), &mut view).await
    };
    let ended = shown.await;
    server.end().await;
    ended
}
