//! What calls of our tools do to the workspace, by the name of the tool. Summaries, the scan for changed files and the
//! export of steps depend on it.

/// What a call does to the files of the workspace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ToolEffect {
    /// Has nothing to do with the workspace.
    None,
    Reads,
    /// Writes the files that its arguments name; its arguments or its result say what.
    LogsWrites,
    /// Writes the files that its arguments name; only a scan shows what they contain.
    Writes,
    /// May change any file, as a command does.
    Anything,
}

/// The tools of steps and agents. Tests compare them with the tools that exist.
const EFFECTS: [(&str, ToolEffect); 23] = [
    ("shell", ToolEffect::Anything),
    ("process", ToolEffect::Anything),
    ("python", ToolEffect::Anything),
    ("typescript", ToolEffect::Anything),
    ("code", ToolEffect::Anything),
    ("read_file", ToolEffect::Reads),
    ("list_files", ToolEffect::Reads),
    ("search_files", ToolEffect::Reads),
    ("write_file", ToolEffect::LogsWrites),
    ("edit_file", ToolEffect::LogsWrites),
    ("move_file", ToolEffect::LogsWrites),
    ("delete_file", ToolEffect::LogsWrites),
    ("apply_patch", ToolEffect::Writes),
    ("http_request", ToolEffect::None),
    ("browser", ToolEffect::Anything),
    ("gui", ToolEffect::Anything),
    ("screenshot", ToolEffect::Reads),
    ("history_search", ToolEffect::Reads),
    ("history_read", ToolEffect::Reads),
    ("plan", ToolEffect::None),
    ("notes", ToolEffect::None),
    ("ask_user", ToolEffect::None),
    ("finish", ToolEffect::None),
];

/// The effect of a tool; `None` for tools of MCP servers and other programs.
#[must_use]
pub fn tool_effect(name: &str) -> Option<ToolEffect> {
    EFFECTS.iter().find(|(tool, _)| *tool == name).map(|(_, effect)| *effect)
}

/// The names of all tools of steps and agents.
pub fn tools_with_effects() -> impl Iterator<Item = &'static str> {
    EFFECTS.iter().map(|(name, _)| *name)
}
