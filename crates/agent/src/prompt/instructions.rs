//! The system prompt, and the status text at the end of each request.

use std::fmt::Write as _;

use context::truncate::first_characters;

use crate::conversation::Conversation;
use crate::event::ProcessState;
use crate::settings::AgentSettings;
use crate::tools::Toolbox;

/// The model's role. Short, because small models read it too.
const ROLE: &str = include_str!("texts/role.md");
/// Working habits, one line each, after the tool they are about in braces. Lines without a tool go to every model with
/// room for them.
const HABITS: &str = include_str!("texts/habits.md");

/// How much of a command line the status shows, in characters.
const MAX_COMMAND: usize = 80;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Detail {
    Full,
    /// A short version for very small windows.
    Short,
}

/// In the status for a small model, which otherwise repeats the same work because nothing tells it that it may
/// finish.
const WEAK_STATUS: &str =
    "\nDo the next thing that the task still needs, with a tool. If nothing is missing, call `finish`.";

pub(super) fn system_prompt(
    settings: &AgentSettings,
    egress: &str,
    toolbox: &Toolbox,
    detail: Detail,
) -> String {
    let mut text = ROLE.to_owned();
    for (tool, habit) in HABITS.lines().filter_map(habit_of) {
        if tool.map_or(detail == Detail::Full, |name| toolbox.find(name).is_some()) {
            let _ = writeln!(text, "- {habit}");
        }
    }
    let _ = writeln!(text, "\nThe network: {egress}");
    if settings.approve_plan {
        text += "A user must accept the plan first. Until then, read only: do not change anything.\n";
    }
    if !settings.acceptance.is_empty() {
        text += "These commands must succeed before `finish` is accepted; run them yourself first:\n";
        for command in &settings.acceptance {
            let _ = writeln!(text, "  {command}");
        }
    }
    text
}

/// The tool that a habit is about, if any, and the habit.
fn habit_of(line: &str) -> Option<(Option<&str>, &str)> {
    let (tool, habit) = line.strip_prefix('{')?.split_once("} ")?;
    Some((Some(tool).filter(|tool| !tool.is_empty()), habit))
}

/// What the status text is built from.
pub(crate) struct StatusInputs<'a> {
    pub(crate) conversation: &'a Conversation,
    pub(crate) settings: &'a AgentSettings,
    /// Seconds that the job has worked.
    pub(crate) worked_s: u64,
    /// The current time, for the model.
    pub(crate) time: &'a str,
    pub(crate) toolbox: &'a Toolbox,
    /// Whether the model is a small one that gets few tools.
    pub(crate) is_weak: bool,
    /// What to tell about external tools that are missing.
    pub(crate) missing_tools: &'a [String],
    /// Lines about background processes.
    pub(crate) processes: &'a [String],
}

/// A status line about a background process. `end` says how it has ended.
pub(crate) fn process_line(process: &ProcessState, end: Option<&str>, can_ask: bool) -> String {
    let command = process.command.lines().next().unwrap_or_default();
    let mut shown = first_characters(command, MAX_COMMAND).to_owned();
    if shown.len() < process.command.len() {
        shown.push('…');
    }
    let handle = &process.handle;
    match end {
        None => format!("Still running: {handle} ({shown})"),
        Some(end) if can_ask => {
            format!(
                "Ended: {handle} ({shown}), {end}. `process` with this handle shows the rest of its output."
            )
        }
        Some(end) => format!("Ended: {handle} ({shown}), {end}."),
    }
}

/// The text at the end of the prompt, rebuilt in every turn.
pub(crate) fn status_text(inputs: &StatusInputs<'_>) -> String {
    let StatusInputs { conversation, settings, toolbox, .. } = inputs;
    let mut text = format!("[Status] {}.", inputs.time);
    let left = conversation.budget().left_text(conversation.spent(), inputs.worked_s);
    if !left.is_empty() {
        let _ = write!(text, " Left: {left}.");
    }
    for line in inputs.processes {
        let _ = write!(text, "\n{line}");
    }
    let is_nearly_used = conversation.budget().is_nearly_used(conversation.spent(), inputs.worked_s);
    if is_nearly_used {
        text += "\nThe budget is nearly used: call `finish` now, or save your work and say in `finish` what is missing.";
    } else if inputs.is_weak {
        text += WEAK_STATUS;
    }
    match conversation.plan() {
        None if is_nearly_used => {}
        // A small model that is reminded in every turn writes one plan after another.
        None if inputs.is_weak && conversation.turn() > 0 => {}
        None if toolbox.find("plan").is_some() => text += "\nThere is no plan yet: call `plan` now.",
        Some(_) if settings.approve_plan && !conversation.is_plan_accepted() => {
            text += "\nThe plan is not accepted yet: change it with `plan`.";
        }
        None | Some(_) => {}
    }
    for missing in inputs.missing_tools {
        let _ = write!(text, "\nTools: {missing}.");
    }
    for notice in conversation.notices() {
        let _ = write!(text, "\nTake care: {notice}.");
    }
    text
}
