//! What a step does, as the request that carries it out. A step is converted once, when it is about to run.

use job::{BrowserInput, GuiInput, InvalidField, StepTool, parse_mode, workspace_path};
use protocol::{FileOperation, GuiAction, Program};

use super::cells::{Language, program_of_code};
use super::desktop_script::{script_command, script_text};

/// Maximum number of bytes that a `read_file` step shows.
const MAX_READ_BYTES: u64 = 1024 * 1024;
/// Maximum number of entries that a `list_files` step shows.
const MAX_LISTED: u32 = 10_000;

#[derive(Debug, PartialEq)]
pub(super) enum StepCall<'a> {
    Process(StepProgram),
    Cell(CellCode),
    File(FileOperation),
    Action(&'a GuiAction),
    /// A process that needs the desktop.
    Script(StepProgram),
    Browser(&'a BrowserInput),
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct StepProgram {
    pub(super) program: Program,
    pub(super) stdin: Option<String>,
}

/// Code for a live kernel.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct CellCode {
    pub(super) language: Language,
    pub(super) code: String,
}

impl CellCode {
    pub(super) fn program(&self) -> StepProgram {
        StepProgram { program: program_of_code(&self.language, &self.code), stdin: None }
    }
}

impl<'a> StepCall<'a> {
    /// Converts the tool and input of a step.
    ///
    /// # Errors
    /// A field is invalid. Accepted steps have none, so the log is one of another version of the server.
    pub(super) fn of(tool: &'a StepTool) -> Result<Self, InvalidField> {
        let cell = |language, code: &str| Self::Cell(CellCode { language, code: code.to_owned() });
        Ok(match tool {
            StepTool::Shell { command } => {
                Self::Process(StepProgram { program: Program::Shell(command.clone()), stdin: None })
            }
            StepTool::Python { code } => cell(Language::Python, code),
            StepTool::Typescript { code } => cell(Language::Typescript, code),
            StepTool::Code { kernel, code } => cell(Language::Kernel(kernel.clone()), code),
            StepTool::WriteFile { path, content, mode } => Self::File(FileOperation::Write {
                path: relative("path", path)?,
                content: content.clone(),
                mode: mode.as_deref().map(parse_mode).transpose()?,
            }),
            StepTool::ReadFile { path } => Self::File(FileOperation::Read {
                path: relative("path", path)?,
                offset: 0,
                limit_bytes: MAX_READ_BYTES,
            }),
            StepTool::EditFile { path, old, new } => Self::File(FileOperation::Edit {
                path: relative("path", path)?,
                old: old.clone(),
                new: new.clone(),
            }),
            StepTool::MoveFile { from, to } => {
                Self::File(FileOperation::Move { from: relative("from", from)?, to: relative("to", to)? })
            }
            StepTool::DeleteFile { path, recursive } => {
                Self::File(FileOperation::Remove { path: relative("path", path)?, recursive: *recursive })
            }
            StepTool::ListFiles { path, depth } => Self::File(FileOperation::List {
                // Without a path, the workspace itself.
                path: if path.is_empty() { String::new() } else { relative("path", path)? },
                depth: *depth,
                limit: MAX_LISTED,
                skip: Vec::new(),
            }),
            StepTool::Gui(GuiInput::Action(action)) => Self::Action(action),
            StepTool::Gui(GuiInput::Script { script }) => Self::Script(StepProgram {
                program: Program::Arguments(script_command()),
                stdin: Some(script_text(script)),
            }),
            StepTool::Browser(input) => Self::Browser(input),
        })
    }
}

/// The path relative to the workspace.
fn relative(field: &str, path: &str) -> Result<String, InvalidField> {
    workspace_path(path).map_err(|problem| InvalidField { field: field.into(), problem })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tool(json: serde_json::Value) -> StepTool {
        serde_json::from_value(json).unwrap()
    }

    #[test]
    fn paths_and_modes_of_steps_are_parsed() {
        let write = tool(serde_json::json!({
            "tool": "write_file", "path": "/workspace/./a//b", "content": "text", "mode": "755"
        }));
        let expected = FileOperation::Write { path: "a/b".into(), content: "text".into(), mode: Some(0o755) };
        assert_eq!(StepCall::of(&write), Ok(StepCall::File(expected)));
        let list = tool(serde_json::json!({"tool": "list_files"}));
        let Ok(StepCall::File(FileOperation::List { path, depth: 1, .. })) = StepCall::of(&list) else {
            panic!("it is a listing")
        };
        assert_eq!(path, "");
    }

    #[test]
    fn invalid_fields_in_the_log_of_another_version_are_reported() {
        for (json, field) in [
            (serde_json::json!({"tool": "read_file", "path": "../secret"}), "path"),
            (serde_json::json!({"tool": "move_file", "from": "a", "to": "/etc/b"}), "to"),
            (serde_json::json!({"tool": "write_file", "path": "a", "content": "", "mode": "9"}), "mode"),
        ] {
            assert_eq!(StepCall::of(&tool(json)).unwrap_err().field, field);
        }
    }

    #[test]
    fn scripts_are_read_from_stdin_and_cells_name_their_kernel() {
        let script = tool(serde_json::json!({"tool": "gui", "script": "key Return"}));
        let Ok(StepCall::Script(StepProgram { program, stdin })) = StepCall::of(&script) else {
            panic!("it is a script")
        };
        assert_eq!(program, Program::Arguments(script_command()));
        assert_eq!(stdin.as_deref(), Some("key Return\n"));
        let code = tool(serde_json::json!({"tool": "code", "kernel": "deno", "code": "1"}));
        let expected = CellCode { language: Language::Kernel("deno".into()), code: "1".into() };
        assert_eq!(StepCall::of(&code), Ok(StepCall::Cell(expected)));
    }
}
