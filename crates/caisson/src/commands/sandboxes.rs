//! `caisson sandboxes`

use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, Subcommand};
use serde_json::{Map, Value, json};

use crate::cli::{LimitArguments, OutputArguments, ServerArguments, parse_pair};
use crate::client::Client;
use crate::ids;
use crate::table::Table;

/// `caisson sandboxes`
#[derive(Debug, Args)]
#[command(after_help = "\
A bare sandbox ends when nobody has used it for its ttl.

Examples:
  caisson sandboxes
  caisson sandboxes create --memory 1g --ttl 600
  caisson sandboxes extend 1c2d4e6f --ttl 3600
  caisson sandboxes rm 1c2d4e6f")]
pub(crate) struct SandboxesArguments {
    #[command(subcommand)]
    action: Option<Action>,
    #[command(flatten)]
    server: ServerArguments,
    #[command(flatten)]
    output: OutputArguments,
}

/// What to do with them.
#[derive(Debug, Subcommand)]
enum Action {
    /// Lists those that live.
    List {
        /// Also those that have ended.
        #[arg(long)]
        all: bool,
    },
    /// Makes one and prints its id.
    Create(CreateArguments),
    /// Gives one a new ttl, from now.
    Extend {
        /// The sandbox.
        id: String,
        /// Seconds without use until it ends.
        #[arg(long, value_name = "SECONDS")]
        ttl: u64,
    },
    /// Ends some. Nothing of them is kept.
    Rm {
        /// The sandboxes.
        #[arg(required = true, value_name = "ID")]
        ids: Vec<String>,
    },
}

/// `caisson sandboxes create`
#[derive(Debug, Args)]
struct CreateArguments {
    #[command(flatten)]
    limits: LimitArguments,
    /// Seconds without use until it ends; without it the server's own, an hour.
    #[arg(long, value_name = "SECONDS")]
    ttl: Option<u64>,
    /// A name for people.
    #[arg(long)]
    name: Option<String>,
    /// A label for finding it again; may be given more than once.
    #[arg(long, value_name = "KEY=VALUE", value_parser = parse_pair)]
    label: Vec<(String, String)>,
}

/// Does it.
pub(crate) async fn run(arguments: SandboxesArguments) -> Result<ExitCode> {
    let client = Client::new(arguments.server.url.as_deref())?;
    let json = arguments.output.json;
    match arguments.action.unwrap_or(Action::List { all: false }) {
        Action::List { all } => list(&client, all, json).await?,
        Action::Create(create) => {
            let sandbox = client.post("/v1/sandboxes", &request(&create)).await?;
            let id = super::text(&sandbox["sandbox_id"]);
            show(&sandbox, &id, json)?;
        }
        Action::Extend { id, ttl } => {
            let id = ids::sandbox(&client, &id).await?;
            let path = format!("/v1/sandboxes/{id}/extend");
            let sandbox = client.post(&path, &json!({ "ttl_s": ttl })).await?;
            show(
                &sandbox,
                &format!("{id} ends at {} unless it is used", super::time_text(&sandbox["expires_at"])),
                json,
            )?;
        }
        Action::Rm { ids: typed } => {
            let mut removed = Vec::new();
            for typed in &typed {
                let id = ids::sandbox(&client, typed).await?;
                client.delete(&format!("/v1/sandboxes/{id}")).await?;
                removed.push(id);
            }
            show(&json!({ "removed": removed }), &format!("{} gone", removed.join(", ")), json)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn show(document: &Value, line: &str, json: bool) -> Result<()> {
    if json { super::print_json(document) } else { super::print(&format!("{line}\n")) }
}

fn request(create: &CreateArguments) -> Value {
    let mut request = Map::new();
    create.limits.add_to(&mut request);
    request.extend(create.ttl.map(|seconds| ("ttl_s".to_owned(), json!(seconds))));
    request.extend(create.name.as_ref().map(|name| ("name".to_owned(), json!(name))));
    if !create.label.is_empty() {
        let labels: Map<String, Value> =
            create.label.iter().map(|(key, value)| (key.clone(), json!(value))).collect();
        request.insert("labels".into(), Value::Object(labels));
    }
    Value::Object(request)
}

async fn list(client: &Client, all: bool, json: bool) -> Result<()> {
    let page = client.get(if all { "/v1/sandboxes?all=true" } else { "/v1/sandboxes" }).await?;
    if json {
        return super::print_json(&page);
    }
    let sandboxes = page["sandboxes"].as_array().map(Vec::as_slice).unwrap_or_default();
    if sandboxes.is_empty() {
        return super::print("no sandboxes\n");
    }
    let mut table = Table::new(&["ID", "STATE", "CREATED", "EXPIRES", "NAME"]);
    for sandbox in sandboxes {
        table.add(vec![
            ids::short(&super::text(&sandbox["sandbox_id"])).into(),
            super::state_cell(&super::text(&sandbox["status"])),
            super::time_text(&sandbox["created_at"]).into(),
            super::time_text(&sandbox["expires_at"]).into(),
            super::text(&sandbox["name"]).into(),
        ]);
    }
    super::print(&table.show())
}
