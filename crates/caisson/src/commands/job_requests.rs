//! Sends the same request to several jobs, and prints one line per job or one JSON document.

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use serde_json::{Value, json};

use crate::arguments::{OutputArguments, ServerArguments};
use crate::client::Client;
use crate::client::ids;
use crate::output::{print, print_json};

/// Which jobs, and where they are.
#[derive(Debug, Args)]
pub(crate) struct JobsArguments {
    /// Ids or names of the jobs.
    #[arg(required = true, value_name = "ID")]
    pub(crate) ids: Vec<String>,
    #[command(flatten)]
    pub(crate) server: ServerArguments,
    #[command(flatten)]
    pub(crate) output: OutputArguments,
}

/// The request to send.
pub(crate) struct JobRequest {
    /// The last segment of the route.
    pub(crate) route: &'static str,
    pub(crate) body: Value,
    /// What the line about a successful job says.
    pub(crate) done: &'static str,
}

/// Sends the request to all jobs in order. If one refuses, still reports the jobs before it.
pub(crate) async fn send_to_all(jobs: &JobsArguments, request: &JobRequest) -> Result<ExitCode> {
    let client = Client::new(&jobs.server)?;
    let mut answers = Vec::new();
    let ended = send_to_each(&client, jobs, request, &mut answers).await;
    if let Some(document) = document(answers, jobs.ids.len()).filter(|_| jobs.output.json) {
        print_json(&document)?;
    }
    ended.map(|()| ExitCode::SUCCESS)
}

async fn send_to_each(
    client: &Client,
    jobs: &JobsArguments,
    request: &JobRequest,
    answers: &mut Vec<Value>,
) -> Result<()> {
    for typed in &jobs.ids {
        let id = ids::job(client, typed).await?;
        answers.push(client.post(&format!("/v1/jobs/{id}/{}", request.route), &request.body).await?);
        if !jobs.output.json {
            print(&format!("{id} {}\n", request.done))?;
        }
    }
    Ok(())
}

/// The JSON document: the job itself if one was named, a list if several were.
fn document(mut answers: Vec<Value>, job_count: usize) -> Option<Value> {
    if job_count == 1 { answers.pop() } else { Some(json!({ "jobs": answers })) }
}
