//! `caisson answer`

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::Args;
use serde_json::{Map, Value, json};

use crate::arguments::{OutputArguments, ServerArguments};
use crate::client::Client;
use crate::client::ids;
use crate::output::{print, print_json};

/// `caisson answer`
#[derive(Debug, Args)]
#[command(after_help = "\
A question takes words; a command, a plan or a connection --accept or --refuse, with words where they help. A connection
that is accepted is allowed once, or with --rest for the rest of the job. An edited plan is given as JSON:
{\"items\": [{\"text\": \"...\"}]}.

Examples:
  caisson answer 1c2d4e6f request-1 \"Blue, please\"
  caisson answer 1c2d4e6f request-2 --accept
  caisson answer 1c2d4e6f request-2 --refuse \"Do not push\"
  caisson answer 1c2d4e6f request-1 --plan plan.json
  caisson answer 1c2d4e6f egress-1 --accept --rest")]
pub(crate) struct AnswerArguments {
    /// The job.
    #[arg(value_name = "ID")]
    id: String,
    /// The request, as `caisson requests` shows it.
    #[arg(value_name = "REQUEST")]
    request: String,
    /// The answer to a question, or why something is accepted or refused.
    #[arg(value_name = "TEXT")]
    text: Option<String>,
    /// Accepts a command, a plan or a connection.
    #[arg(long, conflicts_with = "refuse")]
    accept: bool,
    /// Refuses a command, a plan or a connection.
    #[arg(long)]
    refuse: bool,
    /// Allows a connection for the rest of the job, and not once.
    #[arg(long, requires = "accept")]
    rest: bool,
    /// The plan as you want it, as JSON.
    #[arg(long, value_name = "FILE", conflicts_with = "refuse")]
    plan: Option<PathBuf>,
    #[command(flatten)]
    server: ServerArguments,
    #[command(flatten)]
    output: OutputArguments,
}

/// Answers an input request.
pub(crate) async fn run(arguments: AnswerArguments) -> Result<ExitCode> {
    let mut body = Map::new();
    body.extend(arguments.text.as_ref().map(|text| ("text".to_owned(), json!(text))));
    if arguments.accept || arguments.refuse {
        body.insert("accept".into(), json!(arguments.accept));
    }
    if arguments.rest {
        body.insert("scope".into(), json!("rest"));
    }
    if let Some(path) = &arguments.plan {
        let text = std::fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
        let plan: Value =
            serde_json::from_str(&text).with_context(|| format!("{} is not JSON", path.display()))?;
        body.insert("plan".into(), plan);
    }
    if body.is_empty() {
        bail!("say something: words, --accept, --refuse or --plan");
    }
    let client = Client::new(&arguments.server)?;
    let id = ids::job(&client, &arguments.id).await?;
    let path = format!("/v1/jobs/{id}/requests/{}", arguments.request);
    let job = client.post(&path, &Value::Object(body)).await?;
    if arguments.output.json {
        print_json(&job)?;
    } else {
        print(&format!("{} is answered\n", arguments.request))?;
    }
    Ok(ExitCode::SUCCESS)
}
