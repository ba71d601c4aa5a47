//! `list_files`: lists a directory, optionally as a tree.

use std::fmt::Write as _;

use protocol::{FileEntry, FileKind, FileOperation, FileReply};
use schemars::JsonSchema;
use serde::Deserialize;

use super::{file_error, workspace_path};
use crate::event::ToolEnd;
use crate::host::Stopped;
use crate::tools::{CallContext, Importance, Tool, ToolFlow, ToolRole};

/// The maximum number of entries in one listing.
const MAX_ENTRIES: u32 = 500;
/// Limit of the guest's listing. It is larger because directories that are not listed are removed afterwards.
const MAX_LISTED: u32 = 5000;
/// Directories that are not even named unless requested explicitly.
const HIDDEN: [&str; 2] = [".caisson", "__pycache__"];
/// The directory for downloads of the browser. It is not named while it is empty.
const DOWNLOADS: &str = "downloads";
/// Directories that are named but not listed unless requested explicitly.
const NOT_LISTED: [&str; 6] = ["node_modules", ".git", ".venv", "target", "dist", ".mypy_cache"];

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
    const ROLE: ToolRole = ToolRole {
        importance: Importance::Simple,
        other_names: &[
            "ls",
            "dir",
            "list",
            "listdir",
            "listdirectory",
            "listfiles",
            "tree",
            "glob",
            "findfiles",
        ],
        ..ToolRole::OPTIONAL
    };

    async fn run(&self, input: Input, call: &CallContext<'_>) -> Result<ToolFlow, Stopped> {
        let path = match workspace_path(input.path.as_deref().unwrap_or_default()) {
            Ok(path) => path,
            Err(problem) => return Ok(ToolEnd::failed(format!("list_files: {problem}")).into()),
        };
        let depth = input.depth.unwrap_or(2).clamp(1, 20);
        let operation =
            FileOperation::List { path: path.clone(), depth, limit: MAX_LISTED, skip: Vec::new() };
        let end = match call.host.file(None, operation).await? {
            Ok(FileReply::Entries { mut entries, truncated }) => {
                let hides_downloads = match has_empty_downloads(depth, &entries, truncated) {
                    Some(is_empty) => is_empty,
                    None => is_empty_directory(DOWNLOADS, call).await?,
                };
                if hides_downloads {
                    entries.retain(|entry| entry.path != DOWNLOADS);
                }
                ToolEnd::done(listing(&path, &entries, truncated))
            }
            Ok(_) => ToolEnd::failed("list_files: the sandbox sent no listing"),
            Err(error) => file_error("list_files", &error, call),
        };
        Ok(end.into())
    }
}

/// Whether the entries contain `downloads` but nothing in it; `None` if they may end above its contents.
fn has_empty_downloads(depth: u32, entries: &[FileEntry], is_cut: bool) -> Option<bool> {
    let is_listed =
        entries.iter().any(|entry| entry.path == DOWNLOADS && entry.stat.kind == FileKind::Directory);
    if !is_listed || entries.iter().any(|entry| entry.path.starts_with("downloads/")) {
        return Some(false);
    }
    (depth > 1 && !is_cut).then_some(true)
}

/// Whether a directory is known to have no entries.
async fn is_empty_directory(path: &str, call: &CallContext<'_>) -> Result<bool, Stopped> {
    let operation = FileOperation::List { path: path.to_owned(), depth: 1, limit: 1, skip: Vec::new() };
    let reply = call.host.file(None, operation).await?;
    Ok(matches!(reply, Ok(FileReply::Entries { entries, .. }) if entries.is_empty()))
}

