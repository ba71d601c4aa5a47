//! One file per command.

pub(crate) mod answer;
mod arrival;
mod ask;
pub(crate) mod attach;
pub(crate) mod audit;
pub(crate) mod backend;
pub(crate) mod backup;
pub(crate) mod cancel;
pub(crate) mod check;
pub(crate) mod completions;
pub(crate) mod context;
pub(crate) mod copy;
pub(crate) mod demo;
pub(crate) mod doctor;
mod doctor_folders;
pub(crate) mod download;
pub(crate) mod exec;
pub(crate) mod export;
pub(crate) mod export_atif;
pub(crate) mod export_steps;
pub(crate) mod image;
pub(crate) mod image_forms;
pub(crate) mod image_progress;
pub(crate) mod interrupt;
pub(crate) mod jobs;
pub(crate) mod keys;
pub(crate) mod logs;
pub(crate) mod manual;
pub(crate) mod message;
pub(crate) mod models;
pub(crate) mod network;
pub(crate) mod openapi;
pub(crate) mod pause;
pub(crate) mod ports;
pub(crate) mod progress;
pub(crate) mod progress_agent;
pub(crate) mod remove;
pub(crate) mod replay;
pub(crate) mod requests;
pub(crate) mod resume;
pub(crate) mod retry;
pub(crate) mod run;
pub(crate) mod sandboxes;
pub(crate) mod serve;
pub(crate) mod share;
pub(crate) mod shares;
pub(crate) mod shell;
pub(crate) mod status;
pub(crate) mod takeover;
pub(crate) mod transfer;
pub(crate) mod upload;
pub(crate) mod view;

use std::io::Write;
use std::process::ExitCode;

use anyhow::{Context, Result};
use serde_json::Value;

use crate::table::Cell;

/// The job failed.
const EXIT_FAILED: u8 = 1;
/// The job was cancelled.
const EXIT_CANCELLED: u8 = 3;
/// The user stopped watching; shells report Ctrl-C with the same code.
const EXIT_LEFT: u8 = 130;
/// The command itself failed.
pub(crate) const EXIT_TROUBLE: u8 = 2;

/// Prints a command's output. A closed output pipe, as with `head`, is not an error.
pub(crate) fn print(text: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(error).context("writing the output")
        }
        _ => Ok(()),
    }
}

/// Prints a JSON document.
pub(crate) fn print_json(document: &Value) -> Result<()> {
    print(&format!("{document:#}\n"))
}

/// Prints a message on standard error.
pub(crate) fn say(line: &str) {
    // A closed terminal is not an error.
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// The exit code for a job in this status.
pub(crate) fn exit_code_of(status: Option<&str>) -> ExitCode {
    match status {
        Some("complete") => ExitCode::SUCCESS,
        Some("cancelled") => ExitCode::from(EXIT_CANCELLED),
        _ => ExitCode::from(EXIT_FAILED),
    }
}

/// A value as text; empty if there is none.
pub(crate) fn text(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// A job's state in its colour.
pub(crate) fn state_cell(state: &str) -> Cell {
    let colour = match state {
        "complete" | "succeeded" => "32",
        "failed" | "interrupted" => "31",
        "cancelled" | "paused" => "33",
        "running" | "starting" | "collecting" => "36",
        _ => "2",
    };
    Cell::coloured(state, colour)
}

/// A timestamp without fractions of a second.
pub(crate) fn time_text(moment: &Value) -> String {
    let moment = moment.as_str().unwrap_or_default();
    moment.get(..19).unwrap_or(moment).replace('T', " ")
}

/// A human-readable duration.
pub(crate) fn duration_text(milliseconds: Option<u64>) -> String {
    match milliseconds {
        None => String::new(),
        Some(milliseconds @ ..1_000) => format!("{milliseconds} ms"),
        Some(milliseconds @ ..60_000) => format!("{}.{} s", milliseconds / 1000, milliseconds % 1000 / 100),
        Some(milliseconds) => {
            let seconds = milliseconds / 1000;
            match seconds / 3600 {
                0 => format!("{}m {:02}s", seconds / 60, seconds % 60),
                hours => format!("{hours}h {:02}m", seconds % 3600 / 60),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_job_is_an_exit_code() {
        assert_eq!(exit_code_of(Some("complete")), ExitCode::from(0));
        assert_eq!(exit_code_of(Some("failed")), ExitCode::from(1));
        assert_eq!(exit_code_of(Some("cancelled")), ExitCode::from(3));
        assert_eq!(exit_code_of(None), ExitCode::from(1));
    }

    #[test]
    fn time_spans_are_told_in_two_units_at_most() {
        let told = [Some(5), Some(1_234), Some(61_000), Some(3_660_000), None].map(duration_text);
        assert_eq!(told, ["5 ms", "1.2 s", "1m 01s", "1h 01m", ""]);
    }
}
