//! `write_file`: writes a whole file.

use protocol::{FileErrorCode, FileOperation, FileReply};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use super::changed_region::syntax_note;
use super::{file_error, file_path};
use crate::event::ToolEnd;
use crate::host::Stopped;
use crate::tools::{CallContext, EndedCall, Importance, Tool, ToolFlow, ToolRole};

/// A larger file cannot be appended to.
const MAX_READ_BYTES: u64 = 8 * 1024 * 1024;

pub(super) struct WriteFile;

/// What to write.
#[derive(Deserialize, JsonSchema)]
pub(super) struct Input {
    /// The file, in /workspace; directories are made.
    #[serde(alias = "file", alias = "file_path")]
    path: String,
    /// Its whole content.
    #[serde(alias = "contents", alias = "text", alias = "file_text")]
    content: String,
    /// Adds the content at the end of the file instead of replacing what is there.
    #[serde(default)]
    append: Option<bool>,
    /// Makes it executable.
    #[serde(default)]
    executable: Option<bool>,
}

impl Tool for WriteFile {
    const NAME: &'static str = "write_file";
    const DESCRIPTION: &'static str = "Writes a file as a whole, or with `append` its next part, making directories as needed. To change a part of a file \
        use `edit_file`.";
    type Input = Input;
    const ROLE: ToolRole = ToolRole {
        importance: Importance::Basic,
        other_names: &[
            "write",
            "writefile",
            "writetofile",
            "createfile",
            "create",
            "savefile",
            "newfile",
            "insertfile",
        ],
        ..ToolRole::OPTIONAL
    };

    async fn run(&self, input: Input, call: &CallContext<'_>) -> Result<ToolFlow, Stopped> {
        let path = match file_path(&input.path) {
            Ok(path) => path,
            Err(problem) => return Ok(ToolEnd::failed(format!("write_file: {problem}")).into()),
        };
        let added = context::output_cap::count_lines(&input.content);
        let is_append = input.append.unwrap_or(false);
        // Added before a restart: the operation with this key is not run again.
        let before = if is_append && call.host.finished_file(call.key()).await?.is_none() {
            match existing(&path, call).await? {
                Ok(before) => Some(before),
                Err(end) => return Ok(end.into()),
            }
        } else {
            None
        };
        let content = before.clone().unwrap_or_default() + &input.content;
        // Without the content before it, an added part says nothing about the file.
        let is_whole = before.is_some() || !is_append;
        let note = if is_whole { syntax_note(&path, before.as_deref(), &content) } else { String::new() };
        let mode = input.executable.unwrap_or(false).then_some(0o755);
        let operation = FileOperation::Write { path: path.clone(), content, mode };
        let end = match call.host.file(Some(call.key()), operation).await? {
            Ok(FileReply::Written { size }) if is_append => {
                ToolEnd::done(format!("added {added} lines to {path}: {size} bytes in all{note}"))
            }
            Ok(FileReply::Written { size }) => {
                ToolEnd::done(format!("wrote {path}: {added} lines, {size} bytes{note}"))
            }
            Ok(_) => ToolEnd::done(format!("wrote {path}")),
            Err(error) => file_error("write_file", &error, call),
        };
        Ok(end.into())
    }

    fn step(input: Input, _end: &EndedCall<'_>) -> Option<Value> {
        let Input { path, content, .. } = input;
        if input.append == Some(true) {
            // A JSON string literal is also a valid Python literal.
            let (path, content) = (json!(path), json!(content));
            let code =
                format!("with open({path}, \"a\", newline=\"\") as file:\n    file.write({content})\n");
            return Some(json!({"tool": "python", "code": code}));
        }
        let mut step = json!({"tool": Self::NAME, "path": path, "content": content});
        if input.executable == Some(true) {
            step["mode"] = json!("755");
        }
        Some(step)
    }
}

/// The content of a text file to append to; empty if there is no such file.
async fn existing(path: &str, call: &CallContext<'_>) -> Result<Result<String, ToolEnd>, Stopped> {
    let operation = FileOperation::Read { path: path.to_owned(), offset: 0, limit_bytes: MAX_READ_BYTES };
    Ok(match call.host.file(None, operation).await? {
        Ok(FileReply::Content { content, base64: false, size }) if size == content.len() as u64 => {
            Ok(content)
        }
        Ok(_) => Err(ToolEnd::failed(format!("write_file: {path} is not text, or larger than 8 MiB"))),
        Err(error) if error.code == FileErrorCode::NotFound => Ok(String::new()),
        Err(error) => Err(file_error("write_file", &error, call)),
    })
}
