//! What may be typed. Each command's own arguments stand in its file.

use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::{Result, bail};
use clap::{Args, Parser, Subcommand};
use serde_json::{Map, Value, json};

use crate::commands;

/// Runs coding agents, each sealed in a sandbox of its own.
#[derive(Debug, Parser)]
#[command(
    name = "caisson",
    version,
    max_term_width = 110,
    after_help = "\
An id may be shortened to its beginning or its end, as long as only one fits.

Exit code: 0 done, or the job is complete; 1 the job failed; 2 could not be carried out; 3 the job was cancelled.
`exec`, `shell` and `attach` pass on the exit code of what ran.

Examples:
  caisson doctor                           what this host can do
  caisson serve                            the server, on http://127.0.0.1:8000
  caisson run --steps examples/hello.json  run steps and fetch the result; works without a server too
  caisson shell                            a shell in a fresh sandbox"
)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Runs the server.
    Serve(ServeArguments),
    /// Runs a job, shows what happens, and fetches the result.
    Run(commands::run::RunArguments),
    /// Lists jobs, newest first.
    Jobs(commands::jobs::JobsArguments),
    /// Says where a job stands.
    Status(commands::status::StatusArguments),
    /// Shows what a job has printed, or follows it.
    Logs(commands::logs::LogsArguments),
    /// Ends jobs that run or wait.
    Cancel(commands::cancel::CancelArguments),
    /// Runs the same job again, as a new one.
    Retry(commands::retry::RetryArguments),
    /// Fetches the result of a job.
    Download(commands::download::DownloadArguments),
    /// Removes jobs that are over, with their results.
    Rm(commands::remove::RemoveArguments),
    /// Opens a shell in a fresh sandbox.
    Shell(commands::shell::ShellArguments),
    /// Runs a command in the sandbox of a job, or in a bare sandbox.
    Exec(commands::exec::ExecArguments),
    /// Opens a shell in the sandbox of a running job, or in a bare sandbox.
    Attach(commands::attach::AttachArguments),
    /// Copies files and directories to or from a sandbox.
    Cp(commands::copy::CopyArguments),
    /// Lists, makes, extends and ends bare sandboxes.
    Sandboxes(commands::sandboxes::SandboxesArguments),
    /// Says what this host can enforce, what not, and what would change it.
    Doctor(DoctorArguments),
    /// Saves all jobs in one archive, while the server runs or not.
    Backup(commands::backup::BackupArguments),
    /// Makes a data folder from a backup.
    Restore(commands::backup::RestoreArguments),
    /// Checks the configuration and says where each setting comes from.
    Config(commands::check::ConfigArguments),
    /// Prints the completions for a shell.
    Completions(commands::completions::CompletionsArguments),
    /// Writes the manual pages into a folder.
    Man(commands::manual::ManualArguments),
    /// Prints the OpenAPI document of the server.
    Openapi,
}

/// What every command that speaks with a server takes.
#[derive(Debug, Clone, Args)]
pub(crate) struct ServerArguments {
    /// The server; without it CAISSON_URL, or http://127.0.0.1:8000.
    #[arg(long, value_name = "URL")]
    pub(crate) url: Option<String>,
}

/// How the answer is written.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct OutputArguments {
    /// Prints JSON: one document, or a line each for what comes bit by bit.
    #[arg(long)]
    pub(crate) json: bool,
}

/// What a new sandbox may use.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct LimitArguments {
    /// Image of the sandbox; without it the server's own.
    #[arg(long, value_name = "IMAGE")]
    pub(crate) image: Option<String>,
    /// Memory, such as 512m or 2g.
    #[arg(long, value_name = "SIZE", value_parser = parse_mebibytes)]
    pub(crate) memory: Option<u64>,
    /// Processors, such as 0.5 or 4.
    #[arg(long, value_name = "NUMBER")]
    pub(crate) cpus: Option<f64>,
    /// Disk, such as 512m or 10g.
    #[arg(long, value_name = "SIZE", value_parser = parse_mebibytes)]
    pub(crate) disk: Option<u64>,
    /// Outgoing connections: off, packages, open, or names such as example.org,*.example.org:8443.
    #[arg(long, value_name = "POLICY")]
    pub(crate) egress: Option<String>,
}

