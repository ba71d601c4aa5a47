//! Tools: the interface between the loop and a tool, and the built-in tools.
//!
//! [`Tool`] is a tool with typed input, [`AnyTool`] is what the loop sees, a [`Toolbox`] holds the tools of a job.

mod builtin;
mod external;
mod input_schema;
mod short_spec;
mod tool;
mod toolbox;

pub(crate) use builtin::{APPROVAL_TIMEOUT_MS, command_of, is_generated, request_id, typed_line};
pub use builtin::{desktop_step, patch_step, standard};
pub use tool::{AnyTool, Begun, CallContext, Tool, ToolFlow, ToolOutput};
pub use toolbox::Toolbox;
