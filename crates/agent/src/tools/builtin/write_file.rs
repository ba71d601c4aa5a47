//! `write_file`: writes a whole file.

use protocol::{FileOperation, FileReply};
use schemars::JsonSchema;
use serde::Deserialize;

use super::{file_error, file_path};
use crate::event::ToolEnd;
use crate::host::{Effect, Stopped};
use crate::tools::{CallContext, Tool, ToolFlow};

pub(super) struct WriteFile;

/// What to write.
#[derive(Deserialize, JsonSchema)]
pub(super) struct Input {
    /// The file, in /workspace; directories are made.
    #[serde(alias = "file", alias = "file_path")]
    path: String,
    /// Its whole content.
    #[serde(alias = "contents", alias = "text")]
    content: String,
    /// Makes it executable.
    #[serde(default)]
    executable: Option<bool>,
}

impl Tool for WriteFile {
    const NAME: &'static str = "write_file";
    const DESCRIPTION: &'static str =
        "Writes a file as a whole, making directories as needed. To change a part of a file use `edit_file`.";
    type Input = Input;

    fn effect(&self) -> Effect {
        Effect::Changes
    }

    async fn run(&self, input: Input, call: &CallContext<'_>) -> Result<ToolFlow, Stopped> {
        let path = match file_path(&input.path) {
            Ok(path) => path,
            Err(problem) => return Ok(ToolEnd::failed(format!("write_file: {problem}")).into()),
        };
        let lines = context::output_cap::count_lines(&input.content);
        let mode = input.executable.unwrap_or(false).then_some(0o755);
        let operation = FileOperation::Write { path: path.clone(), content: input.content, mode };
        let end = match call.host.file(Some(call.key()), operation).await? {
            Ok(FileReply::Written { size }) => {
                ToolEnd::done(format!("wrote {path}: {lines} lines, {size} bytes"))
            }
            Ok(_) => ToolEnd::done(format!("wrote {path}")),
            Err(error) => file_error("write_file", &error),
        };
        Ok(end.into())
    }
}
