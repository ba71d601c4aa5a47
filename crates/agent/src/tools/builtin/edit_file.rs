//! `edit_file`: replaces a text in a file. If the text is missing, shows the most similar place.

use std::iter::once;
use std::ops::Range;

use context::truncate::first_characters;
use protocol::{FileErrorCode, FileOperation, FileReply};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use super::changed_region::{changed_regions, syntax_note};
use super::similar_text::{similar_text, without_line_numbers};
use super::{file_error, file_path};
use crate::event::ToolEnd;
use crate::host::Stopped;
use crate::tools::{CallContext, EndedCall, Importance, Tool, ToolFlow, ToolRole};

const MAX_READ_BYTES: u64 = 8 * 1024 * 1024;
/// How much of the most similar place is shown, in characters.
const MAX_NEAREST: usize = 1500;

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

/// A script that finds the text like the tool where it is not in the file exactly as written.
const STEP: &str = include_str!("edit_file_step.py");

/// The step for an edit of one place; `result` is what the tool said.
fn step_of_one(input: Input, result: &str) -> Option<Value> {
    let path = file_path(&input.path).ok()?;
    if !result.starts_with(&format!("edited {path} (")) {
        return Some(json!({"tool": EditFile::NAME, "path": path, "old": input.old, "new": input.new}));
    }
    let plain = without_line_numbers(&input.old);
    let new = plain.as_ref().and_then(|_| without_line_numbers(&input.new)).unwrap_or(input.new);
    let old = plain.unwrap_or(input.old);
    // A JSON string literal is also a valid Python literal. The texts come last, so that nothing is replaced in them.
    let literal = |text: String| Value::from(text).to_string();
    let (before, after) = STEP.split_once("PATH), OLD, NEW")?;
    let code = format!("{before}{}), {}, {}{after}", literal(path), literal(old), literal(new));
    Some(json!({"tool": "python", "code": code}))
}

impl Tool for EditFile {
    const NAME: &'static str = "edit_file";
    const DESCRIPTION: &'static str = "Replaces one exact text in a file. The text must be there exactly once (or set \
        `all`). Line numbers that `read_file` shows are not part of the text.";
    type Input = Input;
    const ROLE: ToolRole = ToolRole {
        importance: Importance::Basic,
        other_names: &[
            "edit",
            "editfile",
            "strreplace",
            "replace",
            "replaceinfile",
            "strreplaceeditor",
            "strreplacebasededittool",
            "multiedit",
            "searchreplace",
            "applyedit",
            "insert",
        ],
        ..ToolRole::OPTIONAL
    };

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
        Ok(replace_one(&path, &input, call).await?.into())
    }

    fn step(input: Input, end: &EndedCall<'_>) -> Option<Value> {
        if input.all != Some(true) {
            return step_of_one(input, end.text);
        }
        let code = format!(
            "from pathlib import Path\np = Path({})\np.write_text(p.read_text().replace({}, {}))\n",
            json!(input.path),
            json!(input.old),
            json!(input.new)
        );
        Some(json!({"tool": "python", "code": code}))
    }
}

/// Replaces the only occurrence, or the only place that is clearly meant.
async fn replace_one(path: &str, input: &Input, call: &CallContext<'_>) -> Result<ToolEnd, Stopped> {
    // Done before a restart, so the file's current content is the result.
    if let Some(Ok(_)) = call.host.finished_file(call.key()).await? {
        return Ok(ToolEnd::done(format!("edited {path}")));
    }
    // A file that is too large to be shown can still be edited.
    let before = read(path, call).await?.unwrap_or_default();
    let similar = match before.matches(&input.old).count() {
        0 => similar_text(&before, &input.old, &input.new),
        _ => None,
    };
    let (old, new) =
        similar.as_ref().map_or((&input.old, &input.new), |similar| (&similar.old, &similar.new));
    let operation = FileOperation::Edit { path: path.to_owned(), old: old.clone(), new: new.clone() };
    Ok(match call.host.file(Some(call.key()), operation).await? {
        Ok(_) => {
            let note = similar.as_ref().map_or(String::new(), |similar| format!(" ({})", similar.note));
            let mut end = ToolEnd::done(format!("edited {path}{note}"));
            if let Some(at) = before.find(old.as_str()) {
                let after = before.replacen(old.as_str(), new, 1);
                let region = changed_regions(&after, once(at..at + new.len()));
                end.text += &format!("; it is now:\n{}", region.trim_end());
                end.text += &syntax_note(path, Some(&before), &after);
            }
            end
        }
        Err(error) if error.code == FileErrorCode::NoMatch => no_match(path, &input.old, &before),
        Err(error) if error.code == FileErrorCode::ManyMatches => ToolEnd::failed(format!(
            "edit_file: {}. Give more lines around it so that it is there only once, or set `all`",
            error.message
        )),
        Err(error) => file_error("edit_file", &error, call),
    })
}

