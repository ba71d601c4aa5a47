//! Sends the same request to several jobs, and prints one line per job or one JSON document.

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use serde_json::{Value, json};

use crate::cli::{OutputArguments, ServerArguments};
use crate::client::Client;
use crate::ids;

/// Which jobs, and where they are.
#[derive(Debug, Args)]
pub(crate) struct JobsArguments {
    /// The jobs.
    #[arg(required = true, value_name = "ID")]
    pub(crate) ids: Vec<String>,
    #[command(flatten)]
    pub(crate) server: ServerArguments,
    #[command(flatten)]
    pub(crate) output: OutputArguments,
}

/// The request to send.
pub(crate) struct Asked {
    /// The last segment of the route.
    pub(crate) route: &'static str,
    pub(crate) body: Value,
    /// What the line about a successful job says.
    pub(crate) said: &'static str,
}

/// Sends the request to all jobs in order. If one refuses, still reports the jobs before it.
pub(crate) async fn ask(jobs: &JobsArguments, asked: &Asked) -> Result<ExitCode> {
    let client = Client::new(&jobs.server)?;
    let mut answers = Vec::new();
    let ended = ask_each(&client, jobs, asked, &mut answers).await;
    if let Some(document) = document(answers, jobs.ids.len()).filter(|_| jobs.output.json) {
        super::print_json(&document)?;
    }
    ended.map(|()| ExitCode::SUCCESS)
}

async fn ask_each(
    client: &Client,
    jobs: &JobsArguments,
    asked: &Asked,
    answers: &mut Vec<Value>,
) -> Result<()> {
    for typed in &jobs.ids {
        let id = ids::job(client, typed).await?;
        answers.push(client.post(&format!("/v1/jobs/{id}/{}", asked.route), &asked.body).await?);
        if !jobs.output.json {
            super::print(&format!("{id} {}\n", asked.said))?;
        }
    }
    Ok(())
}

/// The JSON document: the job itself if one was named, a list if several were.
fn document(mut answers: Vec<Value>, asked: usize) -> Option<Value> {
    if asked == 1 { answers.pop() } else { Some(json!({ "jobs": answers })) }
}
