//! `edit_file`: replaces a text in a file. If the text is missing, shows the most similar place.

use protocol::{FileErrorCode, FileOperation, FileReply};
use schemars::JsonSchema;
use serde::Deserialize;

use super::{file_error, file_path};
use crate::event::ToolEnd;
use crate::host::{Effect, Stopped};
use crate::tools::{CallContext, Tool, ToolFlow};

const MAX_READ_BYTES: u64 = 8 * 1024 * 1024;

pub(super) struct EditFile;

/// What to change.
#[derive(Deserialize, JsonSchema)]
pub(super) struct Input {
    /// The file, in /workspace.
    #[serde(alias = "file", alias = "file_path")]
    path: String,
    /// The text to replace, exactly as it is in the file, with enough lines to be there only once.
    #[serde(alias = "old_string", alias = "old_str", alias = "search")]
    old: String,
    /// What to put in its place.
    #[serde(alias = "new_string", alias = "new_str", alias = "replace")]
    new: String,
    /// Replaces every occurrence.
    #[serde(default)]
    all: Option<bool>,
}

impl Tool for EditFile {
    const NAME: &'static str = "edit_file";
    const DESCRIPTION: &'static str = "Replaces one exact text in a file. The text must be there exactly once (or set \
        `all`). Line numbers that `read_file` shows are not part of the text.";
    type Input = Input;

    fn effect(&self) -> Effect {
        Effect::Changes
    }

    async fn run(&self, input: Input, call: &CallContext<'_>) -> Result<ToolFlow, Stopped> {
        let path = match file_path(&input.path) {
            Ok(path) => path,
            Err(problem) => return Ok(ToolEnd::failed(format!("edit_file: {problem}")).into()),
        };
        if input.old.is_empty() {
            let text =
                "edit_file: `old` is empty; give the text to replace, or use `write_file` for a new file";
            return Ok(ToolEnd::malformed(text).into());
        }
        if input.old == input.new {
            return Ok(ToolEnd::failed("edit_file: `old` and `new` are the same; nothing to do").into());
        }
        if input.all.unwrap_or(false) {
            return replace_all(&path, &input, call).await;
        }
        let operation =
            FileOperation::Edit { path: path.clone(), old: input.old.clone(), new: input.new.clone() };
        let end = match call.host.file(Some(call.key()), operation).await? {
            Ok(_) => ToolEnd::done(format!("edited {path}")),
            Err(error) if error.code == FileErrorCode::NoMatch => no_match(&path, &input.old, call).await?,
            Err(error) if error.code == FileErrorCode::ManyMatches => ToolEnd::failed(format!(
                "edit_file: {}. Give more lines around it so that it is there only once, or set `all`",
                error.message
            )),
            Err(error) => file_error("edit_file", &error),
        };
        Ok(end.into())
    }
}

async fn read(path: &str, call: &CallContext<'_>) -> Result<Result<String, ToolEnd>, Stopped> {
    let operation = FileOperation::Read { path: path.to_owned(), offset: 0, limit_bytes: MAX_READ_BYTES };
    Ok(match call.host.file(None, operation).await? {
        Ok(FileReply::Content { content, base64: false, size }) if size == content.len() as u64 => {
            Ok(content)
        }
        Ok(_) => Err(ToolEnd::failed(format!("edit_file: {path} is not text, or larger than 8 MiB"))),
        Err(error) => Err(file_error("edit_file", &error)),
    })
}

async fn replace_all(path: &str, input: &Input, call: &CallContext<'_>) -> Result<ToolFlow, Stopped> {
    // Done before a restart, so the file's current content is the result.
    if let Some(Ok(_)) = call.host.finished_file(call.key()).await? {
        return Ok(ToolEnd::done(format!("edited {path}")).into());
    }
    let content = match read(path, call).await? {
        Ok(content) => content,
        Err(end) => return Ok(end.into()),
    };
    let count = content.matches(&input.old).count();
    if count == 0 {
        return Ok(no_match(path, &input.old, call).await?.into());
    }
    let content = content.replace(&input.old, &input.new);
    let operation = FileOperation::Write { path: path.to_owned(), content, mode: None };
    Ok(match call.host.file(Some(call.key()), operation).await? {
        Ok(_) => ToolEnd::done(format!("edited {path}: {count} places")).into(),
        Err(error) => file_error("edit_file", &error).into(),
    })
}

/// Reports the most similar place for a text that was not found.
async fn no_match(path: &str, old: &str, call: &CallContext<'_>) -> Result<ToolEnd, Stopped> {
    let content = match read(path, call).await? {
        Ok(content) => content,
        Err(end) => return Ok(end),
    };
    let near = nearest_lines(&content, old);
    Ok(ToolEnd::failed(format!("edit_file: the text in `old` is not in {path} exactly as written.{near}")))
}

/// The place where most lines of the text match, ignoring white space.
fn nearest_lines(content: &str, old: &str) -> String {
    let wanted: Vec<&str> = old.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let lines: Vec<&str> = content.lines().collect();
    let Some(first) = wanted.first() else { return String::new() };
    let score = |start: usize| {
        wanted.iter().zip(lines[start..].iter().map(|line| line.trim())).filter(|(a, b)| **a == *b).count()
    };
    let best = (0..lines.len()).max_by_key(|start| (score(*start), usize::MAX - start));
    let Some(start) = best.filter(|start| score(*start) > 0).or_else(|| {
        let word = first.split_whitespace().max_by_key(|word| word.len())?;
        lines.iter().position(|line| line.contains(word))
    }) else {
        return " Nothing like it is there: read the file again.".to_owned();
    };
    let end = (start + wanted.len() + 2).min(lines.len());
    let from = start.saturating_sub(1);
    let shown = lines[from..end].join("\n");
    let shown: String = shown.chars().take(1500).collect();
    format!(" This is what stands at line {}:\n{shown}", from + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nearest_match_ignores_white_space() {
        let content = "def a():\n    return 1\n\ndef b():\n\treturn 2\n";
        let near = nearest_lines(content, "def b():\n    return 2");
        assert!(near.contains("line 3:") && near.contains("\treturn 2"), "{near}");
        assert!(nearest_lines(content, "zzz qqq").contains("Nothing like it"));
    }
}
