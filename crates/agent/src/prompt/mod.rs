//! Prompts: the window that the model offers, the system prompt and the tools that fit into it, the messages and the
//! status text.

mod clock;
mod external_tools;
mod instructions;
mod messages;
mod request;
mod window;

pub(crate) use clock::clock_text;
pub(crate) use external_tools::fitting_external_tools;
pub(crate) use instructions::{StatusInputs, process_line, status_text};
pub(crate) use messages::Messages;
pub use request::context_text;
pub(crate) use request::request_of;
#[cfg(test)]
pub(crate) use window::tool_tokens;
pub(crate) use window::{
    FixedPart, PromptInputs, PromptRoom, fit, has_history_tools, is_weak, keep, keep_weak_model_tools,
    specs_as_json, window_event,
};
