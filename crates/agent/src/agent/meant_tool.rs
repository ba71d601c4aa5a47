//! Which of our tools does what a model means by the name of another program's tool.

use std::sync::Arc;

use model::ToolCall;

use crate::tools::{AnyTool, standard};

/// Our tool for a call of a tool that does not exist.
pub(super) fn meant_tool(call: &ToolCall) -> Option<String> {
    let letters = |name: &str| name.to_lowercase().replace(['_', '-', '.', ' '], "");
    let name = letters(&call.name);
    let tools = standard();
    let means = |tool: &&Arc<dyn AnyTool>| {
        letters(tool.name()) == name || tool.role().other_names.contains(&name.as_str())
    };
    let meant = tools.iter().find(means)?.name();
    // One editor with several commands is several tools here.
    let meant = match call.arguments["command"].as_str() {
        Some("view") if meant == "edit_file" => "read_file",
        Some("create") if meant == "edit_file" => "write_file",
        _ => meant,
    };
    Some(meant.to_owned())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn meant(name: &str, arguments: serde_json::Value) -> Option<String> {
        meant_tool(&ToolCall { id: "c1".into(), name: name.into(), arguments, opaque: None })
    }

    #[test]
    fn names_of_other_programs_lead_to_our_tools() {
        for (name, wanted) in [
            ("bash", "shell"),
            ("execute_bash", "shell"),
            ("Bash", "shell"),
            ("str_replace_editor", "edit_file"),
            ("str_replace_based_edit_tool", "edit_file"),
            ("todo_write", "plan"),
            ("TodoWrite", "plan"),
            ("readFile", "read_file"),
            ("execute_ipython_cell", "python"),
        ] {
            assert_eq!(meant(name, json!({})).as_deref(), Some(wanted), "{name}");
        }
        let edit = |command: &str| meant("str_replace_editor", json!({ "command": command }));
        assert_eq!(edit("view").as_deref(), Some("read_file"));
        assert_eq!(edit("create").as_deref(), Some("write_file"));
        assert_eq!(meant("fly", json!({})), None);
    }
}
