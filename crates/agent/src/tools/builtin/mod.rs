//! The built-in tools, one file each, with specification and implementation side by side.
//!
//! [`standard`] lists them in prompt order, most important first: a model with a small window gets the first of them
//! that fit, and always those of [`Importance::Always`](crate::tools::Importance). A new tool needs a file, its `mod` line
//! and a line in that list, and its effect in `context::tool_effect`. Tools that only some images can run declare what they
//! need ([`Tool::needs`](crate::Tool::needs)).

mod apply_patch;
mod ask_user;
mod browser;
mod changed_region;
mod code;
mod edit_file;
mod finish;
mod gui;
mod history_read;
mod history_search;
mod http_request;
mod list_files;
mod notes;
mod patch;
mod plan;
mod process;
mod read_file;
mod screenshot;
mod search_files;
mod shell;
mod similar_text;
mod write_file;

pub(crate) use finish::UNREAD;
pub(crate) use list_files::{is_generated, unlisted_folders};

use std::sync::Arc;

use model::ToolCall;
use protocol::{FileError, FileErrorCode, WindowInfo};
use serde_json::Value;

use crate::command_rules::starts_shell;
use crate::conversation::{Conversation, PROCESS_TOOL, duration_note};
use crate::event::{ProcessState, ToolEnd, ToolStatus};
use crate::host::ExecReport;
use crate::tools::{AnyTool, CallContext, EndedCall, Tool as _, ToolRole};

/// How long a person may take to approve a command or a plan.
pub(crate) const APPROVAL_TIMEOUT_MS: i64 = 24 * 3600 * 1000;

/// All built-in tools. Of those with the same name, the first that the image can run counts.
#[must_use]
pub fn standard() -> Vec<Arc<dyn AnyTool>> {
    vec![
        Arc::new(shell::Shell),
        Arc::new(read_file::ReadFile),
        Arc::new(write_file::WriteFile),
        Arc::new(edit_file::EditFile),
        Arc::new(finish::Finish),
        Arc::new(plan::PlanTool),
        Arc::new(history_search::HistorySearch),
        Arc::new(history_read::HistoryRead),
        Arc::new(list_files::ListFiles),
        Arc::new(search_files::SearchFiles),
        Arc::new(process::Process),
        Arc::new(code::LivePython),
        Arc::new(code::Python),
        Arc::new(apply_patch::ApplyPatch),
        Arc::new(notes::Notes),
        Arc::new(ask_user::AskUser),
        Arc::new(http_request::HttpRequest),
        Arc::new(browser::Browser),
        Arc::new(screenshot::Screenshot),
        Arc::new(gui::Gui),
        Arc::new(code::TypeScript),
    ]
}

/// The names of all built-in tools.
pub(crate) fn builtin_names() -> Vec<String> {
    standard().iter().map(|tool| tool.name().to_owned()).collect()
}

/// The role of a built-in tool; that of an external tool is optional.
pub(crate) fn role_of(name: &str) -> ToolRole {
    standard().iter().find(|tool| tool.name() == name).map_or(ToolRole::OPTIONAL, |tool| tool.role())
}

/// Converts a call to the step of a job that has the same effect; `None` if there is none, and for invalid input.
#[must_use]
pub fn step_of(tool: &str, input: &Value, end: &EndedCall<'_>) -> Option<Value> {
    standard().iter().find(|known| known.name() == tool)?.step(input, end)
}

/// The command line of a call that runs one, parsed the same way as its tool does.
pub(crate) fn command_of(call: &ToolCall) -> Option<String> {
    (call.name == shell::Shell::NAME).then(|| shell::command_of(&call.arguments)).flatten()
}

/// The text that a call types into a running shell.
pub(crate) fn typed_line(call: &ToolCall, conversation: &Conversation) -> Option<String> {
    if call.name != process::Process::NAME {
        return None;
    }
    let (handle, text) = process::typed_of(&call.arguments)?;
    let process = conversation.processes().get(&handle)?;
    starts_shell(&process.command).then_some(text)
}

/// Whether a call only waits for a background process.
pub(crate) fn is_poll(call: &ToolCall) -> bool {
    call.name == process::Process::NAME && process::is_poll(&call.arguments)
}

pub(crate) fn request_id(conversation: &Conversation) -> String {
    format!("request-{}", conversation.request_count() + 1)
}

/// Converts a path to one relative to the workspace, as the guest expects it. `/workspace/a`, `/app/a`, `./a` and
/// `a` are the same.
fn workspace_path(path: &str) -> Result<String, String> {
    let trimmed = path.trim();
    let inside = ["/workspace", "/app"].iter().find_map(|root| {
        let rest = trimmed.strip_prefix(root)?;
        (rest.is_empty() || rest.starts_with('/')).then_some(rest)
    });
    let relative = match inside {
        Some(rest) => rest,
        None if trimmed.starts_with('/') => {
            return Err(format!(
                "`{path}` is outside of /workspace; file tools work there alone, use `shell` for other places"
            ));
        }
        None => trimmed,
    };
    if relative.contains('\0') {
        return Err("the path has a NUL character".into());
    }
    let parts: Vec<&str> = relative.split('/').filter(|part| !part.is_empty() && *part != ".").collect();
    if parts.contains(&"..") {
        return Err(format!("`{path}` has `..`; use a path relative to /workspace without it"));
    }
    Ok(parts.join("/"))
}

/// Like [`workspace_path`], but rejects the workspace itself.
fn file_path(path: &str) -> Result<String, String> {
    match workspace_path(path)? {
        clean if clean.is_empty() => Err(format!("`{path}` is the workspace itself; name a file in it")),
        clean => Ok(clean),
    }
}

