//! The command line interface. The arguments of each command are defined in its own file.

use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
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
`exec`, `shell` and `attach` pass on the exit code of what ran; theirs is 125 where they could not be carried out.
With --json what went wrong is on standard error as {\"code\": ..., \"message\": ...}.

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
    /// Lets jobs wait between two calls.
    Pause(commands::pause::PauseArguments),
    /// Lets a job go on, perhaps with a larger budget.
    Resume(commands::resume::ResumeArguments),
    /// Gives you the sandbox of a job; its agent waits.
    Takeover(commands::takeover::TakeoverArguments),
    /// Gives the sandbox back to the agent and tells it what changed.
    Handback(commands::takeover::HandbackArguments),
    /// Says something to the agent of a job.
    Message(commands::message::MessageArguments),
    /// Lists what waits for a person: questions, plans, commands, connections.
    Requests(commands::requests::RequestsArguments),
    /// Shows what the model of a job saw or would see, and what each part of it costs.
    Context(commands::context::ContextArguments),
    /// Answers what waits for a person.
    Answer(commands::answer::AnswerArguments),
    /// Shows what happened in a job once more.
    Replay(commands::replay::ReplayArguments),
    /// Writes an agent's run as steps, or as a trajectory.
    Export(commands::export::ExportArguments),
    /// Shows an agent at work without a model: its words are recorded, everything else is real.
    Demo(commands::demo::DemoArguments),
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
    /// Lists what a job has reached, or tried to, and the rules that decided.
    Network(commands::network::NetworkArguments),
    /// Lists what listens in a sandbox, and forwards ports.
    Ports(commands::ports::PortsArguments),
    /// Copies files and directories to or from a sandbox.
    Cp(commands::copy::CopyArguments),
    /// Lists, makes, extends and ends bare sandboxes.
    Sandboxes(commands::sandboxes::SandboxesArguments),
    /// Makes a link that shows one view of a job to others, for a while.
    Share(commands::share::ShareArguments),
    /// Lists and revokes the links that share views of a job.
    Shares(commands::shares::SharesArguments),
    /// Gives out, lists and takes back keys.
    Keys(commands::keys::KeysArguments),
    /// Builds, lists, imports, exports and removes images, the root file systems of sandboxes.
    Image(commands::image::ImageArguments),
    /// Lists the models that can be reached, and which one agents use.
    Models(commands::models::ModelsArguments),
    /// Says what this host can enforce, what not, and what would change it.
    Doctor(DoctorArguments),
    /// Saves all jobs in one archive, while the server runs or not.
    Backup(commands::backup::BackupArguments),
    /// Checks that no log was changed, and exports what pins it.
    Audit(commands::audit::AuditArguments),
    /// Makes a data folder from a backup.
    Restore(commands::backup::RestoreArguments),
    /// Checks the configuration and says where each setting comes from.
    Config(commands::check::ConfigArguments),
    /// Prints the completions for a shell.
    Completions(commands::completions::CompletionsArguments),
    /// Writes the manual pages into a folder.
    Man(commands::manual::ManualArguments),
    /// Prints the OpenAPI document of the server.
    #[command(after_help = "Examples:\n  caisson openapi > openapi.json")]
    Openapi,
}

/// What every command that speaks with a server takes.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct ServerArguments {
    /// The server; without it CAISSON_URL, or http://127.0.0.1:8000.
    #[arg(long, value_name = "URL", global = true)]
    pub(crate) url: Option<String>,
    /// File with the certificate (PEM) that a server with https:// is known by; without it CAISSON_CA, or those of this host.
    #[arg(long, value_name = "FILE", global = true)]
    pub(crate) ca_file: Option<PathBuf>,
    /// File with the key for the server; without it CAISSON_KEY.
    #[arg(long, value_name = "FILE", global = true)]
    pub(crate) key_file: Option<PathBuf>,
}

/// How the answer is written.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct OutputArguments {
    /// Prints JSON: one document, or a line each for what comes bit by bit.
    #[arg(long, global = true)]
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
    #[arg(long, value_name = "NUMBER", value_parser = parse_number)]
    pub(crate) cpus: Option<f64>,
    /// Disk, such as 512m or 10g.
    #[arg(long, value_name = "SIZE", value_parser = parse_mebibytes)]
    pub(crate) disk: Option<u64>,
    /// Outgoing connections: off, packages, open, learn (all, and noted as rules), or names such as example.org,*.example.org:8443.
    #[arg(long, value_name = "POLICY", value_parser = parse_egress)]
    pub(crate) egress: Option<String>,
    /// How long a refused connection waits for a person's answer.
    #[arg(long, value_name = "SECONDS", value_parser = parse_number)]
    pub(crate) egress_wait: Option<f64>,
    /// The most to use of the network: bytes, connections or bytes_per_second; may be given more than once.
    #[arg(long, value_name = "NAME=NUMBER", value_parser = parse_allowance)]
    pub(crate) network: Vec<(String, u64)>,
    /// A secret of the server and the hosts it is for: the variable holds a placeholder, and the hosts get the value; may be given
    /// more than once.
    #[arg(long, value_name = "NAME=HOST,...", value_parser = parse_secret)]
    pub(crate) secret: Vec<(String, Vec<String>)>,
    /// The least isolation that is acceptable: namespaces, or landlock where the host gives no better.
    #[arg(long, value_name = "NAME")]
    pub(crate) isolation: Option<String>,
}

