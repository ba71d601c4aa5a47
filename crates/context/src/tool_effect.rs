//! What calls of the agent's tools do to the workspace, by the name of the tool: the only place that says it. Summaries,
//! the scan for changed files, parallel calls and the export of steps depend on it.

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
    /// Acts on the screen; the programs there may change any file.
    Screen,
    /// Runs a command or code, which may change any file.
    Anything,
}

/// The tools of agents. A test of `agent` compares them with the tools that exist. Tools of steps have their effect in
/// their own file, in the crate `job`.
const EFFECTS: [(&str, ToolEffect); 20] = [
    ("shell", ToolEffect::Anything),
    ("process", ToolEffect::Anything),
    ("python", ToolEffect::Anything),
    ("typescript", ToolEffect::Anything),
    ("read_file", ToolEffect::Reads),
    ("list_files", ToolEffect::Reads),
    ("search_files", ToolEffect::Reads),
    ("write_file", ToolEffect::LogsWrites),
    ("edit_file", ToolEffect::LogsWrites),
    ("apply_patch", ToolEffect::Writes),
    ("http_request", ToolEffect::None),
    ("browser", ToolEffect::Screen),
    ("gui", ToolEffect::Screen),
    ("screenshot", ToolEffect::Reads),
    ("history_search", ToolEffect::Reads),
    ("history_read", ToolEffect::Reads),
    ("plan", ToolEffect::None),
    ("notes", ToolEffect::None),
    ("ask_user", ToolEffect::None),
    ("finish", ToolEffect::None),
];

/// The effect of a tool of the agent; `None` for tools of MCP servers and other programs.
#[must_use]
pub fn tool_effect(name: &str) -> Option<ToolEffect> {
    EFFECTS.iter().find(|(tool, _)| *tool == name).map(|(_, effect)| *effect)
}

/// The names of all tools of agents.
pub fn tools_with_effects() -> impl Iterator<Item = &'static str> {
    EFFECTS.iter().map(|(name, _)| *name)
}