impl LimitArguments {
    /// Adds what was said to a request.
    pub(crate) fn add_to(&self, request: &mut Map<String, Value>) {
        if let Some(image) = &self.image {
            request.insert("image".into(), json!(image));
        }
        if let Some(egress) = &self.egress {
            request.insert("egress".into(), egress_value(egress));
        }
        let mut limits = Map::new();
        let named = [("memory_mib", self.memory), ("disk_mib", self.disk)];
        limits.extend(named.into_iter().filter_map(|(name, value)| Some((name.to_owned(), json!(value?)))));
        limits.extend(self.cpus.map(|cpus| ("cpus".to_owned(), json!(cpus))));
        if limits.is_empty() {
            return;
        }
        match request.entry("limits").or_insert_with(|| json!({})) {
            Value::Object(there) => there.extend(limits),
            other => *other = Value::Object(limits),
        }
    }
}

fn egress_value(text: &str) -> Value {
    match text {
        "off" | "packages" | "open" => json!(text),
        names => json!({"allow": names.split(',').map(str::trim).collect::<Vec<_>>()}),
    }
}

/// Reads `512`, `512m`, `2g` as mebibytes.
fn parse_mebibytes(text: &str) -> Result<u64> {
    let lower = text.to_ascii_lowercase();
    let digits = lower.trim_end_matches("ib").trim_end_matches('b');
    let (digits, factor) = match digits.strip_suffix(['m', 'g', 't']) {
        Some(number) if digits.ends_with('g') => (number, 1024),
        Some(number) if digits.ends_with('t') => (number, 1024 * 1024),
        Some(number) => (number, 1),
        None => (digits, 1),
    };
    match digits.parse::<u64>().ok().and_then(|number| number.checked_mul(factor)) {
        Some(mebibytes) if mebibytes > 0 => Ok(mebibytes),
        _ => bail!("not a size such as 512m or 2g"),
    }
}

/// Reads `KEY=VALUE`.
pub(crate) fn parse_pair(text: &str) -> Result<(String, String)> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => bail!("not of the form KEY=VALUE"),
    }
}

/// What every command that works on this host takes.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct HostArguments {
    /// Configuration file; every setting is in caisson.example.toml.
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Folder for jobs, database and sandboxes.
    #[arg(long, value_name = "FOLDER")]
    pub(crate) data: Option<PathBuf>,
    /// Folder for sockets; short, on a file system that is cleared at boot.
    #[arg(long, value_name = "FOLDER")]
    pub(crate) run_dir: Option<PathBuf>,
}

/// `caisson serve`
#[derive(Debug, Args)]
#[command(after_help = "\
Settings come from flags, then the environment (CAISSON_DATA, CAISSON_LISTEN, ...), then the file, then defaults.
SIGHUP reads the file again: the log level changes at once, other settings at the next start.

Examples:
  caisson serve --data ./data
  caisson serve --listen 127.0.0.1:8000 --listen 127.0.0.1:3001")]
pub(crate) struct ServeArguments {
    #[command(flatten)]
    pub(crate) host: HostArguments,
    /// Address to listen on; may be given more than once.
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) listen: Vec<SocketAddr>,
    /// Listens on addresses that others can reach although nobody has to log in. Whoever reaches them owns the server.
    #[arg(long)]
    pub(crate) insecure_listen: bool,
}

/// `caisson doctor`
#[derive(Debug, Args)]
#[command(after_help = "\
Exit code: 0 this host can run sandboxes, 1 it cannot.

Examples:
  caisson doctor
  caisson doctor --json | jq .isolation")]
pub(crate) struct DoctorArguments {
    #[command(flatten)]
    pub(crate) host: HostArguments,
    /// Prints JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_command_has_examples() {
        for command in Cli::command().get_subcommands().filter(|command| command.get_name() != "openapi") {
            let after = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            assert!(after.contains("Examples:\n  caisson "), "{} has no examples", command.get_name());
        }
    }

    #[test]
    fn sizes_are_read_as_mebibytes() {
        let read = |text| parse_mebibytes(text).ok();
        assert_eq!(
            ["512", "512m", "2g", "2GiB", "1T", "10MB"].map(read),
            [Some(512), Some(512), Some(2048), Some(2048), Some(1 << 20), Some(10)]
        );
        assert_eq!(["", "g", "0", "-1", "1.5g", "12k"].map(read), [None; 6]);
    }

    #[test]
    fn limits_join_those_of_the_request() {
        let arguments =
            LimitArguments { memory: Some(64), egress: Some("a.org,b.org".into()), ..Default::default() };
        let mut request = Map::new();
        request.insert("limits".into(), json!({"pids": 9}));
        arguments.add_to(&mut request);
        let expected =
            json!({"limits": {"pids": 9, "memory_mib": 64}, "egress": {"allow": ["a.org", "b.org"]}});
        assert_eq!(Value::Object(request), expected);
    }
}
