//! `logs/agent.log`: what happened, a line each, for people. Computed from the events, so it can be made again.

use std::fmt::Write as _;
use std::fs::File;
use std::io::Write as _;
use std::path::Path;

use egress::EgressEvent;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::error::OrchestratorError;
use crate::event::{CallStatus, Event, EventBody};
use crate::request::Work;

/// The log file of one job.
pub(crate) struct AgentLog {
    file: File,
}

impl AgentLog {
    /// Writes the log anew from the events so far.
    pub(crate) fn start(path: &Path, events: &[Event]) -> Result<Self, OrchestratorError> {
        let file =
            File::create(path).map_err(OrchestratorError::io(format!("writing {}", path.display())))?;
        let mut log = Self { file };
        log.append(events);
        Ok(log)
    }

    /// Adds events. A failure is not an error: the file can be made again from the events.
    pub(crate) fn append(&mut self, events: &[Event]) {
        let mut text = String::new();
        for event in events {
            describe(event, &mut text);
        }
        let _ = self.file.write_all(text.as_bytes());
    }
}

/// Milliseconds since 1970 as RFC 3339.
#[must_use]
pub fn format_time(time_ms: i64) -> String {
    OffsetDateTime::from_unix_timestamp_nanos(i128::from(time_ms) * 1_000_000)
        .ok()
        .and_then(|time| time.format(&Rfc3339).ok())
        .unwrap_or_default()
}

fn describe(event: &Event, text: &mut String) {
    let call = event.call.as_ref().map_or(String::new(), |call| {
        if call.attempt > 1 {
            format!("{} (attempt {}) ", call.id, call.attempt)
        } else {
            format!("{} ", call.id)
        }
    });
    let said = what_happened(&event.body);
    for line in said.lines() {
        let _ = writeln!(text, "{} {call}{line}", format_time(event.time_ms));
    }
}

fn what_happened(body: &EventBody) -> String {
    match body {
        EventBody::JobCreated { spec } => match &spec.work {
            Work::Task(task) => format!("task: {task}"),
            Work::Steps(steps) => format!("job with {} steps", steps.len()),
            Work::Session { .. } => "sandbox".to_owned(),
        },
        EventBody::StateChanged { state, code, reason } => {
            let mut line = format!("{state:?}").to_lowercase();
            if let Some(code) = code {
                let _ = write!(line, " ({code})");
            }
            if let Some(reason) = reason {
                let _ = write!(line, ": {reason}");
            }
            line
        }
        EventBody::Wished { wish } => format!("asked to {}", format!("{wish:?}").to_lowercase()),
        EventBody::Extended { idle_ms } => format!("may be idle for {} s", idle_ms / 1000),
        EventBody::SandboxRequested { sandbox } => format!("sandbox {sandbox} is being made"),
        EventBody::SandboxReady { unenforced, .. } => {
            let mut line = "sandbox ready".to_owned();
            for limit in unenforced {
                let _ = write!(line, "\nthe {} limit is not enforced: {}", limit.limit, limit.why);
            }
            line
        }
        EventBody::SandboxLost { detail, steps_kept, .. } => {
            format!(
                "sandbox lost: {detail}; the workspace goes back to where it was after {steps_kept} steps"
            )
        }
        EventBody::CallStarted { tool, input, .. } => format!("{tool} {}", shorten(&input.to_string(), 2000)),
        EventBody::CallOutput { text, base64, stream, .. } => {
            let mark = if stream == "stderr" { "! " } else { "| " };
            if *base64 {
                format!("{mark}({} characters of base64)", text.len())
            } else {
                text.lines().map(|line| format!("{mark}{line}\n")).collect()
            }
        }
        EventBody::CallOutputDropped { bytes, .. } => format!("| ({bytes} bytes were not kept)"),
        EventBody::CallEnded(end) => {
            let mut line = match end.status {
                CallStatus::Succeeded => "succeeded".to_owned(),
                CallStatus::Failed => "failed".to_owned(),
                CallStatus::Interrupted => "interrupted".to_owned(),
            };
            if let Some(reason) = &end.reason {
                let _ = write!(line, ": {reason}");
            }
            let _ = write!(line, " after {} ms", end.duration_ms);
            line
        }
        EventBody::Checkpoint { steps, bytes } => {
            format!("workspace saved after {steps} steps ({bytes} bytes)")
        }
        EventBody::Egress(event) => describe_connection(event),
        EventBody::ArtifactStored(artifact) => {
            format!("{} with {} files, {} bytes", artifact.name, artifact.files, artifact.bytes)
        }
        EventBody::Note { text } => text.clone(),
    }
}

fn describe_connection(event: &EgressEvent) -> String {
    let connection = event.connection();
    let target = format!("{} {}:{}", connection.method, connection.host, connection.port);
    match event {
        EgressEvent::Opened(_) => format!("-> {target} allowed by {}", connection.rule),
        EgressEvent::Closed(_) => {
            format!("-> {target} closed, {} bytes up, {} down", connection.bytes_up, connection.bytes_down)
        }
        EgressEvent::Refused(_) => format!("-> {target} refused: {}", connection.reason),
    }
}

fn shorten(text: &str, limit: usize) -> String {
    match text.char_indices().nth(limit) {
        Some((end, _)) => format!("{} ...", &text[..end]),
        None => text.to_owned(),
    }
}
