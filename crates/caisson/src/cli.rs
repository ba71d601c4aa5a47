//! What may be typed.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

/// Runs coding agents, each sealed in a sandbox of its own.
#[derive(Debug, Parser)]
#[command(
    name = "caisson",
    version,
    max_term_width = 110,
    after_help = "\
Examples:
  caisson doctor                          what this host can do
  caisson serve                           the server, on http://127.0.0.1:8000
  caisson run --steps examples/hello.json run steps and fetch the result"
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
    /// Sends a job to a server, shows what happens, and fetches the result.
    Run(RunArguments),
    /// Says what this host can enforce, what not, and what would change it.
    Doctor(DoctorArguments),
    /// Saves all jobs in one archive, while the server runs or not.
    Backup(crate::commands::backup::BackupArguments),
    /// Makes a data folder from a backup.
    Restore(crate::commands::backup::RestoreArguments),
    /// Prints the OpenAPI document of the server.
    Openapi,
}

/// What every command that works on this host takes.
#[derive(Debug, Args)]
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

/// `caisson run`
#[derive(Debug, Args)]
#[command(after_help = "\
The server is http://127.0.0.1:8000, or the one that CAISSON_URL or --url names.
Exit code: 0 the job is complete, 1 it failed, 2 it could not be run, 3 it was cancelled.

Examples:
  caisson run --steps examples/hello.json
  caisson run --steps - --out result <<< '[{\"tool\": \"shell\", \"command\": \"uname -a\"}]'")]
pub(crate) struct RunArguments {
    /// Steps as JSON: a list of steps, or a whole job; `-` for standard input.
    #[arg(long, value_name = "FILE")]
    pub(crate) steps: PathBuf,
    /// Folder for the result; output.zip is put there.
    #[arg(long, value_name = "FOLDER")]
    pub(crate) out: Option<PathBuf>,
    /// The server.
    #[arg(long, value_name = "URL")]
    pub(crate) url: Option<String>,
    /// Prints the events as JSON lines.
    #[arg(long)]
    pub(crate) json: bool,
}

/// `caisson doctor`
#[derive(Debug, Args)]
pub(crate) struct DoctorArguments {
    #[command(flatten)]
    pub(crate) host: HostArguments,
    /// Prints JSON.
    #[arg(long)]
    pub(crate) json: bool,
}
