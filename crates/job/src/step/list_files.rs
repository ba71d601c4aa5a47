//! `list_files`: lists a directory.

use context::ToolEffect;
use protocol::FileOperation;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use utoipa::ToSchema;

use super::input::{StepCall, StepInput, path_of};
use crate::invalid::{InvalidField, invalid};
use crate::json::keywords::{range, workspace_path};

/// Maximum number of entries that the step shows.
const MAX_LISTED: u32 = 10_000;
const MAX_DEPTH: u32 = 100;

/// Lists a directory; the listing is the step's output.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ListFilesInput {
    /// Directory in the workspace, the workspace itself when absent.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub path: String,
    /// How many levels, 1 when absent.
    #[serde(default = "one_level", skip_serializing_if = "is_one_level")]
    pub depth: u32,
}

fn one_level() -> u32 {
    1
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands out references")]
fn is_one_level(depth: &u32) -> bool {
    *depth == 1
}

impl StepInput for ListFilesInput {
    const EFFECT: ToolEffect = ToolEffect::Reads;

    fn call(&self) -> Result<StepCall<'_>, InvalidField> {
        if !(1..=MAX_DEPTH).contains(&self.depth) {
            return Err(invalid("depth", format!("{} is not between 1 and {MAX_DEPTH}", self.depth)));
        }
        let path = if self.path.is_empty() { String::new() } else { path_of("path", &self.path)? };
        let skip = Vec::new();
        Ok(StepCall::File(FileOperation::List { path, depth: self.depth, limit: MAX_LISTED, skip }))
    }

    fn limits() -> Vec<(&'static str, Value)> {
        let mut path = workspace_path();
        path["pattern"] = json!(format!("^$|{}", path["pattern"].as_str().unwrap_or_default()));
        path["minLength"] = json!(0);
        vec![("path", path), ("depth", range(1, MAX_DEPTH))]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_path_the_workspace_is_listed() {
        let input: ListFilesInput = serde_json::from_str("{}").unwrap();
        let Ok(StepCall::File(FileOperation::List { path, depth: 1, .. })) = input.call() else {
            panic!("{:?}", input.call())
        };
        assert_eq!(path, "");
        let deep = ListFilesInput { depth: 101, ..input };
        assert_eq!(deep.call().unwrap_err().to_string(), "depth: 101 is not between 1 and 100");
    }
}
