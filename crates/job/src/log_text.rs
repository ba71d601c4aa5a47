//! Events as text for people: a line for each, or several for an event with output.

use std::fmt::Write as _;

use egress::{EgressEvent, Verdict};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::event::{CallStatus, Event, EventBody, FileChange, FilesChanged};
use crate::spec::Work;

/// Formats a Unix time in milliseconds as RFC 3339.
#[must_use]
pub fn format_time(time_ms: i64) -> String {
    OffsetDateTime::from_unix_timestamp_nanos(i128::from(time_ms) * 1_000_000)
        .ok()
        .and_then(|time| time.format(&Rfc3339).ok())
        .unwrap_or_default()
}

/// Appends the lines of an event, each with its time.
pub fn describe_event(event: &Event, text: &mut String) {
    let call = event.call.as_ref().map_or(String::new(), |call| {
        if call.attempt > 1 {
            format!("{} (attempt {}) ", call.id, call.attempt)
        } else {
            format!("{} ", call.id)
        }
    });
    let mut who = event.actor.as_ref().map_or(String::new(), |actor| format!("{actor}: "));
    let before = format!("{} {call}", format_time(event.time_ms));
    // The time is formatted once, because an event may have thousands of lines of output.
    for line in what_happened(&event.body).lines() {
        for part in [&before, &who, line, "\n"] {
            text.push_str(part);
        }
        who.clear();
    }
}

/// Prefixes each line of `text` with `mark`.
fn marked(text: &str, mark: &str) -> String {
    text.lines().flat_map(|line| [mark, line, "\n"]).collect()
}

/// Describes an event for people, in one or more lines.
#[must_use]
pub fn what_happened(body: &EventBody) -> String {
    match body {
        EventBody::JobCreated { spec } => match &spec.work {
            Work::Task(task) => format!("task: {task}"),
            Work::Steps(steps) => format!("job with {} steps", steps.len()),
            Work::Session { .. } => "sandbox".to_owned(),
        },
        EventBody::StateChanged { state, code, reason } => {
            let mut line = state.name().to_owned();
            if let Some(code) = code {
                let _ = write!(line, " ({code})");
            }
            if let Some(reason) = reason {
                let _ = write!(line, ": {reason}");
            }
            line
        }
        EventBody::ControlRequested { request } => {
            format!("asked to {}", format!("{request:?}").to_lowercase())
        }
        EventBody::IdleTimeoutChanged { idle_ms } => format!("ttl set to {} s", idle_ms / 1000),
        EventBody::TimeLimitChanged { before_ms, after_ms } => {
            format!("time limit changed from {} s to {} s", before_ms / 1000, after_ms / 1000)
        }
        EventBody::SandboxRequested { sandbox } => format!("creating sandbox {sandbox}"),
        EventBody::SandboxReady { unenforced, .. } => {
            let mut line = "sandbox ready".to_owned();
            for limit in unenforced {
                let _ = write!(line, "\nthe {} limit is not enforced: {}", limit.limit, limit.why);
            }
            line
        }
        EventBody::SandboxLost { detail, steps_kept, kernels, .. } => {
            let mut line = format!(
                "sandbox lost: {detail}; the workspace returns to its state after {steps_kept} steps"
            );
            for kernel in kernels {
                let _ = write!(line, "\nthe kernel {} was lost with it: {}", kernel.name, kernel.gone());
            }
            line
        }
        EventBody::SandboxPaused { code, reason, .. } => format!("sandbox paused ({code}): {reason}"),
        EventBody::SandboxResumed { .. } => "sandbox resumed".to_owned(),
        EventBody::CallStarted { tool, input, .. } => format!("{tool} {}", shorten(&input.to_string(), 2000)),
        EventBody::CallOutput { text, base64, stream, .. } => {
            let mark = if stream == "stderr" { "! " } else { "| " };
            if *base64 { format!("{mark}({} characters of base64)", text.len()) } else { marked(text, mark) }
        }
        EventBody::CallOutputDropped { bytes, .. } => format!("| ({bytes} bytes dropped)"),
        EventBody::CallDisplay { shown, .. } => {
            let mark = if shown.error.is_some() { "! " } else { "= " };
            marked(&shown.text, mark)
        }
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
            if let Some(note) = &end.note {
                let _ = write!(line, "\n{note}");
            }
            line
        }
        EventBody::Checkpoint { steps, bytes } => {
            format!("workspace saved after {steps} steps ({bytes} bytes)")
        }
        EventBody::Egress(event) => describe_connection(event),
        EventBody::ScreenCaptured { .. } => "last screenshot of the desktop stored".to_owned(),
        EventBody::ArtifactStored(artifact) => {
            format!("{} with {} files, {} bytes", artifact.name, artifact.files, artifact.bytes)
        }
        EventBody::Note { text } => text.clone(),
        EventBody::TurnStarted(turn) => {
            format!("turn {}: calling {} ({} tokens)", turn.turn, turn.model, turn.prompt_tokens)
        }
        EventBody::ModelAnswered(answered) => describe_answer(answered),
        EventBody::PlanChanged { plan, .. } => format!("plan:\n{}", plan.to_text()),
        EventBody::NoteSaved { name, text } => format!("note {name}: {text}"),
        EventBody::MessageReceived { text } => format!("message from a user: {text}"),
        EventBody::InputRequested(request) => format!("{} waits for a user: {}", request.id, request.text),
        EventBody::InputAnswered { id, answer } => match answer {
            Some(answer) => {
                format!("{id} was answered: {}", serde_json::to_string(answer).unwrap_or_default())
            }
            None => format!("{id}: not answered in time"),
        },
        EventBody::BudgetChanged { budget } => {
            format!("budget: {}", serde_json::to_string(budget).unwrap_or_default())
        }
        EventBody::AgentNotified(notice) => format!("notice to the agent: {}", shorten(&notice.text, 2000)),
        EventBody::ContextChanged(context::EntryBody::Window(window)) => format!(
            "context: prompts of at most {} tokens for {}, {} tools",
            window.budget_tokens,
            window.model,
            window.tools.len()
        ),
        EventBody::ContextChanged(entry) => {
            format!("context: {}", shorten(&serde_json::to_string(entry).unwrap_or_default(), 300))
        }
        EventBody::ModelAnswerLost(lost) => format!(
            "no answer from {}, but {} tokens in, {} out{}: {}",
            lost.model,
            lost.usage.prompt(),
            lost.usage.output,
            lost.cost.map_or(String::new(), |cost| format!(", {cost}")),
            shorten(&lost.problem, 300)
        ),
        EventBody::SummaryCreated(made) => describe_summary(made),
        EventBody::AgentFinished(finished) => format!("finished: {}", finished.summary),
        EventBody::TakenOver { by, .. } => format!("taken over by {by}"),
        EventBody::HandedBack { by } => format!("handed back by {by}"),
        EventBody::McpChanged(change) => change.describe(),
        EventBody::FilesChanged(changed) => describe_files(changed),
        EventBody::UserAction(action) => action.describe(),
        EventBody::AuditFileStored(stored) => format!("{}, {} bytes", stored.name, stored.bytes),
        EventBody::PayloadDropped { kind } => format!("{kind}: payload dropped by retention"),
    }
}

