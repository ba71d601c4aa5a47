//! `caisson demo`

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Args;
use model::scripted::{Order, Script, ScriptedServer};
use serde_json::{Value, json};
use tokio::sync::OnceCell;

use super::download;
use super::run::{Place, watch_to_the_end};
use super::view::View;
use crate::cli::{HostArguments, OutputArguments, ServerArguments};
use crate::client::Client;
use crate::config::Config;
use crate::config_client;
use crate::one_shot::OneShot;

/// The recorded dialogue.
const DIALOGUE: &str = include_str!("../demo/todo_app.json");
const TASK: &str = "Build me a todo app in React";

/// The recording, served by a scripted model for demos on a server; starts with the first demo and lasts until the
/// server ends.
#[derive(Default)]
pub(crate) struct Recording(OnceCell<ScriptedServer>);

impl Recording {
    /// The job of the demo, with the recording as its model.
    pub(crate) async fn job(&self) -> Result<Value> {
        let start = || async {
            // Several users may run the demo at the same time.
            let script = Script { order: Order::Turns, ..Script::parse(DIALOGUE)? };
            ScriptedServer::start(script).await.context("starting the recorded model")
        };
        let mut job = written();
        job["model"] = json!(name_of(self.0.get_or_try_init(start).await?));
        Ok(job)
    }
}

/// The job without its model.
fn written() -> Value {
    json!({"task": TASK, "name": "demo", "egress": "packages", "acceptance": ["test -f dist/index.html"]})
}

fn name_of(model: &ScriptedServer) -> String {
    format!("http://{}/v1#recorded-todo-app", model.address())
}

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
    let is_named = arguments.server.url.is_some() || config_client::named_url().is_some();
    let ended = if is_named { on_server(arguments).await } else { here(arguments).await };
    if ended.as_ref().is_ok_and(|code| *code == ExitCode::SUCCESS) {
        super::say(
            "\nNow a task of your own. Name a model, with its key in the environment:\n  \
             ANTHROPIC_API_KEY=... CAISSON_MODEL=anthropic/claude-sonnet-5 caisson serve\n\
             or start a local one (Ollama, llama.cpp), which is found by itself; `caisson models` shows what is there. Then:\n  \
             caisson run \"Write a poem about caissons into poem.txt\"",
        );
    }
    ended
}

fn announce(json: bool) -> View {
    let mut view = View::new(json);
    view.say(&format!("task: {TASK}"));
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
    watch_to_the_end(&client, Place::Server, &id, arguments.out, &mut view).await
}

/// Runs the demo in this process.
async fn here(arguments: DemoArguments) -> Result<ExitCode> {
    let script = Script::parse(DIALOGUE)?;
    let model = ScriptedServer::start(script).await.context("starting the recorded model")?;
    let host = HostArguments { config: arguments.config.clone(), ..HostArguments::default() };
    let mut config = Config::load(&host, &[], false)?;
    config.jobs.model = model::Settings {
        name: Some(name_of(&model)),
        local: false,
        is_recorded: true,
        ..model::Settings::default()
    };
    let (server, client) = OneShot::start(config).await?;
    let mut view = announce(arguments.output.json);
    let shown = async {
        let accepted = client.post("/v1/jobs", &written()).await.context("the job was not accepted")?;
        let id = accepted["job_id"].as_str().context("the server sent no job id")?.to_owned();
        watch_to_the_end(&client, Place::Here, &id, arguments.out, &mut view).await
    };
    let ended = shown.await;
    server.end().await;
    ended
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_recorded_dialogue_can_be_read_and_says_that_it_is_one() {
        let script = Script::parse(DIALOGUE).unwrap();
        assert!(script.model.contains("recorded") && script.about.contains("written down beforehand"));
        assert!(script.answers.len() > 5);
    }
}
