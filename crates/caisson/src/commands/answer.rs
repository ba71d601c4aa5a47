//! `caisson answer`

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, anyhow, bail};
use clap::Args;
use serde_json::{Map, Value, json};

use crate::arguments::{OutputArguments, ServerArguments};
use crate::client::Client;
use crate::client::ids;
use crate::output::{print, print_json};

/// `caisson answer`
#[derive(Debug, Args)]
#[command(after_help = "\
Answer a question with text. Answer a command, a plan or a connection with --accept or --refuse and an optional reason.
--accept allows a connection once; --accept --rest allows it for the rest of the job. --plan takes an edited plan as JSON:
{\"items\": [{\"text\": \"...\"}]}.

Examples:
  caisson answer 1c2d4e6f request-1 \"Blue, please\"
  caisson answer 1c2d4e6f request-2 --accept
  caisson answer 1c2d4e6f request-2 --refuse \"Do not push\"
  caisson answer 1c2d4e6f request-1 --plan plan.json
  caisson answer 1c2d4e6f egress-1 --accept --rest")]
pub(crate) struct AnswerArguments {
    /// Id or name of the job.
    #[arg(value_name = "ID")]
    id: String,
    /// Id of the request, from `caisson requests`.
    #[arg(value_name = "REQUEST")]
    request: String,
    /// Answer to a question, or the reason for --accept or --refuse.
    #[arg(value_name = "TEXT")]
    text: Option<String>,
    /// Accept a command, a plan or a connection.
    #[arg(long, conflicts_with = "refuse")]
    accept: bool,
    /// Refuse a command, a plan or a connection.
    #[arg(long)]
    refuse: bool,
    /// Allow the connection for the rest of the job, not just once.
    #[arg(long, requires = "accept")]
    rest: bool,
    /// JSON file with the edited plan.
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
        let plan: Value = serde_json::from_str(&text).map_err(|error| {
            anyhow!("{} is not valid JSON: {}", path.display(), job::json_syntax_error(&error))
        })?;
        body.insert("plan".into(), plan);
    }
    if body.is_empty() {
        bail!("no answer given; pass text, --accept, --refuse or --plan");
    }
    let client = Client::new(&arguments.server)?;
    let id = ids::job(&client, &arguments.id).await?;
    let path = format!("/v1/jobs/{id}/requests/{}", arguments.request);
    let job = client.post(&path, &Value::Object(body)).await?;
    if arguments.output.json {
        print_json(&job)?;
    } else {
        print(&format!("{} answered\n", arguments.request))?;
    }
    Ok(ExitCode::SUCCESS)
}
