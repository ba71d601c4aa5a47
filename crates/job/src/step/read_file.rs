//! `read_file`: returns the content of a file.

use context::ToolEffect;
use protocol::FileOperation;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use super::input::{StepCall, StepInput, path_of};
use crate::invalid::InvalidField;
use crate::json::keywords::workspace_path;

/// Maximum number of bytes that the step shows.
const MAX_READ_BYTES: u64 = 1024 * 1024;

/// Reads a file; the content is the step's output.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ReadFileInput {
    /// Path in the workspace.
    pub path: String,
}

impl StepInput for ReadFileInput {
    const EFFECT: ToolEffect = ToolEffect::Reads;

    fn call(&self) -> Result<StepCall<'_>, InvalidField> {
        let path = path_of("path", &self.path)?;
        Ok(StepCall::File(FileOperation::Read { path, offset: 0, limit_bytes: MAX_READ_BYTES }))
    }

    fn limits() -> Vec<(&'static str, Value)> {
        vec![("path", workspace_path())]
    }
}
