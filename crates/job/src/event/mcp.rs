//! The state of a job's MCP servers, as logged and as shown by the API.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// An MCP server has come, gone, or changed its tools.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct McpChange {
    /// Which.
    pub server: String,
    /// Its state.
    pub state: McpState,
    /// Counts its processes in the sandbox; 0 for a server outside.
    #[serde(default)]
    pub process: u32,
    /// The tools that the agent has of it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tools: Vec<String>,
    /// Tools that it lists and that cannot be used, with the reason.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left_out: Vec<String>,
    /// Why it is not connected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// The state of an MCP server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum McpState {
    /// It is about to be started.
    Starting,
    /// Its tools can be used.
    Connected,
    /// It does not answer; it is tried again.
    Failed,
    /// It does not answer; it is not tried again.
    GivenUp,
}

pub type McpServers = BTreeMap<String, McpChange>;

impl McpChange {
    /// A one-line description for people.
    #[must_use]
    pub fn describe(&self) -> String {
        let name = &self.server;
        match self.state {
            McpState::Starting => format!("mcp server {name} is being started"),
            McpState::Connected => {
                let left_out = if self.left_out.is_empty() {
                    String::new()
                } else {
                    format!(", left out: {}", self.left_out.join("; "))
                };
                format!("mcp server {name} is connected, {} tools{left_out}", self.tools.len())
            }
            McpState::Failed | McpState::GivenUp => {
                format!("mcp server {name}: {}", self.reason.as_deref().unwrap_or("it does not answer"))
            }
        }
    }
}
