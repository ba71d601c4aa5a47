//! Says which files changed while a command or a piece of code ran: the workspace is listed before and after it. What
//! changed by other means since the command before, such as an upload or a program in the background, counts too.

use std::collections::BTreeMap;
use std::sync::PoisonError;

use context::{ToolEffect, tool_effect};
use protocol::{FileEntry, FileKind, FileOperation, FileReply};

use super::Agent;
use crate::conversation::{OpenCall, Stage};
use crate::event::ToolEnd;
use crate::host::{Host, Stopped};
use crate::tools::{ToolFlow, is_generated, unlisted_folders};

/// Limits of one listing. A larger workspace is not compared.
const MAX_ENTRIES: u32 = 5_000;
const MAX_DEPTH: u32 = 12;
/// Maximum number of files that a result names, for each kind of change.
const MAX_NAMED: usize = 8;

/// The size and time of each file, and the folders, which have neither.
pub(super) type Listing = BTreeMap<String, Option<(u64, i64)>>;

/// The workspace as it was after the last command, if nothing has changed it since.
#[derive(Default)]
pub(super) struct KnownFiles(Option<Listing>);

impl KnownFiles {
    /// A tool has run that is not a program: what it wrote is no news at the next command.
    fn after(&mut self, tool: &str) {
        if !matches!(tool_effect(tool), Some(ToolEffect::None | ToolEffect::Reads)) {
            self.0 = None;
        }
    }
}

impl Agent {
    /// The files before a call that runs a program. `None` for other calls, and for a call that began before a restart.
    pub(super) async fn files_before(
        &self,
        host: &dyn Host,
        open: &OpenCall,
    ) -> Result<Option<Listing>, Stopped> {
        if open.stage != Stage::Waiting || !runs_programs(&open.call.name) {
            return Ok(None);
        }
        let known = self.with_known_files(|known| known.0.take());
        if known.is_some() { Ok(known) } else { list(host).await }
    }

    /// Adds to the result of a call that ran a program which files have changed.
    pub(super) async fn name_changed_files(
        &self,
        host: &dyn Host,
        tool: &str,
        before: Option<Listing>,
        flow: &mut ToolFlow,
    ) -> Result<(), Stopped> {
        if !runs_programs(tool) {
            self.with_known_files(|known| known.after(tool));
            return Ok(());
        }
        let after = list(host).await?;
        if let (ToolFlow::Done(output), Some(before), Some(after)) = (flow, &before, &after) {
            add_changes(&mut output.end, before, after);
        }
        self.with_known_files(|known| known.0 = after);
        Ok(())
    }

