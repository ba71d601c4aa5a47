//! Describes for the agent what a user did during a takeover: which files changed and which commands were run.

use std::collections::BTreeMap;

use job::SKIPPED_FOLDERS;
use protocol::{FileKind, FileOperation, FileReply, GuestClient};
use serde::{Deserialize, Serialize};

use crate::error::OrchestratorError;

/// Limits on how much of the workspace is compared.
const DEPTH: u32 = 20;
const MOST_ENTRIES: u32 = 10_000;
/// Maximum number of changed files and of commands that the agent is told by name.
pub(crate) const MAX_NAMED: usize = 60;

/// The files of a workspace at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Snapshot {
    /// Size and modification time of each file.
    files: BTreeMap<String, (u64, i64)>,
    /// Whether the listing was truncated.
    is_cut: bool,
}

impl Snapshot {
    /// Lists the workspace. Skips folders that tools fill, because they contain many files that nobody reads.
    pub(crate) async fn take(client: &GuestClient) -> Result<Self, OrchestratorError> {
        let list = FileOperation::List {
            path: String::new(),
            depth: DEPTH,
            limit: MOST_ENTRIES,
            skip: SKIPPED_FOLDERS.map(str::to_owned).to_vec(),
        };
        let FileReply::Entries { entries, truncated } = client.file(None, list).await? else {
            return Ok(Self::default());
        };
        let files = entries
            .into_iter()
            .filter(|entry| entry.stat.kind != FileKind::Directory && !entry.path.starts_with(".caisson/"))
            .map(|entry| (entry.path, (entry.stat.size, entry.stat.modified_ms)))
            .collect();
        Ok(Self { files, is_cut: truncated })
    }

    /// The changes from `self` to `after`. A file missing from a truncated listing proves nothing.
    fn changes_until(&self, after: &Self) -> Vec<String> {
        let mut changes = Vec::new();
        for (path, facts) in &after.files {
            match self.files.get(path) {
                None if !self.is_cut => changes.push(format!("made {path}")),
                Some(old) if old != facts => changes.push(format!("changed {path}")),
                None | Some(_) => {}
            }
        }
        if !after.is_cut {
            let gone = self.files.keys().filter(|path| !after.files.contains_key(*path));
            changes.extend(gone.map(|path| format!("removed {path}")));
        }
        changes
    }
}

/// The text for the agent; `files` is `None` if one of the two snapshots is missing.
pub(crate) fn describe_changes(
    by: &str,
    files: Option<(&Snapshot, &Snapshot)>,
    commands: &[String],
) -> String {
    let mut text = format!("[Not from the user] {by} worked in your sandbox and has handed it back to you.");
    if commands.is_empty() {
        text += "\nNo commands were run.";
    } else {
        text += "\nCommands that were run:";
        for command in commands.iter().take(MAX_NAMED) {
            text += &format!("\n  {}", command.chars().take(300).collect::<String>());
        }
        if commands.len() > MAX_NAMED {
            text += "\n  and more";
        }
    }
    let Some((before, after)) = files else {
        return text + "\nIt is not known which files have changed.";
    };
    let mut changes = before.changes_until(after);
    if changes.is_empty() {
        text += "\nNo files have changed";
    } else {
        let more = changes.len().saturating_sub(MAX_NAMED);
        changes.truncate(MAX_NAMED);
        text += &format!("\nFiles: {}", changes.join(", "));
        if more > 0 {
            text += &format!(", and {more} more");
        }
    }
    text += &format!(" (not checked: {}).", SKIPPED_FOLDERS.join(", "));
    if before.is_cut || after.is_cut {
        text += &format!(
            "\nThe workspace has more than {MOST_ENTRIES} files and folders; changes to the others are not listed, so check them yourself."
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshot(list: &[(&str, u64)], is_cut: bool) -> Snapshot {
        Snapshot { files: list.iter().map(|(path, size)| ((*path).to_owned(), (*size, 0))).collect(), is_cut }
    }

    #[test]
    fn handback_summary_lists_changed_files_and_commands() {
        let before = snapshot(&[("a", 1), ("b", 1), ("c", 1)], false);
        let after = snapshot(&[("a", 1), ("b", 2), ("d", 1)], false);
        let text = describe_changes("Ada", Some((&before, &after)), &["make".to_owned()]);
        assert!(text.contains("Ada") && text.contains("\n  make"), "{text}");
        assert!(text.contains("Files: changed b, made d, removed c (not checked: "), "{text}");
        assert!(!text.contains("more than"), "{text}");
    }

    #[test]
    fn truncated_listings_imply_no_created_or_removed_files() {
        let before = snapshot(&[("a", 1), ("b", 1)], true);
        let after = snapshot(&[("b", 2), ("c", 1)], true);
        let text = describe_changes("Ada", Some((&before, &after)), &[]);
        assert!(text.contains("Files: changed b (not"), "{text}");
        assert!(text.contains("more than 10000 files and folders"), "{text}");
        assert!(describe_changes("Ada", None, &[]).ends_with("It is not known which files have changed."));
    }
}
