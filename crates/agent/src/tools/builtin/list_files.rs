//! `list_files`: lists a directory, optionally as a tree.

use std::fmt::Write as _;

use protocol::{FileKind, FileOperation, FileReply};
use schemars::JsonSchema;
use serde::Deserialize;

use super::{file_error, workspace_path};
use crate::event::ToolEnd;
use crate::host::{Effect, Stopped};
use crate::tools::{CallContext, Tool, ToolFlow};

/// The maximum number of entries in one listing.
const MAX_ENTRIES: u32 = 500;
/// Limit of the guest's listing. It is larger because directories that are not listed are removed afterwards.
const MAX_LISTED: u32 = 5000;
/// Directories that are named but not listed unless requested explicitly.
const NOT_LISTED: [&str; 8] =
    ["node_modules", ".git", "__pycache__", ".venv", "target", "dist", ".mypy_cache", ".caisson"];

pub(super) struct ListFiles;

/// What to list.
#[derive(Deserialize, JsonSchema)]
pub(super) struct Input {
    /// The directory, /workspace when absent.
    #[serde(default, alias = "directory", alias = "dir")]
    path: Option<String>,
    /// How many levels, 2 when absent.
    #[serde(default)]
    depth: Option<u32>,
}

impl Tool for ListFiles {
    const NAME: &'static str = "list_files";
    const DESCRIPTION: &'static str = "Lists the files of a directory of the workspace, two levels deep.";
    type Input = Input;

    fn effect(&self) -> Effect {
        Effect::ReadOnly
    }

    async fn run(&self, input: Input, call: &CallContext<'_>) -> Result<ToolFlow, Stopped> {
        let path = match workspace_path(input.path.as_deref().unwrap_or_default()) {
            Ok(path) => path,
            Err(problem) => return Ok(ToolEnd::failed(format!("list_files: {problem}")).into()),
        };
        let depth = input.depth.unwrap_or(2).clamp(1, 20);
        let operation =
            FileOperation::List { path: path.clone(), depth, limit: MAX_LISTED, skip: Vec::new() };
        let end = match call.host.file(None, operation).await? {
            Ok(FileReply::Entries { entries, truncated }) => {
                let mut text = String::new();
                let mut count = 0;
                let mut hidden = 0;
                for entry in &entries {
                    if is_below_unlisted(&path, &entry.path) {
                        hidden += 1;
                        continue;
                    }
                    count += 1;
                    if count > MAX_ENTRIES {
                        break;
                    }
                    let _ = match entry.stat.kind {
                        FileKind::Directory => writeln!(text, "{}/", entry.path),
                        FileKind::Symlink => {
                            writeln!(
                                text,
                                "{} -> {}",
                                entry.path,
                                entry.stat.link_target.as_deref().unwrap_or("?")
                            )
                        }
                        _ => writeln!(text, "{}  {} bytes", entry.path, entry.stat.size),
                    };
                }
                if text.is_empty() {
                    text += "(nothing there)\n";
                }
                if count > MAX_ENTRIES || truncated {
                    text += "[there are more; list a directory of it]\n";
                }
                if hidden > 0 {
                    let _ =
                        writeln!(text, "[{hidden} entries of directories such as node_modules are left out]");
                }
                ToolEnd::done(text)
            }
            Ok(_) => ToolEnd::failed("list_files: the sandbox sent no listing"),
            Err(error) => file_error("list_files", &error),
        };
        Ok(end.into())
    }
}

/// Whether a path is in a directory of generated files.
pub(crate) fn is_generated(path: &str) -> bool {
    is_below_unlisted("", path)
}

fn is_below_unlisted(asked: &str, path: &str) -> bool {
    let below = path.strip_prefix(asked).unwrap_or(path).trim_start_matches('/');
    let mut parts: Vec<&str> = below.split('/').collect();
    parts.pop();
    parts.iter().any(|part| NOT_LISTED.contains(part))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn explicitly_requested_directories_are_listed() {
        assert!(is_below_unlisted("", "node_modules/react/index.js"));
        assert!(!is_below_unlisted("", "node_modules"));
        assert!(!is_below_unlisted("node_modules", "node_modules/react"));
    }
}
