//! The command line interface. The arguments of each command are defined in its own file.

use std::fmt::Write as _;

use clap::{CommandFactory, Parser, Subcommand};

use crate::commands;

/// Run coding agents, each in its own sandbox.
#[derive(Debug, Parser)]
#[command(
    name = "caisson",
    version,
    max_term_width = 110,
    after_help = "\
The name of a job or sandbox works in place of its id. An id may be shortened to its beginning or its end if only one
id matches. If several have the name, it means the only one that has not ended.

Exit codes: 0 success or job complete; 1 job failed; 2 the command failed; 3 job cancelled.
`exec`, `shell` and `attach` return the exit code of the program, or 125 if they fail themselves.
With --json, errors are printed to standard error as {\"code\": ..., \"message\": ...}.

Examples:
  caisson doctor                           check what this host supports
  caisson serve                            start the server on http://127.0.0.1:8000
  caisson run --steps examples/hello.json  run steps and download the result; no server needed
  caisson shell                            open a shell in a new sandbox"
)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// All commands. `GROUPS` says under which heading the help lists each.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run the server.
    Serve(commands::serve::ServeArguments),
    /// Run a job, show its progress and download the result.
    Run(commands::run::RunArguments),
    /// List jobs, newest first.
    Jobs(commands::jobs::JobsArguments),
    /// Show the state of a job.
    Status(commands::status::StatusArguments),
    /// Open the page of a job in the browser.
    Open(commands::open::OpenArguments),
    /// Print what a job printed, or its events.
    Logs(commands::logs::LogsArguments),
    /// Cancel running or waiting jobs.
    Cancel(commands::cancel::CancelArguments),
    /// Give a job more time, or keep a bare sandbox for longer.
    Extend(commands::extend::ExtendArguments),
    /// Pause jobs after the current call.
    Pause(commands::pause::PauseArguments),
    /// Resume paused jobs, optionally with a larger budget.
    Resume(commands::resume::ResumeArguments),
    /// Take over the sandbox of a job; its agent waits.
    Takeover(commands::takeover::TakeoverArguments),
    /// Hand the sandbox back to the agent and report what changed.
    Handback(commands::takeover::HandbackArguments),
    /// Send a message to the agent of a job.
    Message(commands::message::MessageArguments),
    /// List what waits for an answer: questions, plans, commands, connections.
    Requests(commands::requests::RequestsArguments),
    /// Show the model's context and the token count of each part.
    Context(commands::context::ContextArguments),
    /// Answer an input request.
    Answer(commands::answer::AnswerArguments),
    /// Replay a finished job from its log.
    Replay(commands::replay::ReplayArguments),
    /// Export an agent's run as a step job or a trajectory.
    Export(commands::export::ExportArguments),
    /// Run a demo agent with recorded model output in a real sandbox.
    Demo(commands::demo::DemoArguments),
    /// Run a job again as a new job.
    Retry(commands::retry::RetryArguments),
    /// Download the result of a job.
    Download(commands::download::DownloadArguments),
    /// Delete finished jobs and their results.
    Rm(commands::remove::RemoveArguments),
    /// Open a shell in a new sandbox.
    Shell(commands::shell::ShellArguments),
    /// Run a command in the sandbox of a job or in a bare sandbox.
    Exec(commands::exec::ExecArguments),
    /// Open a shell in the sandbox of a job or in a bare sandbox.
    Attach(commands::attach::AttachArguments),
    /// List connections and the rules that decided them.
    Network(commands::network::NetworkArguments),
    /// List open ports of a sandbox, or forward them.
    Ports(commands::ports::PortsArguments),
    /// Copy files and directories to or from a sandbox.
    Cp(commands::copy::CopyArguments),
    /// Manage bare sandboxes.
    Sandboxes(commands::sandboxes::SandboxesArguments),
    /// Create a temporary link to one view of a job.
    Share(commands::share::ShareArguments),
    /// List and revoke share links of a job.
    Shares(commands::shares::SharesArguments),
    /// Manage API keys.
    Keys(commands::keys::KeysArguments),
    /// Manage images, the root file systems of sandboxes.
    Image(commands::image::ImageArguments),
    /// List available models and the one that agents use.
    Models(commands::models::ModelsArguments),
    /// Check what this host can enforce and how to fix what it cannot.
    Doctor(commands::doctor::DoctorArguments),
    /// Back up all jobs into one archive.
    Backup(commands::backup::BackupArguments),
    /// Verify the audit trail and export signed heads.
    Audit(commands::audit::AuditArguments),
    /// Restore a data folder from a backup.
    Restore(commands::backup::RestoreArguments),
    /// Check the configuration and show where each setting comes from.
    Config(commands::check::ConfigArguments),
    /// Print shell completions.
    Completions(commands::completions::CompletionsArguments),
    /// Write manual pages into a folder.
    Man(commands::manual::ManualArguments),
    /// Print the OpenAPI document of the server.
    #[command(after_help = "Examples:\n  caisson openapi > openapi.json")]
    Openapi,
}

/// The headings of the help, each with its commands in order.
const GROUPS: [(&str, &[&str]); 5] = [
    (
        "Jobs",
        &[
            "run", "jobs", "status", "open", "logs", "extend", "cancel", "retry", "download", "rm", "replay",
            "export", "demo",
        ],
    ),
    (
        "Agents",
        &["message", "pause", "resume", "requests", "answer", "takeover", "handback", "context", "models"],
    ),
    ("Sandboxes", &["shell", "exec", "attach", "cp", "ports", "network", "sandboxes", "share", "shares"]),
    ("Server and host", &["serve", "doctor", "config", "keys", "image", "backup", "restore", "audit"]),
    ("Other", &["completions", "man", "openapi"]),
];

/// The command line, with the commands in groups in its help. Clap itself knows a single list only.
pub(crate) fn command() -> clap::Command {
    let command = Cli::command();
    let mut groups = String::new();
    for (heading, names) in GROUPS {
        let _ = writeln!(groups, "{heading}:");
        for command in names.iter().filter_map(|name| command.find_subcommand(name)) {
            let about = command.get_about().map(ToString::to_string).unwrap_or_default();
            let _ = writeln!(groups, "  {:<13}{about}", command.get_name());
        }
        groups.push('\n');
    }
    command.help_template(format!(
        "{{before-help}}{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\n\
         {groups}Options:\n{{options}}{{after-help}}"
    ))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn help_lists_every_command_in_one_group() {
        let command = command();
        let listed: Vec<&str> = GROUPS.iter().flat_map(|(_, names)| names.iter().copied()).collect();
        let unique: BTreeSet<&str> = listed.iter().copied().collect();
        assert_eq!(unique.len(), listed.len(), "a command is in two groups");
        let known: BTreeSet<&str> = command.get_subcommands().map(clap::Command::get_name).collect();
        assert_eq!(unique, known);
        let help = command.clone().render_help().to_string();
        assert!(help.contains("\nAgents:\n") && help.contains("\n  pause        Pause jobs"), "{help}");
        assert!(help.contains("--version") && help.contains("Examples:"), "{help}");
    }

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
