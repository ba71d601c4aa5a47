//! Names of tools that models know from elsewhere, and which of our tools does the same.

use model::ToolCall;

/// Our tools, each with the names that other programs use for it. Compared in lower case, without `_` and `-`.
const OTHER_NAMES: [(&str, &[&str]); 14] = [
    (
        "shell",
        &[
            "bash",
            "sh",
            "exec",
            "run",
            "terminal",
            "execute",
            "executebash",
            "runcommand",
            "runshell",
            "runterminalcmd",
            "runinterminal",
            "executecommand",
            "bashtool",
            "localshell",
            "containerexec",
            "execcommand",
            "shellcommand",
        ],
    ),
    (
        "read_file",
        &["cat", "open", "openfile", "view", "viewfile", "read", "readfile", "getfile", "readmanyfiles"],
    ),
    (
        "write_file",
        &["write", "writefile", "writetofile", "createfile", "create", "savefile", "newfile", "insertfile"],
    ),
    (
        "edit_file",
        &[
            "edit",
            "editfile",
            "strreplace",
            "replace",
            "replaceinfile",
            "strreplaceeditor",
            "strreplacebasededittool",
            "multiedit",
            "searchreplace",
            "applyedit",
            "insert",
        ],
    ),
    (
        "list_files",
        &["ls", "dir", "list", "listdir", "listdirectory", "listfiles", "tree", "glob", "findfiles"],
    ),
    (
        "search_files",
        &[
            "grep",
            "search",
            "rg",
            "find",
            "ripgrep",
            "greptool",
            "grepsearch",
            "searchfilecontent",
            "codebasesearch",
        ],
    ),
    (
        "finish",
        &[
            "done",
            "submit",
            "complete",
            "end",
            "finalanswer",
            "attemptcompletion",
            "taskdone",
            "exit",
            "stop",
        ],
    ),
    (
        "plan",
        &[
            "todowrite",
            "todo",
            "todos",
            "updateplan",
            "writetodos",
            "managetodolist",
            "tasktracker",
            "todoread",
        ],
    ),
    ("ask_user", &["ask", "question", "askfollowupquestion", "askhuman", "messageaskuser"]),
    ("apply_patch", &["patch", "applydiff", "applypatch", "diff"]),
    ("http_request", &["fetch", "curl", "http", "webfetch", "request", "wget"]),
    ("gui", &["computer", "click", "mouse", "desktop", "computeruse", "keyboard"]),
    ("browser", &["web", "navigate", "chrome", "browseraction", "browsernavigate", "openurl"]),
    (
        "python",
        &[
            "ipython",
            "executeipythoncell",
            "runpython",
            "pythonrepl",
            "jupyter",
            "notebook",
            "codeinterpreter",
            "runcode",
        ],
    ),
];

/// Our tool for a call of a tool that does not exist.
pub(super) fn meant_tool(call: &ToolCall) -> Option<&'static str> {
    let letters = |name: &str| name.to_lowercase().replace(['_', '-', '.', ' '], "");
    let name = letters(&call.name);
    let (meant, _) =
        OTHER_NAMES.iter().find(|(own, others)| letters(own) == name || others.contains(&name.as_str()))?;
    // One editor with several commands is several tools here.
    match call.arguments["command"].as_str() {
        Some("view") if *meant == "edit_file" => Some("read_file"),
        Some("create") if *meant == "edit_file" => Some("write_file"),
        _ => Some(meant),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn meant(name: &str, arguments: serde_json::Value) -> Option<&'static str> {
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
            assert_eq!(meant(name, json!({})), Some(wanted), "{name}");
        }
        assert_eq!(meant("str_replace_editor", json!({"command": "view"})), Some("read_file"));
        assert_eq!(meant("str_replace_editor", json!({"command": "create"})), Some("write_file"));
        assert_eq!(meant("fly", json!({})), None);
    }
}
