//! `edit_file`: replaces a text in a file.

use context::ToolEffect;
use protocol::FileOperation;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use utoipa::ToSchema;

use super::input::{StepCall, StepInput, path_of};
use crate::invalid::{InvalidField, invalid};
use crate::json::keywords::workspace_path;

/// Replaces one exact text in a file; refused when it is not there exactly once.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct EditFileInput {
    /// Path in the workspace.
    pub path: String,
    /// The text to find.
    pub old: String,
    /// What to put in its place.
    pub new: String,
}

impl StepInput for EditFileInput {
    const EFFECT: ToolEffect = ToolEffect::LogsWrites;

    fn call(&self) -> Result<StepCall<'_>, InvalidField> {
        if self.old.is_empty() {
            return Err(invalid("old", "is empty; give the text to replace"));
        }
        let path = path_of("path", &self.path)?;
        Ok(StepCall::File(FileOperation::Edit { path, old: self.old.clone(), new: self.new.clone() }))
    }

    fn limits() -> Vec<(&'static str, Value)> {
        vec![("path", workspace_path()), ("old", json!({ "minLength": 1 }))]
    }
}
