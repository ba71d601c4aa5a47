//! External tools, such as those of an MCP server. They may appear and disappear while the job runs. The host runs
//! them.

use model::ToolSpec;

/// What a tool call does to the job's state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// Only reads, so several calls may run in parallel.
    ReadOnly,
    /// Changes state. Calls run one after another, in the order of the model's answer.
    Changes,
}

#[derive(Debug, Clone, PartialEq)]
pub struct ExternalTool {
    pub spec: ToolSpec,
    pub effect: Effect,
}

/// The external tools that are available at this moment.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ExternalTools {
    /// Increases with every change.
    pub version: u64,
    /// Whether the job can have external tools at all.
    pub is_expected: bool,
    /// The tools, most important first.
    pub tools: Vec<ExternalTool>,
    /// What to tell the model about missing tools.
    pub notes: Vec<String>,
}
