//! Tools: the interface between the loop and a tool, and the built-in tools.
//!
//! [`Tool`] is a tool with typed input, [`AnyTool`] is what the loop sees, a [`Toolbox`] holds the tools of a job.

mod builtin;
mod data_header;
mod external;
mod input_schema;
mod role;
mod short_spec;
mod tool;
mod toolbox;

pub(crate) use builtin::{
    APPROVAL_TIMEOUT_MS, UNREAD, command_of, is_generated, is_poll, request_id, role_of, typed_line,
    unlisted_folders,
};
pub use builtin::{standard, step_of};
pub use role::{Importance, ToolRole};
pub use tool::{AnyTool, CallContext, CallStart, EndedCall, Tool, ToolFlow, ToolOutput};
pub use toolbox::Toolbox;
