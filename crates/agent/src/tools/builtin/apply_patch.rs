//! `apply_patch`: changes several places in several files at once.

use std::collections::HashMap;

use protocol::{FileOperation, FileReply};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use super::changed_region::{numbered_regions, syntax_note};
use super::patch::{self, FilePatch};
use super::{file_error, file_path};
use crate::event::{ToolEnd, ToolStatus};
use crate::host::Stopped;
use crate::tools::{CallContext, EndedCall, Tool, ToolFlow, ToolRole};

const MAX_READ_BYTES: u64 = 8 * 1024 * 1024;
/// Of how many files the changed lines are shown.
const MAX_SHOWN_FILES: usize = 5;

pub(super) struct ApplyPatch;

/// A patch.
#[derive(Deserialize, JsonSchema)]
pub(super) struct Input {
    /// A unified diff as `git diff` prints it.
    #[serde(alias = "diff", alias = "input")]
    patch: String,
}

/// A script that applies changes like the tool, for steps without a model: each hunk by content, near its expected
/// line.
const STEP: &str = include_str!("apply_patch_step.py");

impl Tool for ApplyPatch {
    const NAME: &'static str = "apply_patch";
    const DESCRIPTION: &'static str = "Applies a unified diff (`--- a/file`, `+++ b/file`, `@@` hunks with a few lines \
        around each change) to the workspace. /dev/null stands for a file that is made or removed. Line numbers need \
        not be exact. All files of it or none are changed.";
    type Input = Input;
    const ROLE: ToolRole =
        ToolRole { other_names: &["patch", "applydiff", "applypatch", "diff"], ..ToolRole::OPTIONAL };

    async fn run(&self, input: Input, call: &CallContext<'_>) -> Result<ToolFlow, Stopped> {
        let files = match patch::parse(&input.patch) {
            Ok(files) => files,
            Err(problem) => return Ok(ToolEnd::malformed(format!("apply_patch: {problem}")).into()),
        };
        let (mut changes, mut regions) = (Vec::new(), Vec::new());
        let mut patched = PatchedFiles::new();
        for (index, file) in files.iter().enumerate() {
            let key = call.part_key(&format!("file{}", index + 1));
            // Applied before a restart, so the file already has the change.
            if call.host.finished_file(key.clone()).await?.is_some() {
                changes.push(None);
                continue;
            }
            match prepare(file, call, &mut patched).await? {
                Ok((operation, shown)) => {
                    changes.push(Some((key, operation)));
                    regions.extend(shown);
                }
                Err(end) => return Ok(end.into()),
            }
        }
        for (key, operation) in changes.into_iter().flatten() {
            if let Err(error) = call.host.file(Some(key), operation).await? {
                return Ok(file_error("apply_patch", &error, call).into());
            }
        }
        let names: Vec<&str> = files.iter().map(FilePatch::shown_path).collect();
        let mut text = format!("changed {}", names.join(", "));
        for region in regions.iter().take(MAX_SHOWN_FILES) {
            text += &format!("\n{}", region.trim_end());
        }
        if let Some(more) = regions.len().checked_sub(MAX_SHOWN_FILES + 1) {
            text += &format!("\n[the changed lines of {} more files are not shown]", more + 1);
        }
        Ok(ToolEnd::done(text).into())
    }

    fn step(input: Input, _end: &EndedCall<'_>) -> Option<Value> {
        let mut changes = Vec::new();
        for file in patch::parse(&input.patch).ok()? {
            changes.push(file.to_json(&file_path(file.shown_path()).ok()?));
        }
        // A JSON string literal is also a valid Python literal.
        let changes = Value::from(changes).to_string();
        let code = STEP.replace("CHANGES", &Value::from(changes).to_string());
        Some(json!({"tool": "python", "code": code}))
    }
}

/// The content of files after the changes prepared so far, by path; `None` for a deleted file. A patch may change a
/// file several times, each time on top of its earlier changes.
type PatchedFiles = HashMap<String, Option<String>>;

/// A file operation, and what to tell about the change, if there is something to tell.
type Prepared = (FileOperation, Option<String>);

/// The file operation that applies the change of one file, or why it cannot be applied.
async fn prepare(
    file: &FilePatch,
    call: &CallContext<'_>,
    patched: &mut PatchedFiles,
) -> Result<Result<Prepared, ToolEnd>, Stopped> {
    let failed = |text: String| Ok(Err(ToolEnd::failed(format!("apply_patch: {text}. Nothing was changed"))));
    let path = match file_path(file.shown_path()) {
        Ok(path) => path,
        Err(problem) => return failed(problem),
    };
    if file.new_path.is_none() {
        patched.insert(path.clone(), None);
        return Ok(Ok((FileOperation::Remove { path, recursive: false }, None)));
    }
    let content = match (file.old_path.is_some(), patched.get(&path)) {
        (true, Some(Some(content))) => content.clone(),
        (true, Some(None)) => return failed(format!("{path} is removed before it is changed")),
        (true, None) => match read(&path, call).await? {
            Ok(content) => content,
            Err(Some(end)) => return Ok(Err(end)),
            Err(None) => return failed(format!("{path} is not text, or larger than 8 MiB")),
        },
        (false, Some(Some(_))) => return failed(format!("{path} is made although it was changed before")),
        (false, _) => String::new(),
    };
    match file.apply(&content) {
        Ok((after, changed)) => {
            // The model knows what a new file holds.
            let is_new = file.old_path.is_none();
            let regions = if is_new { String::new() } else { numbered_regions(&after, changed) };
            let note = syntax_note(&path, Some(content.as_str()).filter(|_| !is_new), &after);
            let shown = match regions.trim_end() {
                "" => note.trim_start().to_owned(),
                regions => format!("{path} is now:\n{regions}{note}"),
            };
            patched.insert(path.clone(), Some(after.clone()));
            let operation = FileOperation::Write { path, content: after, mode: None };
            Ok(Ok((operation, Some(shown).filter(|shown| !shown.is_empty()))))
        }
        Err(problem) => failed(problem),
    }
}

/// The text of a file. If it cannot be read, the inner error ends the call; `None` if the failure is not known here.
async fn read(path: &str, call: &CallContext<'_>) -> Result<Result<String, Option<ToolEnd>>, Stopped> {
    let operation = FileOperation::Read { path: path.to_owned(), offset: 0, limit_bytes: MAX_READ_BYTES };
    Ok(match call.host.file(None, operation).await? {
        Ok(FileReply::Content { content, base64: false, size }) if size == content.len() as u64 => {
            Ok(content)
        }
        Ok(_) => Err(None),
        Err(error) => {
            let mut end = file_error("apply_patch", &error, call);
            end.status = ToolStatus::Failed;
            Err(Some(end))
        }
    })
}
