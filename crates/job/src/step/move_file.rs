//! `move_file`: moves a file or directory.

use context::ToolEffect;
use protocol::FileOperation;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use super::input::{StepCall, StepInput, path_of};
use crate::invalid::InvalidField;
use crate::json::keywords::workspace_path;

/// Moves a file or directory; refused when the target exists.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct MoveFileInput {
    /// From.
    pub from: String,
    /// To.
    pub to: String,
}

impl StepInput for MoveFileInput {
    const EFFECT: ToolEffect = ToolEffect::LogsWrites;

    fn call(&self) -> Result<StepCall<'_>, InvalidField> {
        let (from, to) = (path_of("from", &self.from)?, path_of("to", &self.to)?);
        Ok(StepCall::File(FileOperation::Move { from, to }))
    }

    fn limits() -> Vec<(&'static str, Value)> {
        vec![("from", workspace_path()), ("to", workspace_path())]
    }
}