fn describe_answer(answered: &agent::ModelAnswered) -> String {
    let answer = &answered.answer;
    let recorded = if answered.recorded { " (recorded)" } else { "" };
    let cost = answer.cost.map_or(String::new(), |cost| format!(", {cost}"));
    let mut text = format!(
        "{}{recorded} answered after {} ms: {} tokens in, {} out{cost}",
        answer.model,
        answered.duration_ms,
        answer.usage.prompt(),
        answer.usage.output
    );
    let said = answer.text();
    if !said.trim().is_empty() {
        let _ = write!(text, "\n{}", said.trim());
    }
    text
}

fn describe_summary(made: &agent::SummaryCreated) -> String {
    let cost = made.cost.map_or(String::new(), |cost| format!(", {cost}"));
    let came = match (&made.summary, &made.problem) {
        (Some(_), _) => "summarized",
        (None, Some(problem)) => &format!("not summarized ({problem})"),
        (None, None) => "not summarized",
    };
    format!(
        "{} {came} by {}: {} tokens in, {} out{cost}",
        made.range,
        made.model,
        made.usage.prompt(),
        made.usage.output
    )
}

fn describe_files(changed: &FilesChanged) -> String {
    const MAX_NAMED: usize = 20;
    let name = |file: &FileChange| match file.is_removed {
        true => format!("{} (deleted)", file.path),
        false => format!("{} ({} bytes)", file.path, file.size),
    };
    let named: Vec<String> = changed.files.iter().take(MAX_NAMED).map(name).collect();
    let more = (changed.files.len().saturating_sub(MAX_NAMED) as u64).saturating_add(changed.left_out);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("files: {}{more}", named.join(", "))
}

fn describe_connection(event: &EgressEvent) -> String {
    let target = |connection: &egress::Connection| {
        format!("{} {}:{}", connection.method, connection.host, connection.port)
    };
    match event {
        EgressEvent::Opened(connection) => {
            format!("-> {} allowed by {}", target(connection), connection.rule)
        }
        EgressEvent::Closed(connection) => {
            let (up, down) = (connection.bytes_up, connection.bytes_down);
            format!("-> {} closed, {up} bytes up, {down} down", target(connection))
        }
        EgressEvent::Refused(connection) => {
            let how = if connection.verdict == Verdict::Failed { "failed" } else { "refused" };
            format!("-> {} {how}: {}", target(connection), connection.reason)
        }
        EgressEvent::Fetched(fetch) => {
            format!("-> {} {} answered {}, {} bytes", fetch.method, fetch.url, fetch.status, fetch.bytes)
        }
    }
}

fn shorten(text: &str, limit: usize) -> String {
    match text.char_indices().nth(limit) {
        Some((end, _)) => format!("{} ...", &text[..end]),
        None => text.to_owned(),
    }
}