impl LimitArguments {
    /// Adds the given limits to a request.
    pub(crate) fn add_to(&self, request: &mut Map<String, Value>) {
        if let Some(image) = &self.image {
            request.insert("image".into(), json!(image));
        }
        if let Some(isolation) = &self.isolation {
            request.insert("isolation".into(), json!(isolation));
        }
        if let Some(egress) = &self.egress {
            request.insert("egress".into(), egress_value(egress));
        }
        if let Some(seconds) = self.egress_wait {
            request.insert("egress_wait_s".into(), json!(seconds));
        }
        let allowances = self.network.iter().map(|(name, number)| (name.clone(), json!(number)));
        extend(request, "network", allowances.collect());
        let secrets = self.secret.iter().map(|(name, hosts)| (name.clone(), json!({ "hosts": hosts })));
        extend(request, "secrets", secrets.collect());
        let mut limits = Map::new();
        let named = [("memory_mib", self.memory), ("disk_mib", self.disk)];
        limits.extend(named.into_iter().filter_map(|(name, value)| Some((name.to_owned(), json!(value?)))));
        limits.extend(self.cpus.map(|cpus| ("cpus".to_owned(), json!(cpus))));
        extend(request, "limits", limits);
    }
}

/// Adds fields to an object in a request.
fn extend(request: &mut Map<String, Value>, name: &str, more: Map<String, Value>) {
    if more.is_empty() {
        return;
    }
    match request.entry(name).or_insert_with(|| json!({})) {
        Value::Object(there) => there.extend(more),
        other => *other = Value::Object(more),
    }
}

/// Rejects infinity and NaN: JSON has no such numbers, so the field would be sent as null.
pub(crate) fn parse_number(text: &str) -> Result<f64> {
    let number = text.parse().ok().filter(|number: &f64| number.is_finite());
    number.with_context(|| format!("`{text}` is not a number"))
}

/// Rejects a single word that is not a mode. It cannot be meant as a host: hosts have a dot or can be written with a
/// port.
fn parse_egress(text: &str) -> Result<String> {
    let is_word = text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte));
    if is_word && !["off", "packages", "open", "learn", "localhost"].contains(&text) {
        bail!(
            "neither off, packages, open or learn nor names such as example.org,*.example.org:8443; \
             a host without a dot is written with its port, as {text}:443"
        );
    }
    Ok(text.to_owned())
}

fn parse_allowance(text: &str) -> Result<(String, u64)> {
    let parsed = text.split_once('=').and_then(|(name, number)| Some((name, number.parse().ok()?)));
    match parsed {
        Some((name @ ("bytes" | "connections" | "bytes_per_second"), number)) => {
            Ok((name.to_owned(), number))
        }
        _ => bail!("not bytes=NUMBER, connections=NUMBER or bytes_per_second=NUMBER"),
    }
}

fn parse_secret(text: &str) -> Result<(String, Vec<String>)> {
    match text.split_once('=') {
        Some((name, hosts)) if !name.is_empty() && !hosts.is_empty() => {
            Ok((name.to_owned(), hosts.split(',').map(|host| host.trim().to_owned()).collect()))
        }
        _ => bail!("not a secret and its hosts, such as GITHUB_TOKEN=api.github.com"),
    }
}

fn egress_value(text: &str) -> Value {
    match text {
        "off" | "packages" | "open" | "learn" => json!(text),
        names => json!({"allow": names.split(',').map(str::trim).collect::<Vec<_>>()}),
    }
}

/// Parses `512`, `512m`, `2g` as mebibytes.
pub(crate) fn parse_mebibytes(text: &str) -> Result<u64> {
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

/// Parses `KEY=VALUE`.
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
    #[arg(long, value_name = "FILE", global = true)]
    pub(crate) config: Option<PathBuf>,
    /// Folder for jobs, database and sandboxes.
    #[arg(long, value_name = "FOLDER", global = true)]
    pub(crate) data: Option<PathBuf>,
    /// Folder for sockets; short, on a file system that is cleared at boot.
    #[arg(long, value_name = "FOLDER", global = true)]
    pub(crate) run_dir: Option<PathBuf>,
    /// Where sandboxes are made: namespace (on this host) or docker (containers of an engine).
    #[arg(long, value_name = "KIND", global = true)]
    pub(crate) backend: Option<String>,
}

