//! MCP servers give an agent further tools. This crate knows what a server may be ([`ServerSpec`]), how it is spoken to
//! ([`Session`], over the lines of a process or over HTTP), and what its tools and answers mean for an agent.
//!
//! It starts nothing and keeps nothing alive: whoever has the sandbox of a job does. HTTP goes out through the job's
//! egress proxy, so that its policy holds.

mod error;
mod http;
mod lines;
mod offer;
mod outcome;
mod schema;
mod session;
mod spec;

pub use error::McpError;
pub use lines::{Line, LineError, LineSender, Lines, Recovered};
pub use offer::{Offer, OfferedTool, public_name};
pub use outcome::ToolOutcome;
pub use session::Session;
pub use spec::{Configured, Headers, InvalidServer, NewServer, Reach, ServerChoice, ServerSpec, check_name};
