//! `caisson keys`

use std::process::ExitCode;

use anyhow::{Context, Result, anyhow, bail};
use clap::{Args, Subcommand};
use job::NewKey;
use orchestrator::{DataFolder, StoredKeys};
use serde_json::{Map, Value, json};
use store::LocalDatabase as _;

use crate::arguments::{HostArguments, OutputArguments, ServerArguments, parse_number};
use crate::client::Client;
use crate::config::Config;
use crate::config::database::DATABASE;
use crate::output::table::Table;
use crate::output::{print, print_json, say, value_text};

/// `caisson keys`
#[derive(Debug, Args)]
#[command(after_help = "\
A server requires keys as soon as the first one exists, so the first key must have the role admin. The secret is shown
once; pass it to commands in CAISSON_KEY or with --key-file.

Roles:
  viewer     view all jobs
  submitter  submit jobs; view and control only these
  operator   submit jobs; view and control all jobs
  admin      everything, including keys

Examples:
  caisson keys add ada --role admin
  caisson keys add robot --role submitter --max-running 2 --max-queued 20 --requests-per-second 10 --dollars-per-day 5
  caisson keys list
  caisson keys revoke robot
  caisson keys add ada --role admin --data /var/lib/caisson   while no server uses this folder")]
pub(crate) struct KeysArguments {
    #[command(subcommand)]
    action: Action,
    #[command(flatten)]
    store: KeyStoreArguments,
}

/// What to do with keys.
#[derive(Debug, Subcommand)]
enum Action {
    /// Create a key and print its secret once.
    Add(AddArguments),
    /// List keys, without their secrets.
    #[command(after_help = "Examples:\n  caisson keys list\n  caisson keys list --json")]
    List,
    /// Revoke a key at once. Jobs submitted with it keep running.
    Revoke(RevokeArguments),
}

