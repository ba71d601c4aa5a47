//! `caisson shell`

use std::io::IsTerminal;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Args;
use serde_json::{Map, Value, json};

use crate::cli::{LimitArguments, ServerArguments};
use crate::client::Client;
use crate::config_client;
use crate::ids::{Kind, Target};
use crate::stream::{self, Input, Start};

/// Bash where the image has it.
const SHELL: &str = "if command -v bash > /dev/null; then exec bash -l; else exec sh; fi";

/// `caisson shell`
#[derive(Debug, Args)]
#[command(after_help = "\
The sandbox goes away with the shell, unless --keep says otherwise. The exit code is the shell's.

Examples:
  caisson shell
  caisson shell --memory 512m --cpus 1 --egress off
  echo 'uname -a' | caisson shell")]
pub(crate) struct ShellArguments {
    #[command(flatten)]
    limits: LimitArguments,
    /// Leaves the sandbox there afterwards, and says its id.
    #[arg(long)]
    keep: bool,
    #[command(flatten)]
    server: ServerArguments,
}

/// Opens the shell and stays until it ends.
pub(crate) async fn run(arguments: ShellArguments) -> Result<ExitCode> {
    let client = Client::new(arguments.server.url.as_deref())?;
    let mut request = Map::new();
    arguments.limits.add_to(&mut request);
    let sandbox = client.post("/v1/sandboxes", &Value::Object(request)).await?;
    let id = sandbox["sandbox_id"].as_str().context("the server sent no sandbox id")?.to_owned();
    let target = Target { kind: Kind::Sandbox, id };
    let ended = stream::run(&client, &target, shell()).await;
    if arguments.keep {
        super::say(&format!(
            "the sandbox stays: `caisson attach {0}`, `caisson sandboxes rm {0}`",
            target.id
        ));
    } else if let Err(error) = client.delete(&format!("/v1/sandboxes/{}", target.id)).await {
        super::say(&format!("the sandbox {} could not be removed and ends by itself: {error:#}", target.id));
    }
    ended
}

/// A shell on the terminal in front, or one that reads standard input where there is none.
pub(super) fn shell() -> Start {
    let is_terminal = std::io::stdin().is_terminal() && std::io::stdout().is_terminal();
    let request = json!({
        "argv": ["/bin/sh", "-c", SHELL],
        "environment": {"TERM": config_client::terminal_kind()},
    });
    Start { request, input: if is_terminal { Input::Terminal } else { Input::Pipe } }
}
