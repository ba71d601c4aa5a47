//! `python`: runs code in the kernel of this language.

use context::ToolEffect;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use super::input::{Language, StepCall, StepInput, cell};
use crate::invalid::InvalidField;
use crate::json::keywords::not_blank;

/// Runs Python code in a live kernel that keeps variables from step to step; in a fresh process where the image
/// has no kernel.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PythonInput {
    /// The code.
    pub code: String,
}

impl StepInput for PythonInput {
    const EFFECT: ToolEffect = ToolEffect::Anything;
    const IS_CELL: bool = true;

    fn call(&self) -> Result<StepCall<'_>, InvalidField> {
        cell(Language::Python, &self.code)
    }

    fn limits() -> Vec<(&'static str, Value)> {
        vec![("code", not_blank())]
    }
}
