//! `caisson sandboxes`

use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand};
use serde_json::{Map, Value, json};

use crate::arguments::{LimitArguments, OutputArguments, ServerArguments, parse_pair};
use crate::client::Client;
use crate::client::ids;
use crate::output::table::{Table, state_cell};
use crate::output::{print, print_json, time_text, value_text};

/// `caisson sandboxes`
#[derive(Debug, Args)]
#[command(after_help = "\
A bare sandbox ends when it has not been used for its ttl.

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

/// What to do with bare sandboxes.
#[allow(clippy::large_enum_variant, reason = "there is one, for the time of one command")]
#[derive(Debug, Subcommand)]
enum Action {
    /// List running sandboxes.
    #[command(after_help = "Examples:\n  caisson sandboxes list\n  caisson sandboxes list --all --json")]
    List {
        /// Include sandboxes that have ended.
        #[arg(long)]
        all: bool,
    },
    /// Create a sandbox and print its id.
    Create(Box<CreateArguments>),
    /// Set a new ttl, counted from now.
    #[command(after_help = "Examples:\n  caisson sandboxes extend 1c2d4e6f --ttl 3600")]
    Extend {
        /// Id or name of the sandbox.
        id: String,
        /// Seconds without use until the sandbox ends.
        #[arg(long, value_name = "SECONDS")]
        ttl: u64,
    },
    /// End sandboxes and delete their files.
    #[command(
        after_help = "Examples:\n  caisson sandboxes rm 1c2d4e6f\n  caisson sandboxes rm 1c2d4e6f 8a9b0c1d --json"
    )]
    Rm {
        /// Ids or names of the sandboxes.
        #[arg(required = true, value_name = "ID")]
        ids: Vec<String>,
    },
}

/// `caisson sandboxes create`
#[derive(Debug, Args)]
#[command(after_help = "\
Exit codes: 0 the sandbox runs and its id is printed, 2 it could not be created.

Examples:
  caisson sandboxes create --memory 1g --ttl 600
  caisson exec $(caisson sandboxes create --name mine) 'uname -a'")]
struct CreateArguments {
    #[command(flatten)]
    limits: LimitArguments,
    /// Seconds without use until the sandbox ends [default: the server's, an hour].
    #[arg(long, value_name = "SECONDS")]
    ttl: Option<u64>,
    /// Name of the sandbox.
    #[arg(long)]
    name: Option<String>,
    /// Label of the sandbox; repeatable.
    #[arg(long, value_name = "KEY=VALUE", value_parser = parse_pair)]
    label: Vec<(String, String)>,
}

pub(crate) async fn run(arguments: SandboxesArguments) -> Result<ExitCode> {
    let client = Client::new(&arguments.server)?;
    let json = arguments.output.json;
    match arguments.action.unwrap_or(Action::List { all: false }) {
        Action::List { all } => list(&client, all, json).await?,
        Action::Create(create) => {
            let sandbox = client.post("/v1/sandboxes", &request(&create)).await?;
            let id = created_id(&sandbox)?;
            show(&sandbox, &id, json)?;
        }
        Action::Extend { id, ttl } => {
            let id = ids::sandbox(&client, &id).await?;
            let path = format!("/v1/sandboxes/{id}/extend");
            let sandbox = client.post(&path, &json!({ "ttl_s": ttl })).await?;
            show(&sandbox, &expiry_line(&id, &sandbox), json)?;
        }
        Action::Rm { ids: typed } => {
            let mut removed = Vec::new();
            let ended = remove(&client, &typed, &mut removed).await;
            if json || !removed.is_empty() {
                show(&json!({ "removed": removed }), &format!("removed {}", removed.join(", ")), json)?;
            }
            ended?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Removes sandboxes one by one and records those removed: if one is refused, those before it are already gone.
async fn remove(client: &Client, typed: &[String], removed: &mut Vec<String>) -> Result<()> {
    for typed in typed {
        let id = ids::sandbox(client, typed).await?;
        client.delete(&format!("/v1/sandboxes/{id}")).await?;
        removed.push(id);
    }
    Ok(())
}

/// The id of a new sandbox; an error if the sandbox has already ended because it could not be created.
pub(super) fn created_id(sandbox: &Value) -> Result<String> {
    if sandbox["status"] == "ended" {
        let reason = sandbox["reason"].as_str().unwrap_or("the server gave no reason");
        bail!("cannot create the sandbox: {reason}");
    }
    Ok(sandbox["sandbox_id"].as_str().context("the server sent no sandbox id")?.to_owned())
}

/// Says when a sandbox ends.
pub(super) fn expiry_line(id: &str, sandbox: &Value) -> String {
    format!("{id} ends at {} if it is not used", time_text(&sandbox["expires_at"]))
}

fn show(document: &Value, line: &str, json: bool) -> Result<()> {
    if json { print_json(document) } else { print(&format!("{line}\n")) }
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
    let sandboxes = ids::every_sandbox(client, all).await?;
    if json {
        return print_json(&json!({ "sandboxes": sandboxes, "next": null }));
    }
    if sandboxes.is_empty() {
        return print("no sandboxes\n");
    }
    let mut table = Table::new(&["ID", "STATE", "CREATED", "EXPIRES", "NAME"]);
    for sandbox in &sandboxes {
        table.add(vec![
            ids::short(&value_text(&sandbox["sandbox_id"])).into(),
            state_cell(&value_text(&sandbox["status"])),
            time_text(&sandbox["created_at"]).into(),
            time_text(&sandbox["expires_at"]).into(),
            value_text(&sandbox["name"]).into(),
        ]);
    }
    print(&table.show())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ended_sandbox_is_reported_as_not_created() {
        let made = json!({"sandbox_id": "1c2d", "status": "running", "reason": null});
        assert_eq!(created_id(&made).unwrap(), "1c2d");
        let refused = json!({"sandbox_id": "1c2d", "status": "ended", "reason": "no namespaces here"});
        let error = created_id(&refused).unwrap_err().to_string();
        assert_eq!(error, "cannot create the sandbox: no namespaces here");
    }
}
