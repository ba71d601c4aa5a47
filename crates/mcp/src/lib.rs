//! MCP servers give an agent additional tools. This crate defines servers ([`ServerSpec`]), connects to them
//! ([`Session`], over the standard input and output of a process or over HTTP), and translates their tools and
//! results for an agent.
//!
//! It does not start or supervise processes; the owner of a job's sandbox does. HTTP requests go through the job's
//! egress proxy, so that its policy applies.

mod error;
mod http;
mod library_errors;
mod outcome;
mod schema;
mod session;
mod spec;
mod stdio;
mod tool_list;

pub use error::McpError;
pub use outcome::ToolOutcome;
pub use session::Session;
pub use spec::{Configured, Headers, InvalidServer, NewServer, Reach, ServerChoice, ServerSpec, check_name};
pub use stdio::{Line, LineError, LineTransport, OutgoingLine, RecoveredAnswers};
pub use tool_list::{ListedTool, ToolList, public_name};