/// `caisson serve`
#[derive(Debug, Args)]
#[command(after_help = "\
Settings come from flags, then the environment (CAISSON_DATA, CAISSON_LISTEN, ...), then the file, then defaults.
SIGHUP reads the file again: the log level, models and what jobs may use change at once, the log names what waits for
the next start.

Examples:
  caisson serve --data ./data
  caisson serve --listen 127.0.0.1:8000 --listen 127.0.0.1:3001")]
pub(crate) struct ServeArguments {
    #[command(flatten)]
    pub(crate) host: HostArguments,
    /// Address to listen on; may be given more than once.
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) listen: Vec<SocketAddr>,
    /// Listens on addresses that others can reach although there are no keys. Whoever reaches them owns the server.
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
    fn numbers_that_json_does_not_know_are_refused() {
        assert_eq!(parse_number("0.5").unwrap(), 0.5);
        for text in ["nan", "inf", "1e400", "much", ""] {
            assert_eq!(parse_number(text).unwrap_err().to_string(), format!("`{text}` is not a number"));
        }
    }

    /// All commands, including nested ones: the words that invoke each, and the command.
    fn all_commands(command: &clap::Command, path: &str) -> Vec<(String, clap::Command)> {
        let below = command.get_subcommands().flat_map(|sub| {
            let path = format!("{path} {}", sub.get_name());
            let mut found = all_commands(sub, &path);
            found.push((path, sub.clone()));
            found
        });
        below.collect()
    }

    #[test]
    fn every_command_has_examples() {
        let commands = all_commands(&Cli::command(), "caisson");
        assert!(commands.iter().any(|(path, _)| path == "caisson sandboxes create"));
        for (path, command) in commands {
            let after = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            assert!(
                after.contains("Examples:\n") && after.contains(&format!("  {path}")),
                "{path} has no examples"
            );
        }
    }

    #[test]
    fn where_and_how_may_stand_before_and_after_what_to_do() {
        for line in [
            "sandboxes list --json --url http://a",
            "sandboxes --json --url http://a list",
            "sandboxes create --json",
            "sandboxes extend 1c2d --ttl 5 --json --key-file key",
            "sandboxes rm 1c2d --url http://a --json",
            "keys list --json --url http://a",
            "keys --json --url http://a list",
            "keys --data folder add ada --role admin",
            "keys add ada --role admin --data folder --json",
            "keys revoke ada --json",
            "image rm alpine --json",
            "image list --json --data folder",
            "image --json --data folder list",
            "image --json export alpine --tar file",
            "image export alpine --tar file --json",
            "audit key --json",
            "audit export-head 1c2d --json",
        ] {
            let words = std::iter::once("caisson").chain(line.split(' '));
            if let Err(error) = Cli::try_parse_from(words) {
                panic!("{line}: {error}");
            }
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
    fn every_policy_that_has_a_name_is_sent_by_it() {
        for name in ["off", "packages", "open", "learn"] {
            assert_eq!(egress_value(name), json!(name));
        }
        assert_eq!(egress_value("*.example.org"), json!({"allow": ["*.example.org"]}));
    }

    #[test]
    fn a_mistyped_policy_is_refused_and_a_host_is_not() {
        for text in ["nonsense", "Open", "package", ""] {
            assert!(parse_egress(text).is_err(), "{text:?}");
        }
        for text in
            ["off", "learn", "localhost", "example.org", "git:443", "packages,example.org", "10.0.0.0/8"]
        {
            assert_eq!(parse_egress(text).unwrap(), text);
        }
    }

    #[test]
    fn secrets_and_allowances_are_sent_as_the_server_wants_them() {
        let arguments = LimitArguments {
            egress_wait: Some(30.0),
            network: vec![parse_allowance("bytes=1000").unwrap()],
            secret: vec![parse_secret("TOKEN=a.example,*.b.example:8443").unwrap()],
            ..Default::default()
        };
        let mut request = Map::new();
        arguments.add_to(&mut request);
        let expected = json!({"egress_wait_s": 30.0, "network": {"bytes": 1000},
            "secrets": {"TOKEN": {"hosts": ["a.example", "*.b.example:8443"]}}});
        assert_eq!(Value::Object(request), expected);
        assert!(parse_allowance("byte=1").is_err() && parse_allowance("bytes=x").is_err());
        assert!(parse_secret("TOKEN").is_err() && parse_secret("TOKEN=").is_err());
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
