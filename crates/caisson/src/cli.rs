//! The command line interface. The arguments of each command are defined in its own file.

use clap::{Parser, Subcommand};

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
    Serve(commands::serve::ServeArguments),
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
    Doctor(commands::doctor::DoctorArguments),
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

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
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
    fn server_and_output_flags_work_before_and_after_the_subcommand() {
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
}