    fn with_known_files<T>(&self, act: impl FnOnce(&mut KnownFiles) -> T) -> T {
        act(&mut self.known_files.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

fn runs_programs(tool: &str) -> bool {
    tool_effect(tool) == Some(ToolEffect::Anything)
}

/// Lists the workspace; `None` if it is too large, or if that fails.
async fn list(host: &dyn Host) -> Result<Option<Listing>, Stopped> {
    let operation = FileOperation::List {
        path: String::new(),
        depth: MAX_DEPTH,
        limit: MAX_ENTRIES,
        skip: unlisted_folders(),
    };
    Ok(match host.file(None, operation).await? {
        Ok(FileReply::Entries { entries, truncated: false }) => Some(listing_of(entries)),
        _ => None,
    })
}

fn listing_of(entries: Vec<FileEntry>) -> Listing {
    let is_shown = |entry: &FileEntry| !is_generated(&entry.path);
    let facts = |entry: FileEntry| {
        let is_folder = entry.stat.kind == FileKind::Directory;
        (entry.path, (!is_folder).then_some((entry.stat.size, entry.stat.modified_ms)))
    };
    entries.into_iter().filter(is_shown).map(facts).collect()
}

/// Adds a line about the changes to a result, above the line that says how it ended.
fn add_changes(end: &mut ToolEnd, before: &Listing, after: &Listing) {
    let Some(line) = changes(before, after) else { return };
    let last = end.text.rfind('\n').map_or(0, |at| at + 1);
    if end.text[last..].starts_with('[') {
        end.text.insert_str(last, &format!("{line}\n"));
    } else {
        end.text += &format!("\n{line}");
    }
}

/// Such as `[files: created a.txt; changed b.txt, c.txt]`; `None` without changes.
fn changes(before: &Listing, after: &Listing) -> Option<String> {
    let created = after.keys().filter(|path| !before.contains_key(*path));
    let changed = after.iter().filter(|(path, facts)| before.get(*path).is_some_and(|old| old != *facts));
    let deleted = before.keys().filter(|path| !after.contains_key(*path));
    let kinds = [
        named("created", &outermost(created, after)),
        named("changed", &changed.map(|(path, _)| path.clone()).collect::<Vec<_>>()),
        named("deleted", &outermost(deleted, before)),
    ];
    let kinds: Vec<String> = kinds.into_iter().flatten().collect();
    (!kinds.is_empty()).then(|| format!("[files: {}]", kinds.join("; ")))
}

/// Without what lies in a folder of the list: the folder stands for it. Folders end with a slash.
fn outermost<'a>(paths: impl Iterator<Item = &'a String>, listing: &Listing) -> Vec<String> {
    let (mut outermost, mut folders): (Vec<String>, Vec<String>) = Default::default();
    // A folder comes before what it contains, but not always directly before.
    for path in paths {
        if folders.iter().any(|folder| path.starts_with(folder)) {
            continue;
        }
        if listing.get(path).is_some_and(Option::is_none) {
            folders.push(format!("{path}/"));
            outermost.push(format!("{path}/"));
        } else {
            outermost.push(path.clone());
        }
    }
    outermost
}

fn named(kind: &str, paths: &[String]) -> Option<String> {
    let plain = |path: &String| path.replace(char::is_control, "?");
    let shown: Vec<String> = paths.iter().take(MAX_NAMED).map(plain).collect();
    let more = match paths.len().saturating_sub(MAX_NAMED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    (!shown.is_empty()).then(|| format!("{kind} {}{more}", shown.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listing(entries: &[(&str, u64)]) -> Listing {
        let facts = |(path, size): &(&str, u64)| match path.strip_suffix('/') {
            Some(folder) => (folder.to_owned(), None),
            None => ((*path).to_owned(), Some((*size, 0))),
        };
        entries.iter().map(facts).collect()
    }

    #[test]
    fn a_new_folder_stands_for_what_it_contains() {
        let before = listing(&[("a.txt", 1), ("b.txt", 1), ("old/", 0), ("old/x", 1), ("src/", 0)]);
        let after = listing(&[
            ("a.txt", 2),
            ("b.txt", 1),
            ("src/", 0),
            ("src/new.rs", 1),
            ("web-old", 1),
            ("web/", 0),
            ("web/index.html", 1),
        ]);
        let text = changes(&before, &after);
        assert_eq!(
            text.as_deref(),
            Some("[files: created src/new.rs, web/, web-old; changed a.txt; deleted old/]")
        );
        assert_eq!(changes(&after, &after), None);
    }

    #[test]
    fn long_lists_of_changes_are_cut() {
        let many: Vec<(String, u64)> = (10..30).map(|number| (format!("f{number}"), 1)).collect();
        let many: Vec<(&str, u64)> = many.iter().map(|(path, size)| (path.as_str(), *size)).collect();
        let text = changes(&listing(&[]), &listing(&many)).unwrap();
        assert!(text.starts_with("[files: created f10, ") && text.ends_with("f17 and 12 more]"), "{text}");
    }

    #[test]
    fn the_line_stands_above_the_end_of_a_command() {
        let (before, after) = (listing(&[]), listing(&[("a", 1)]));
        for (text, with_changes) in [
            ("ok\n[exit code 0, 0.1 s]", "ok\n[files: created a]\n[exit code 0, 0.1 s]"),
            ("[done, 0.1 s]", "[files: created a]\n[done, 0.1 s]"),
            ("no end", "no end\n[files: created a]"),
        ] {
            let mut end = ToolEnd::done(text);
            add_changes(&mut end, &before, &after);
            assert_eq!(end.text, with_changes);
        }
    }

    #[test]
    fn tools_that_write_make_the_listing_old() {
        for (tool, is_known) in
            [("read_file", true), ("plan", true), ("write_file", false), ("hub__write", false)]
        {
            let mut known = KnownFiles(Some(Listing::new()));
            known.after(tool);
            assert_eq!(known.0.is_some(), is_known, "{tool}");
        }
    }
}
