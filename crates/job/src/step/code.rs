//! `code`: runs code in a kernel that is chosen by its name.

use context::ToolEffect;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use super::input::{Language, StepCall, StepInput, cell};
use crate::invalid::{InvalidField, invalid};
use crate::json::keywords::{kernel, not_blank};

/// Runs code in the live kernel of this name.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CodeInput {
    /// The kernel's name in the image.
    pub kernel: String,
    /// The code.
    pub code: String,
}

impl StepInput for CodeInput {
    const EFFECT: ToolEffect = ToolEffect::Anything;
    const IS_CELL: bool = true;

    fn call(&self) -> Result<StepCall<'_>, InvalidField> {
        let call = cell(Language::Kernel(self.kernel.clone()), &self.code)?;
        check_kernel_name(&self.kernel)?;
        Ok(call)
    }

    fn limits() -> Vec<(&'static str, Value)> {
        vec![("code", not_blank()), ("kernel", kernel())]
    }
}

/// Kernel names are directory names in the image.
pub fn check_kernel_name(name: &str) -> Result<(), InvalidField> {
    let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
    if (1..=64).contains(&name.len()) && name.bytes().all(is_letter) {
        return Ok(());
    }
    Err(invalid("kernel", "must have 1 to 64 letters, digits, `.`, `-` or `_`"))
}