async fn read(path: &str, call: &CallContext<'_>) -> Result<Result<String, ToolEnd>, Stopped> {
    let operation = FileOperation::Read { path: path.to_owned(), offset: 0, limit_bytes: MAX_READ_BYTES };
    Ok(match call.host.file(None, operation).await? {
        Ok(FileReply::Content { content, base64: false, size }) if size == content.len() as u64 => {
            Ok(content)
        }
        Ok(_) => Err(ToolEnd::failed(format!("edit_file: {path} is not text, or larger than 8 MiB"))),
        Err(error) => Err(file_error("edit_file", &error, call)),
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
        return Ok(no_match(path, &input.old, &content).into());
    }
    let before = content;
    let content = before.replace(&input.old, &input.new);
    let regions = changed_regions(&content, replaced_places(&before, &input.old, &input.new));
    let note = format!("; it is now:\n{}{}", regions.trim_end(), syntax_note(path, Some(&before), &content));
    let operation = FileOperation::Write { path: path.to_owned(), content, mode: None };
    Ok(match call.host.file(Some(call.key()), operation).await? {
        Ok(_) => ToolEnd::done(format!("edited {path}: {count} places{note}")).into(),
        Err(error) => file_error("edit_file", &error, call).into(),
    })
}

/// Where `new` stands after every `old` was replaced.
fn replaced_places(before: &str, old: &str, new: &str) -> impl Iterator<Item = Range<usize>> {
    before.match_indices(old).enumerate().map(move |(number, (at, _))| {
        let at = at + number * new.len() - number * old.len();
        at..at + new.len()
    })
}

/// Reports the most similar place for a text that was not found.
fn no_match(path: &str, old: &str, content: &str) -> ToolEnd {
    let near = nearest_lines(content, old);
    ToolEnd::failed(format!("edit_file: the text in `old` is not in {path} exactly as written.{near}"))
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
    format!(" This is what stands at line {}:\n{}", from + 1, first_characters(&shown, MAX_NEAREST))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tools::AnyTool;

    #[test]
    fn edits_convert_to_job_steps() {
        let plain = json!({"path": "/workspace/a.py", "old": "1", "new": "2"});
        let step = json!({"tool": "edit_file", "path": "a.py", "old": "1", "new": "2"});
        assert_eq!(step_of(&plain, "edited a.py; it is now:\n"), step);
        let numbered = json!({"path": "a.py", "old": "    1  x = 1\n", "new": "x = NEW\n"});
        let step = step_of(&numbered, "edited a.py (the line numbers are no part of it)");
        let code = step["code"].as_str().unwrap();
        assert!(code.contains(r#"Path("a.py"), "x = 1\n", "x = NEW\n""#), "{code}");
    }

    fn step_of(input: &Value, result: &str) -> Value {
        AnyTool::step(&EditFile, input, &EndedCall { text: result, is_running: false }).unwrap()
    }

    #[test]
    fn nearest_match_ignores_white_space() {
        let content = "def a():\n    return 1\n\ndef b():\n\treturn 2\n";
        let near = nearest_lines(content, "def b():\n    return 2");
        assert!(near.contains("line 3:") && near.contains("\treturn 2"), "{near}");
        assert!(nearest_lines(content, "zzz qqq").contains("Nothing like it"));
    }
}
