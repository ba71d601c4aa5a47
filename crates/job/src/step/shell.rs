//! `shell`: runs a command line.

use context::ToolEffect;
use protocol::Program;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use super::input::{StepCall, StepInput};
use crate::invalid::{InvalidField, invalid};
use crate::json::keywords::command_line;

/// Runs a command line with bash in `/workspace`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ShellInput {
    /// The command line.
    pub command: String,
}

impl StepInput for ShellInput {
    const EFFECT: ToolEffect = ToolEffect::Anything;

    fn call(&self) -> Result<StepCall<'_>, InvalidField> {
        if self.command.trim().is_empty() {
            return Err(invalid("command", "is empty"));
        }
        if self.command.contains('\0') {
            return Err(invalid("command", "has a NUL character"));
        }
        Ok(StepCall::Process(Program::Shell(self.command.clone())))
    }

    fn limits() -> Vec<(&'static str, Value)> {
        vec![("command", command_line())]
    }
}
