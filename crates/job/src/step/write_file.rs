//! `write_file`: writes a file as a whole.

use context::ToolEffect;
use protocol::FileOperation;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use super::input::{StepCall, StepInput, path_of};
use crate::invalid::{InvalidField, invalid};
use crate::json::keywords::{mode, workspace_path};

/// Writes a file as a whole, making parent directories.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct WriteFileInput {
    /// Path in the workspace.
    pub path: String,
    /// New content.
    pub content: String,
    /// Permission bits as an octal text, such as `755`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
}

impl StepInput for WriteFileInput {
    const EFFECT: ToolEffect = ToolEffect::LogsWrites;

    fn call(&self) -> Result<StepCall<'_>, InvalidField> {
        let mode = self.mode.as_deref().map(parse_mode).transpose()?;
        let path = path_of("path", &self.path)?;
        Ok(StepCall::File(FileOperation::Write { path, content: self.content.clone(), mode }))
    }

    fn limits() -> Vec<(&'static str, Value)> {
        vec![("path", workspace_path()), ("mode", mode())]
    }
}

/// Parses permission bits in octal.
fn parse_mode(mode: &str) -> Result<u32, InvalidField> {
    let is_octal = (1..=3).contains(&mode.len()) && mode.bytes().all(|byte| (b'0'..=b'7').contains(&byte));
    match u32::from_str_radix(mode, 8) {
        Ok(bits) if is_octal => Ok(bits),
        _ => Err(invalid("mode", format!("`{mode}` is not an octal number from 0 to 777"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(path: &str, mode: Option<&str>) -> Result<FileOperation, String> {
        let input = WriteFileInput { path: path.into(), content: "text".into(), mode: mode.map(Into::into) };
        match input.call() {
            Ok(StepCall::File(operation)) => Ok(operation),
            Ok(other) => Err(format!("{other:?}")),
            Err(invalid) => Err(invalid.to_string()),
        }
    }

    #[test]
    fn path_and_mode_are_parsed() {
        let expected = FileOperation::Write { path: "a/b".into(), content: "text".into(), mode: Some(0o755) };
        assert_eq!(written("/workspace/./a//b", Some("755")), Ok(expected));
        for mode in ["9", "0755", "", "+7"] {
            let problem = written("../secret", Some(mode)).unwrap_err();
            assert!(problem.starts_with("mode: ") && problem.contains("octal"), "{problem}");
        }
        assert!(written("../secret", None).unwrap_err().starts_with("path: "));
    }
}
