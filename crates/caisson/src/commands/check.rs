//! `caisson config check`

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, Subcommand};
use serde_json::{Value, json};

use crate::arguments::{HostArguments, OutputArguments};
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

/// What to do with the configuration.
#[derive(Debug, Subcommand)]
enum Action {
    /// Says what is wrong, where, and what is allowed; and where each setting comes from.
    #[command(after_help = "\
Exit code: 0 the configuration is right, 1 it is wrong.

Examples:
  caisson config check
  caisson config check ./caisson.toml --json")]
    Check {
        /// Configuration file, the same as --config.
        #[arg(value_name = "FILE", conflicts_with = "config")]
        file: Option<PathBuf>,
        /// Says nothing where all is right.
        #[arg(short, long, conflicts_with = "json")]
        quiet: bool,
        #[command(flatten)]
        host: HostArguments,
        #[command(flatten)]
        output: OutputArguments,
    },
}

pub(crate) fn run(arguments: ConfigArguments) -> Result<ExitCode> {
    let Action::Check { file, quiet, mut host, output } = arguments.action;
    host.config = host.config.or(file);
    let report = check::check(&host)?;
    if output.json {
        print_json(&document(&report))?;
    } else if !quiet || !report.problems.is_empty() {
        print(&describe(&report))?;
    }
    Ok(if report.problems.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(EXIT_FAILED) })
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
    let hints: String = report
        .hints
        .iter()
        .map(|hint| format!("\n{}: {hint}\n", colours.paint("33", "look again")))
        .collect();
    format!("{}: {file}\n\n{}{hints}", colours.paint("32", "right"), table.show())
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
