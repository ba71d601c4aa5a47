//! What commands print: text, tables, JSON and errors, and the terminal they print to.

pub(crate) mod errors;
mod exit_code;
pub(crate) mod print_queue;
pub(crate) mod table;
pub(crate) mod terminal;
mod text;

pub(crate) use exit_code::{
    EXIT_CANCELLED, EXIT_COMMAND_ERROR, EXIT_DETACHED, EXIT_ERROR, EXIT_FAILED, exit_code_of,
};
pub(crate) use text::{duration_text, print, print_json, say, size_text, time_text, value_text};
