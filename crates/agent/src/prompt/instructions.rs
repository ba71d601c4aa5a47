//! The system prompt, and the status text at the end of each request.

use std::fmt::Write as _;

use crate::conversation::Conversation;
use crate::settings::AgentSettings;
use crate::tools::Toolbox;

/// The model's role. Short, because small models read it too.
const SYSTEM: &str = "\
You are an agent that does a task for somebody, on a Linux computer of your own: a sandbox made for this task. Nobody \
sees your words while you work, so act: every answer calls at least one tool.

How to work:
- Files live in /workspace. What is there when you finish is what the person gets.
- The line that begins with [Status] comes from this program, not from the person.
";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Detail {
    Full,
    /// A short version for very small windows.
    Short,
}

/// Working habits by the tool they are about. Lines without a tool go to every model with room for them.
const WORKING_HABITS: [(Option<&str>, &str); 8] = [
    (Some("plan"), "Start with `plan`: a few short points. Keep it current as you go on: mark what is done."),
    (None, "Look before you change: list and read files, then edit. Prefer small edits to rewriting a file."),
    (
        Some("shell"),
        "Check what you did by running it: tests, a build, the program itself. Read errors and fix their cause.",
    ),
    (
        Some("process"),
        "A command that does not end by itself, such as a server, is left running after its wait; you get a handle for \
         `process`.",
    ),
    (None, "Several calls that only look at things may be in one answer."),
    (
        Some("history_read"),
        "What is left out of a prompt is named, such as `recall e12`: `history_read` with that event shows it.",
    ),
    (Some("notes"), "Notes that you will need later belong in `notes`."),
    (
        Some("finish"),
        "When the task is done and checked, call `finish` with a summary for the person. If it cannot be done, call \
         `finish` with outcome `failed` and say why. Only ask the person when you cannot go on without an answer.",
    ),
];

/// Follows the status for a small model, which otherwise repeats the same work because nothing tells it that it may
/// finish.
pub(crate) const WEAK_STATUS: &str = "\nDo the next thing that the task still needs, with a tool. If nothing is missing any more, call `finish`.";

pub(super) fn system_prompt(
    settings: &AgentSettings,
    egress: &str,
    toolbox: &Toolbox,
    detail: Detail,
) -> String {
    let mut text = SYSTEM.to_owned();
    for (tool, habit) in WORKING_HABITS {
        if tool.map_or(detail == Detail::Full, |name| toolbox.find(name).is_some()) {
            let _ = writeln!(text, "- {habit}");
        }
    }
    let _ = writeln!(text, "\nThe network: {egress}");
    if settings.approve_plan {
        text += "A person accepts the plan first: until then only look, do not change anything.\n";
    }
    if !settings.acceptance.is_empty() {
        text += "These commands must succeed before `finish` counts; run them yourself first:\n";
        for command in &settings.acceptance {
            let _ = writeln!(text, "  {command}");
        }
    }
    if toolbox.find("python").is_some() {
        text += "Use `python` for calculations and for handling data.\n";
    }
    text
}

/// The text at the end of the prompt, rebuilt in every turn.
pub(crate) fn status_text(
    conversation: &Conversation,
    settings: &AgentSettings,
    worked_s: u64,
    time: &str,
    toolbox: &Toolbox,
    missing_tools: &[String],
) -> String {
    let mut text = format!("[Status] {time}.");
    let left = conversation.budget().left_text(conversation.spent(), worked_s);
    if !left.is_empty() {
        let _ = write!(text, " Left: {left}.");
    }
    for process in conversation.processes().values() {
        let command: String = process.command.chars().take(80).collect();
        let _ = write!(text, "\nStill running: {} ({command})", process.handle);
    }
    let is_nearly_used = conversation.budget().is_nearly_used(conversation.spent());
    if is_nearly_used {
        text +=
            "\nFew turns are left: call `finish` now, or save your work and say in `finish` what is missing.";
    }
    match conversation.plan() {
        None if is_nearly_used => {}
        None if toolbox.find("plan").is_some() => text += "\nThere is no plan yet: call `plan` now.",
        Some(_) if settings.approve_plan && !conversation.is_plan_accepted() => {
            text += "\nThe plan is not accepted yet: change it with `plan`.";
        }
        None | Some(_) => {}
    }
    if !conversation.last_had_calls() {
        text += "\nYour last answer called no tool, so nothing happened. Call a tool now; `finish` when all is done.";
    }
    for missing in missing_tools {
        let _ = write!(text, "\nTools: {missing}.");
    }
    for notice in conversation.notices() {
        let _ = write!(text, "\nTake care: {notice}.");
    }
    text
}
