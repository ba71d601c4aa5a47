//! Builds the system prompt, and the status text at the end of each request, from the agent's state.

use std::fmt::Write as _;
use std::sync::Arc;

use model::{ModelRequest, Part, ResultPart, Role, ToolSpec};

use crate::conversation::Conversation;
use crate::messages::Messages;
use crate::settings::AgentSettings;
use crate::tool::Toolbox;

/// The model's role. Short, because small models read it too.
const SYSTEM: &str = "\
You are an agent that does a task for somebody, on a Linux computer of your own: a sandbox made for this task. Nobody \
sees your words while you work, so act: every answer calls at least one tool.

How to work:
- Files live in /workspace. What is there when you finish is what the person gets.
- The line that begins with [Status] comes from this program, not from the person.
";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Detail {
    Full,
    /// A short version for very small windows.
    Brief,
}

/// Working habits by the tool they are about. Lines without a tool go to every model with room for them.
const HABITS: [(Option<&str>, &str); 8] = [
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

pub(crate) fn system_prompt(
    settings: &AgentSettings,
    egress: &str,
    toolbox: &Toolbox,
    detail: Detail,
) -> String {
    let mut text = SYSTEM.to_owned();
    for (tool, habit) in HABITS {
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

pub(crate) fn request_of(messages: &Messages, system: &Arc<str>, tools: &Arc<[ToolSpec]>) -> ModelRequest {
    ModelRequest {
        system: Arc::clone(system),
        messages: messages.shared(),
        ends_with_status: messages.end_with_status(),
        tools: Arc::clone(tools),
        cache_after: messages.last_stable().into_iter().collect(),
        ..ModelRequest::default()
    }
}

/// The request as text, for `context.txt`.
#[must_use]
pub fn context_text(request: &ModelRequest) -> String {
    let mut text = format!("# system\n{}\n# tools\n", request.system);
    for tool in &*request.tools {
        let _ = writeln!(text, "{}", tool.name);
    }
    for message in &request.messages {
        let _ = writeln!(text, "\n# {}", if message.role == Role::User { "user" } else { "assistant" });
        for part in &message.parts {
            match part {
                Part::Text(words) => text += words,
                Part::Image(image) => {
                    let _ = write!(text, "[picture, {}, {} bytes]", image.media_type, image.bytes.len());
                }
                Part::Reasoning(reasoning) => {
                    let _ = write!(text, "[thinking] {}", reasoning.text);
                }
                Part::ToolCall(call) => {
                    let _ = write!(text, "[call {}] {} {}", call.id, call.name, call.arguments);
                }
                Part::ToolResult(result) => {
                    let _ = write!(text, "[result of {}]", result.id);
                    for part in &result.parts {
                        match part {
                            ResultPart::Text(words) => {
                                let _ = write!(text, "\n{words}");
                            }
                            ResultPart::Image(image) => {
                                let _ = write!(text, "\n[picture, {} bytes]", image.bytes.len());
                            }
                        }
                    }
                }
            }
            text.push('\n');
        }
    }
    text
}
