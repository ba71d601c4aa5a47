//! `caisson config check`

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Args, Subcommand};
use serde_json::{Value, json};

use crate::arguments::{HostArguments, OutputArguments, ServerArguments};
use crate::client::described::Described;
use crate::config::Config;
use crate::config::check::{self, Report};
use crate::output::table::{Cell, Table};
use crate::output::terminal::Colours;
use crate::output::{EXIT_FAILED, print, print_json};

/// `caisson config`
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  caisson config check
  caisson config check ./caisson.toml --json")]
pub(crate) struct ConfigArguments {
    #[command(subcommand)]
    action: Action,
}

/// What to do with the configuration file.
#[derive(Debug, Subcommand)]
enum Action {
    /// Report errors with allowed values, and show where each setting comes from.
    #[command(after_help = "\
If a server answers at --url, CAISSON_URL or the configured address, hints say where it uses another file or data folder,
and which settings have changed since it read its file.
Exit codes: 0 the configuration is valid, 1 it is not.

Examples:
  caisson config check
  caisson config check ./caisson.toml --json")]
    Check {
        /// Configuration file; same as --config.
        #[arg(value_name = "FILE", conflicts_with = "config")]
        file: Option<PathBuf>,
        /// Print nothing if the configuration is valid.
        #[arg(short, long, conflicts_with = "json")]
        quiet: bool,
        #[command(flatten)]
        host: HostArguments,
        #[command(flatten)]
        server: ServerArguments,
        #[command(flatten)]
        output: OutputArguments,
    },
}

pub(crate) fn run(arguments: ConfigArguments) -> Result<ExitCode> {
    let Action::Check { file, quiet, mut host, server, output } = arguments.action;
    host.config = host.config.or(file);
    let mut report = check::check(&host)?;
    let running = if report.problems.is_empty() && !quiet { running_server(&server, &host)? } else { None };
    if let Some((url, about)) = &running {
        let data = Config::load(&host, &[], false)?.data.display().to_string();
        let file = report.file.as_ref().map(std::path::absolute).transpose().context("finding the file")?;
        let file = file.map(|file| file.display().to_string());
        report.hints.extend(differences(url, about, file.as_deref(), &data));
    }
    if output.json {
        let mut document = document(&report);
        document["server"] = running.map_or(Value::Null, |(_, about)| about);
        print_json(&document)?;
    } else if !quiet || !report.problems.is_empty() {
        print(&describe(&report))?;
    }
    Ok(if report.problems.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(EXIT_FAILED) })
}

/// The URL of the server that answers, and what it says about itself.
fn running_server(server: &ServerArguments, host: &HostArguments) -> Result<Option<(String, Value)>> {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().context("starting the runtime")?;
    let described = runtime.block_on(Described::find(server, host, "/v1/doctor"))?;
    described.announce();
    match described {
        Described::Server { url, mut answer } => Ok(Some((url, answer["server"].take()))),
        Described::Folder { .. } => Ok(None),
    }
}

/// Where a running server differs from the configuration that was checked.
fn differences(url: &str, about: &Value, file: Option<&str>, data: &str) -> Vec<String> {
    let mut hints = Vec::new();
    // A server of an earlier version does not say.
    if about["config"].is_null() {
        return hints;
    }
    let used = about["config"]["file"].as_str();
    match used {
        Some(used) if Some(used) != file => {
            hints.push(format!("the server at {url} uses another file: {used}"))
        }
        None if file.is_some() => hints.push(format!("the server at {url} uses no configuration file")),
        _ => {}
    }
    if let Some(used) = about["data"].as_str().filter(|used| *used != data) {
        hints.push(format!("the server at {url} uses another data folder: {used}"));
    }
    let names = |kind: &str| {
        let names = about["config"][kind].as_array().into_iter().flatten().filter_map(Value::as_str);
        Some(names.collect::<Vec<_>>().join(", ")).filter(|names| !names.is_empty())
    };
    let changed = "these settings have changed since the server at";
    if let Some(names) = names("reload") {
        hints.push(format!("{changed} {url} read its file; send it SIGHUP: {names}"));
    }
    if let Some(names) = names("restart") {
        hints.push(format!("{changed} {url} was started; restart it: {names}"));
    }
    if let Some(error) = about["config"]["error"].as_str() {
        hints.push(format!(
            "the server at {url} could not start with its configuration as it is now: {error}"
        ));
    }
    hints
}

fn describe(report: &Report) -> String {
    let colours = Colours::of_output();
    let mut text = String::new();
    for problem in &report.problems {
        text += &format!("{}: {}\n", colours.paint("31", &problem.location), problem.text);
        if let Some(about) = &problem.about {
            text += &format!("    {about}\n");
        }
    }
    if !report.problems.is_empty() {
        return text;
    }
    let mut table = Table::new(&["SETTING", "VALUE", "FROM"]);
    for setting in &report.settings {
        let origin = match setting.origin.as_str() {
            "default" => Cell::coloured("default", "2"),
            other => other.into(),
        };
        table.add(vec![setting.key.as_str().into(), setting.value.as_deref().unwrap_or("-").into(), origin]);
    }
    let file = report.file.as_ref().map_or_else(
        || "no configuration file; defaults and environment".to_owned(),
        |path| path.display().to_string(),
    );
    let hints: String =
        report.hints.iter().map(|hint| format!("\n{}: {hint}\n", colours.paint("33", "hint"))).collect();
    format!("{}: {file}\n\n{}{hints}", colours.paint("32", "valid"), table.show())
}

fn document(report: &Report) -> Value {
    let problems: Vec<Value> = report
        .problems
        .iter()
        .map(|problem| json!({"place": problem.location, "problem": problem.text, "about": problem.about}))
        .collect();
    let settings: Vec<Value> = report
        .settings
        .iter()
        .map(|setting| json!({"key": setting.key, "value": setting.value, "from": setting.origin}))
        .collect();
    json!({
        "file": report.file, "ok": problems.is_empty(), "problems": problems, "settings": settings, "hints": report.hints
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_from_the_running_server_are_hints() {
        let about = |file: Value, reload: Value, restart: Value| json!({"data": "/data", "config": {"file": file, "reload": reload, "restart": restart}});
        let hints =
            |about: &Value, file: Option<&str>, data: &str| differences("http://a", about, file, data);
        let same = about(json!("/a.toml"), json!([]), json!([]));
        assert_eq!(hints(&same, Some("/a.toml"), "/data"), [""; 0]);
        assert_eq!(
            hints(&same, Some("/b.toml"), "/other"),
            [
                "the server at http://a uses another file: /a.toml",
                "the server at http://a uses another data folder: /data"
            ]
        );
        let without = about(Value::Null, json!(["log"]), json!(["listen", "data"]));
        assert_eq!(
            hints(&without, Some("/a.toml"), "/data"),
            [
                "the server at http://a uses no configuration file",
                "these settings have changed since the server at http://a read its file; send it SIGHUP: log",
                "these settings have changed since the server at http://a was started; restart it: listen, data"
            ]
        );
        assert_eq!(hints(&Value::Null, Some("/a.toml"), "/data"), [""; 0], "a server of an earlier version");
    }
}
