//! `caisson shell`

use std::io::IsTerminal;
use std::pin::pin;
use std::process::ExitCode;

use anyhow::{Result, anyhow, bail};
use clap::Args;
use serde_json::{Map, Value, json};

use super::sandboxes;
use crate::arguments::{HostArguments, LimitArguments, ServerArguments};
use crate::client::Client;
use crate::client::exec::{self, ExecRequest, Input};
use crate::client::ids::{Kind, Target};
use crate::config::Config;
use crate::config::client_environment;
use crate::output::say;
use crate::serve::one_shot::OneShot;
use crate::signals;

/// Shells add this to the number of the signal that ended a command.
const SIGNAL_BASE: u8 = 128;
/// Bash if the image has it.
const SHELL: &str = "if command -v bash > /dev/null; then exec bash -l; else exec sh; fi";

/// `caisson shell`
#[derive(Debug, Args)]
#[command(after_help = "\
The sandbox ends with the shell or the terminal, unless --keep is given. The exit code is that of the shell, or 125 if the
shell could not be run. If no server is named and none answers, the sandbox runs in this process.

Examples:
  caisson shell
  caisson shell --memory 512m --cpus 1 --egress off
  echo 'uname -a' | caisson shell")]
pub(crate) struct ShellArguments {
    #[command(flatten)]
    limits: LimitArguments,
    /// Keep the sandbox afterwards and print its id.
    #[arg(long, conflicts_with = "here")]
    keep: bool,
    /// Create the sandbox in this process, even if a server answers.
    #[arg(long, conflicts_with = "url")]
    here: bool,
    #[command(flatten)]
    server: ServerArguments,
}

/// Opens the shell and runs until it exits.
pub(crate) async fn run(arguments: ShellArguments) -> Result<ExitCode> {
    let client = Client::new(&arguments.server)?;
    let is_named = arguments.server.url.is_some() || client_environment::named_url().is_some();
    if !arguments.here && (is_named || client.is_answered().await) {
        return in_sandbox(&client, arguments).await;
    }
    if arguments.keep {
        bail!("--keep needs a server: {:#}", client.not_reached());
    }
    let (server, client) = OneShot::start(Config::load(&HostArguments::default(), &[], false)?).await?;
    let ended = in_sandbox(&client, arguments).await;
    server.end().await;
    ended
}

async fn in_sandbox(client: &Client, arguments: ShellArguments) -> Result<ExitCode> {
    let mut request = Map::new();
    arguments.limits.add_to(&mut request);
    let request = Value::Object(request);
    // The sandbox was created for this shell and must not outlive it: from here on a signal ends the shell, not this
    // process.
    let mut stop = pin!(signals::termination_signal());
    let mut making = pin!(client.post("/v1/sandboxes", &request));
    let (made, early) = tokio::select! {
        made = &mut making => (made, None),
        signal = &mut stop => (making.await, Some(signal)),
    };
    let target = Target { kind: Kind::Sandbox, id: sandboxes::created_id(&made?)? };
    let ended = match early {
        Some(signal) => code_of(signal),
        None => tokio::select! {
            ended = exec::run(client, &target, shell()) => ended,
            signal = &mut stop => code_of(signal),
        },
    };
    if arguments.keep {
        say(&format!("sandbox kept: `caisson attach {0}`, `caisson sandboxes rm {0}`", target.id));
        return ended;
    }
    let removed = tokio::select! {
        removed = async { client.delete(&format!("/v1/sandboxes/{}", target.id)).await } => removed,
        // The user does not want to wait for a server that does not answer.
        () = signals::termination_or_interrupt() => Err(anyhow!("interrupted")),
    };
    if let Err(error) = removed {
        say(&format!("cannot remove sandbox {}; it ends when its ttl runs out: {error:#}", target.id));
    }
    ended
}

/// The exit code after a signal.
fn code_of(signal: i32) -> Result<ExitCode> {
    Ok(ExitCode::from(SIGNAL_BASE.saturating_add(u8::try_from(signal)?)))
}

/// A shell on this terminal; without a terminal, one that reads standard input.
pub(super) fn shell() -> ExecRequest {
    let is_terminal = std::io::stdin().is_terminal() && std::io::stdout().is_terminal();
    let body = json!({
        "argv": ["/bin/sh", "-c", SHELL],
        "environment": {"TERM": client_environment::terminal_kind()},
    });
    ExecRequest { body, input: if is_terminal { Input::Terminal } else { Input::Pipe } }
}