/// The entries of a directory, as text.
fn listing(asked: &str, entries: &[FileEntry], is_cut: bool) -> String {
    let (mut text, mut count, mut left_out) = (String::new(), 0, 0);
    for entry in entries {
        let below = below(asked, &entry.path);
        if below.split('/').any(|part| HIDDEN.contains(&part)) {
            continue;
        }
        if is_below_unlisted(asked, &entry.path) {
            left_out += 1;
            continue;
        }
        count += 1;
        if count > MAX_ENTRIES {
            break;
        }
        text += &line(entry);
    }
    if text.is_empty() {
        text += "(nothing there)\n";
    }
    if count > MAX_ENTRIES || is_cut {
        text += "[there are more; list a directory of it]\n";
    }
    if left_out > 0 {
        let _ = writeln!(text, "[{left_out} entries of directories such as node_modules are left out]");
    }
    text
}

fn line(entry: &FileEntry) -> String {
    match entry.stat.kind {
        FileKind::Directory => format!("{}/\n", entry.path),
        FileKind::Symlink => {
            format!("{} -> {}\n", entry.path, entry.stat.link_target.as_deref().unwrap_or("?"))
        }
        _ => format!("{}  {} bytes\n", entry.path, entry.stat.size),
    }
}

/// The directories whose files are listed only on request.
pub(crate) fn unlisted_folders() -> Vec<String> {
    HIDDEN.iter().chain(&NOT_LISTED).map(|name| (*name).to_owned()).collect()
}

/// Whether a path is in a directory of generated files.
pub(crate) fn is_generated(path: &str) -> bool {
    is_below_unlisted("", path) || path.split('/').any(|part| HIDDEN.contains(&part))
}

/// A path relative to the directory that was asked for.
fn below<'a>(asked: &str, path: &'a str) -> &'a str {
    path.strip_prefix(asked).unwrap_or(path).trim_start_matches('/')
}

fn is_below_unlisted(asked: &str, path: &str) -> bool {
    let mut parts: Vec<&str> = below(asked, path).split('/').collect();
    parts.pop();
    parts.iter().any(|part| NOT_LISTED.contains(part))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(path: &str) -> FileEntry {
        let kind = if path.ends_with('/') { FileKind::Directory } else { FileKind::File };
        let stat = protocol::FileStat { kind, size: 5, mode: 0o644, modified_ms: 0, link_target: None };
        FileEntry { path: path.trim_end_matches('/').to_owned(), stat }
    }

    #[test]
    fn what_nobody_made_is_hidden() {
        let paths = [
            ".caisson/",
            ".caisson/notes.md",
            "app/",
            "app/__pycache__/",
            "app/__pycache__/a.pyc",
            "app/main.py",
            "node_modules/",
            "node_modules/react/",
        ];
        let entries = paths.map(entry);
        let rest = "node_modules/\n[1 entries of directories such as node_modules are left out]\n";
        assert_eq!(listing("", &entries, false), format!("app/\napp/main.py  5 bytes\n{rest}"));
        assert_eq!(listing(".caisson", &entries[1..2], false), ".caisson/notes.md  5 bytes\n");
        assert!(
            is_generated("app/__pycache__/a.pyc")
                && is_generated(".caisson/x.py")
                && !is_generated("app/main.py")
        );
    }

    #[test]
    fn downloads_are_looked_into_only_at_the_last_level() {
        let app = [entry("app/"), entry("app/downloads/")];
        assert_eq!(has_empty_downloads(1, &app, true), Some(false), "there is no such directory");
        let empty = [entry("app/"), entry("downloads/")];
        assert_eq!(has_empty_downloads(1, &empty, false), None, "its contents are one level below");
        assert_eq!(has_empty_downloads(2, &empty, true), None, "its contents may be cut off");
        assert_eq!(has_empty_downloads(2, &empty, false), Some(true));
        let full = [entry("downloads/"), entry("downloads/report.pdf")];
        assert_eq!(has_empty_downloads(2, &full, true), Some(false));
        assert_eq!(has_empty_downloads(1, &[entry("downloads")], false), Some(false), "it is a file");
    }

    #[test]
    fn explicitly_requested_directories_are_listed() {
        assert!(is_below_unlisted("", "node_modules/react/index.js"));
        assert!(!is_below_unlisted("", "node_modules"));
        assert!(!is_below_unlisted("node_modules", "node_modules/react"));
    }
}