/// The key store to work on: a server or a data folder.
#[derive(Debug, Args)]
struct KeyStoreArguments {
    #[command(flatten)]
    server: ServerArguments,
    #[command(flatten)]
    host: HostArguments,
    #[command(flatten)]
    output: OutputArguments,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  caisson keys add ada --role admin
  caisson keys add robot --role submitter --max-running 2 --dollars-per-day 5")]
struct AddArguments {
    /// Name of the key: letters, digits, `.`, `-`, `_` or `@`.
    #[arg(value_name = "NAME")]
    name: String,
    /// Role: viewer, submitter, operator or admin.
    #[arg(long, value_name = "ROLE")]
    role: String,
    /// Maximum jobs and sandboxes running at the same time.
    #[arg(long, value_name = "NUMBER")]
    max_running: Option<u32>,
    /// Maximum jobs waiting in the queue.
    #[arg(long, value_name = "NUMBER")]
    max_queued: Option<u32>,
    /// Maximum requests per second.
    #[arg(long, value_name = "NUMBER")]
    requests_per_second: Option<u32>,
    /// Maximum model cost in US dollars in any 24 hours.
    #[arg(long, value_name = "DOLLARS", value_parser = parse_number)]
    dollars_per_day: Option<f64>,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  caisson keys revoke robot")]
struct RevokeArguments {
    /// Name or id of the key.
    #[arg(value_name = "NAME")]
    name: String,
}

pub(crate) async fn run(arguments: KeysArguments) -> Result<ExitCode> {
    let output = arguments.store.output;
    let store = KeyStore::of(&arguments.store).await?;
    match arguments.action {
        Action::Add(add) => show_new(&store.add(request(&add)).await?, output)?,
        Action::List => show_all(&store.list().await?, output)?,
        Action::Revoke(revoke) => {
            store.revoke(&revoke.name).await?;
            if output.json {
                print_json(&json!({ "revoked": revoke.name }))?;
            } else {
                print(&format!("{} is revoked\n", revoke.name))?;
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Where the keys are: on a server, or in a data folder that no server uses.
enum KeyStore {
    Server(Client),
    Folder(Box<StoredKeys>),
}

impl KeyStore {
    async fn of(arguments: &KeyStoreArguments) -> Result<Self> {
        let host = &arguments.host;
        if host.data.is_none() && host.config.is_none() {
            return Ok(Self::Server(Client::new(&arguments.server)?));
        }
        if arguments.server.url.is_some() {
            bail!("--url selects a server, and --data or --config a folder; use only one of them");
        }
        let data = Config::load(host, &[], true)?.data;
        let folder = DataFolder::open(&data).with_context(|| {
            format!(
                "opening {}; if a server uses this folder, omit --data and --config to use the server",
                data.display()
            )
        })?;
        Ok(Self::Folder(Box::new(StoredKeys::open(folder, DATABASE.open(&data)?).await?)))
    }

    async fn add(&self, request: Value) -> Result<Value> {
        match self {
            Self::Server(client) => client.post("/v1/keys", &request).await,
            Self::Folder(keys) => {
                let new: NewKey =
                    job::read(request).map_err(|error| anyhow!("{}", error.sentence("field", "the key")))?;
                let (key, token) = keys.add(new).await?;
                let mut shown = serde_json::to_value(&*key)?;
                shown["secret"] = json!(token.reveal());
                Ok(shown)
            }
        }
    }

    async fn list(&self) -> Result<Value> {
        match self {
            Self::Server(client) => client.get("/v1/keys").await,
            Self::Folder(keys) => {
                let shown: Result<Vec<Value>, _> =
                    keys.list().iter().map(|key| serde_json::to_value(&**key)).collect();
                Ok(json!({ "keys": shown? }))
            }
        }
    }

    async fn revoke(&self, name: &str) -> Result<()> {
        match self {
            Self::Server(client) => client.delete(&format!("/v1/keys/{}", escaped(name))).await,
            Self::Folder(keys) => keys.revoke(name).await.map(drop).map_err(Into::into),
        }
    }
}

/// Escapes a name for a URL path. The server rejects characters that are not allowed in key names.
fn escaped(name: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b".-_@".contains(&byte);
    name.bytes()
        .map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}

fn request(add: &AddArguments) -> Value {
    let mut limits = Map::new();
    let numbers = [
        ("max_running", add.max_running),
        ("max_queued", add.max_queued),
        ("requests_per_second", add.requests_per_second),
    ];
    limits.extend(numbers.into_iter().filter_map(|(name, value)| Some((name.to_owned(), json!(value?)))));
    limits.extend(add.dollars_per_day.map(|dollars| ("dollars_per_day".to_owned(), json!(dollars))));
    json!({ "name": add.name, "role": add.role, "limits": limits })
}

fn show_new(made: &Value, output: OutputArguments) -> Result<()> {
    if output.json {
        return print_json(made);
    }
    say(&format!("secret of {}, shown only once:", value_text(&made["name"])));
    print(&format!("{}\n", value_text(&made["secret"])))
}

fn show_all(answer: &Value, output: OutputArguments) -> Result<()> {
    if output.json {
        return print_json(answer);
    }
    let keys = answer["keys"].as_array().map(Vec::as_slice).unwrap_or_default();
    if keys.is_empty() {
        return print("no keys: anyone who can reach this server has full access\n");
    }
    let mut table = Table::new(&["NAME", "ROLE", "LIMITS", "ID"]);
    for key in keys {
        table.add(vec![
            value_text(&key["name"]).into(),
            value_text(&key["role"]).into(),
            limits_text(&key["limits"]).into(),
            value_text(&key["id"]).into(),
        ]);
    }
    print(&table.show())
}

fn limits_text(limits: &Value) -> String {
    let units = [
        ("max_running", "running"),
        ("max_queued", "queued"),
        ("requests_per_second", "requests/s"),
        ("dollars_per_day", "$/day"),
    ];
    let units = units.iter().filter(|(name, _)| !limits[*name].is_null());
    units.map(|(name, unit)| format!("{} {unit}", limits[*name])).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_told_with_their_units() {
        assert_eq!(limits_text(&json!({})), "");
        let limits = json!({"max_running": 2, "dollars_per_day": 1.5});
        assert_eq!(limits_text(&limits), "2 running, 1.5 $/day");
    }

    #[test]
    fn key_name_is_escaped_to_one_path_segment() {
        assert_eq!(escaped("ada@example.org"), "ada@example.org");
        assert_eq!(escaped("../jobs?x"), "..%2Fjobs%3Fx");
    }
}