/// Reports a failed file operation with advice for the next attempt.
fn file_error(tool: &str, error: &FileError, call: &CallContext<'_>) -> ToolEnd {
    let can_list = call.toolbox.find("list_files").is_some();
    let advice = match error.code {
        FileErrorCode::NotFound if can_list => ". `list_files` shows what is there",
        FileErrorCode::NotFound => ". `ls` in `shell` shows what is there",
        FileErrorCode::IsDirectory if can_list => ". Use `list_files` for a directory",
        FileErrorCode::IsDirectory => ". Use `ls` in `shell` for a directory",
        FileErrorCode::NotText => ". It is not text; use `shell` with a program that knows the format",
        FileErrorCode::DiskFull => ". Remove what is not needed",
        _ => "",
    };
    ToolEnd::failed(format!("{tool}: {}{advice}", error.message))
}

/// Lists the desktop's windows as text.
fn windows_text(windows: &[WindowInfo]) -> String {
    if windows.is_empty() {
        return "no window is open".into();
    }
    let line = |window: &WindowInfo| {
        let title: String = window.title.chars().take(200).collect();
        let active = if window.is_active { ", has the keyboard" } else { "" };
        let WindowInfo { number, x, y, width, height, .. } = window;
        format!("window {number} \"{title}\" at {x},{y}, {width}x{height}{active}")
    };
    windows.iter().take(50).map(line).collect::<Vec<_>>().join("\n")
}

/// Converts the report of a process to a tool result.
fn process_result(report: ExecReport, handle: &str, command: &str, call: &CallContext<'_>) -> ToolEnd {
    let mut text = report.output;
    if !text.is_empty() && !text.ends_with('\n') {
        text.push('\n');
    }
    let process = ProcessState {
        handle: handle.to_owned(),
        next_chunk: report.next_chunk,
        is_running: report.end.is_none(),
        command: command.to_owned(),
    };
    match &report.end {
        None => {
            let advice = if call.toolbox.find(PROCESS_TOOL).is_some() {
                format!("handle `{handle}`. Use `process` to wait for more, type into it or end it")
            } else {
                "it goes on in the background".to_owned()
            };
            text += &format!("[still running after {:.1} s; {advice}]", seconds(report.duration_ms));
            ToolEnd { text, process: Some(process), ..ToolEnd::default() }
        }
        Some(end) => {
            if text.is_empty() {
                text += "(no output)\n";
            }
            // A process that is not known any more has no exit code, and nobody knows how long it ran.
            let duration = end.exit_code.map_or(String::new(), |_| duration_note(report.duration_ms));
            text += &format!("[{}{duration}]", end.problem.as_deref().unwrap_or("exit code 0"));
            let status = if end.problem.is_none() { ToolStatus::Done } else { ToolStatus::Failed };
            ToolEnd { status, text, exit_code: end.exit_code, process: Some(process), ..ToolEnd::default() }
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "shown with one digit")]
fn seconds(milliseconds: u64) -> f64 {
    milliseconds as f64 / 1000.0
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::json;

    use super::*;

    #[test]
    fn effect_of_every_tool_is_known() {
        let tools: BTreeSet<String> = builtin_names().into_iter().collect();
        let known: BTreeSet<String> = context::tools_with_effects().map(ToOwned::to_owned).collect();
        let differ: Vec<&String> = tools.symmetric_difference(&known).collect();
        assert!(differ.is_empty(), "correct context/src/tool_effect.rs: {differ:?}");
    }

    #[test]
    fn names_from_elsewhere_mean_one_tool() {
        let tools = standard();
        let mut owners = std::collections::HashMap::new();
        for tool in &tools {
            for other in tool.role().other_names {
                let owner = owners.entry(*other).or_insert_with(|| tool.name());
                assert_eq!(*owner, tool.name(), "{other}");
                let is_plain = other.bytes().all(|byte| byte.is_ascii_lowercase());
                assert!(is_plain && !tools.iter().any(|tool| tool.name() == *other), "{other}");
            }
        }
    }

    #[test]
    fn desktop_calls_convert_to_job_steps() {
        let end = EndedCall::default();
        let click = json!({"action": "click", "x": 1, "y": 2, "screenshot": true, "text": "no"});
        let step = json!({"tool": "gui", "action": "click", "x": 1, "y": 2, "button": "left"});
        assert_eq!(step_of("gui", &click, &end), Some(step));
        let open = json!({"action": "open", "url": "http://localhost/", "save_as": "x.png"});
        let step = json!({"tool": "browser", "action": "open", "url": "http://localhost/"});
        assert_eq!(step_of("browser", &open, &end), Some(step));
        assert_eq!(
            step_of("screenshot", &json!({}), &end),
            Some(json!({"tool": "gui", "action": "screenshot"}))
        );
        assert_eq!(step_of("gui", &json!({"action": "fly"}), &end), None);
        assert_eq!(step_of("shell", &json!({}), &end), None);
        assert_eq!(step_of("read_file", &json!({"path": "a"}), &end), None);
    }

    #[test]
    fn workspace_paths_accept_common_forms() {
        for path in ["a/b", "/workspace/a/b", "/app/a//b", "./a/./b", " a/b "] {
            assert_eq!(file_path(path).unwrap(), "a/b", "{path}");
        }
        for path in ["/etc/passwd", "../x", "", "/workspace", "/workspaces/x"] {
            assert!(file_path(path).is_err(), "{path}");
        }
        assert_eq!(workspace_path("/workspace").unwrap(), "");
    }
}
