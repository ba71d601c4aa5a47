//! `delete_file`: deletes a file or directory.

use context::ToolEffect;
use protocol::FileOperation;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use super::input::{StepCall, StepInput, path_of};
use crate::invalid::InvalidField;
use crate::json::keywords::workspace_path;

/// Deletes a file, or with `recursive` a directory with all that is in it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DeleteFileInput {
    /// Path in the workspace.
    pub path: String,
    /// Needed for a directory that is not empty.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub recursive: bool,
}

impl StepInput for DeleteFileInput {
    const EFFECT: ToolEffect = ToolEffect::LogsWrites;

    fn call(&self) -> Result<StepCall<'_>, InvalidField> {
        let path = path_of("path", &self.path)?;
        Ok(StepCall::File(FileOperation::Remove { path, recursive: self.recursive }))
    }

    fn limits() -> Vec<(&'static str, Value)> {
        vec![("path", workspace_path())]
    }
}
