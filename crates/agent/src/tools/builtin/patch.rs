//! Parses unified diffs as models write them and applies them by content. Line numbers are only a hint.

use std::ops::Range;

use serde_json::{Value, json};

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FilePatch {
    /// Path before the change; `None` for a new file.
    pub(crate) old_path: Option<String>,
    /// Path after the change; `None` for a deleted file.
    pub(crate) new_path: Option<String>,
    hunks: Vec<Hunk>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Hunk {
    /// Expected line in the old file, from 0.
    at: Option<usize>,
    old: Vec<String>,
    new: Vec<String>,
}

pub(crate) fn parse(text: &str) -> Result<Vec<FilePatch>, String> {
    let mut files: Vec<FilePatch> = Vec::new();
    let mut old_path: Option<Option<String>> = None;
    let lines: Vec<&str> = text.lines().collect();
    let mut index = 0;
    while index < lines.len() {
        let line = lines[index];
        index += 1;
        if let Some(path) = line.strip_prefix("--- ") {
            old_path = Some(path_of(path));
        } else if let (Some(path), true) = (line.strip_prefix("+++ "), old_path.is_some()) {
            files.push(FilePatch {
                old_path: old_path.take().flatten(),
                new_path: path_of(path),
                hunks: Vec::new(),
            });
        } else if line.starts_with("@@") {
            let Some(file) = files.last_mut() else {
                return Err("a hunk (@@) comes before the `--- a/file` and `+++ b/file` lines".into());
            };
            let (hunk, used) = read_hunk(line, &lines[index..]);
            index += used;
            file.hunks.push(hunk);
        }
    }
    if files.is_empty() {
        return Err("there is no `--- a/file` and `+++ b/file` in it; write a unified diff".into());
    }
    match files.iter().find(|file| file.new_path.is_some() && file.hunks.is_empty()) {
        Some(file) => Err(format!("{} has no hunk (@@)", file.shown_path())),
        None => Ok(files),
    }
}

fn path_of(text: &str) -> Option<String> {
    let path = text.split('\t').next().unwrap_or(text).trim();
    if path == "/dev/null" {
        return None;
    }
    let path = path.strip_prefix("a/").or_else(|| path.strip_prefix("b/")).unwrap_or(path);
    Some(path.to_owned())
}

fn read_hunk(head: &str, lines: &[&str]) -> (Hunk, usize) {
    let number =
        head.split('-').nth(1).map(|rest| rest.chars().take_while(char::is_ascii_digit).collect::<String>());
    let at = number.and_then(|number| number.parse::<usize>().ok()).map(|line| line.saturating_sub(1));
    let mut hunk = Hunk { at, ..Hunk::default() };
    let mut used = 0;
    for (index, line) in lines.iter().enumerate() {
        let next = lines.get(index + 1).copied().unwrap_or_default();
        if line.starts_with("@@")
            || line.starts_with("diff ")
            || (line.starts_with("--- ") && next.starts_with("+++ "))
        {
            break;
        }
        used += 1;
        match line.chars().next() {
            Some('+') => hunk.new.push(line[1..].to_owned()),
            Some('-') => hunk.old.push(line[1..].to_owned()),
            Some('\\') => {}
            Some(' ') => {
                hunk.old.push(line[1..].to_owned());
                hunk.new.push(line[1..].to_owned());
            }
            // An empty line that lost its leading space, or a line without a diff marker.
            _ => {
                hunk.old.push((*line).to_owned());
                hunk.new.push((*line).to_owned());
            }
        }
    }
    // Trailing empty lines come from the way the patch was quoted.
    while hunk.old.last().is_some_and(String::is_empty) && hunk.new.last().is_some_and(String::is_empty) {
        hunk.old.pop();
        hunk.new.pop();
    }
    (hunk, used)
}

impl FilePatch {
    /// The path to show to people.
    pub(crate) fn shown_path(&self) -> &str {
        self.new_path.as_deref().or(self.old_path.as_deref()).unwrap_or_default()
    }

    /// The change of the file at this path, as JSON for a script that applies it.
    pub(crate) fn to_json(&self, path: &str) -> Value {
        let hunk = |hunk: &Hunk| json!({"at": hunk.at, "old": hunk.old, "new": hunk.new});
        let hunks: Vec<Value> = self.hunks.iter().map(hunk).collect();
        json!({"path": path, "made": self.old_path.is_none(), "removed": self.new_path.is_none(), "hunks": hunks})
    }

    /// Applies the patch to the file's content. Also returns which lines of the result it has put there, counted from 0.
    pub(crate) fn apply(&self, content: &str) -> Result<(String, Vec<Range<usize>>), String> {
        let mut changed = Vec::new();
        let mut lines: Vec<String> = content.lines().map(ToOwned::to_owned).collect();
        let mut from = 0;
        for (index, hunk) in self.hunks.iter().enumerate() {
            let at = hunk.find(&lines, from).ok_or_else(|| {
                let first = hunk.old.iter().find(|line| !line.trim().is_empty());
                format!(
                    "hunk {} does not fit {}: the lines around `{}` are not there as written; read the file again",
                    index + 1,
                    self.shown_path(),
                    first.map_or("", |line| line.trim())
                )
            })?;
            lines.splice(at..at + hunk.old.len(), hunk.new.iter().cloned());
            from = at + hunk.new.len();
            changed.push(at..from);
        }
        let mut text = lines.join("\n");
        if !text.is_empty() && (content.is_empty() || content.ends_with('\n')) {
            text.push('\n');
        }
        Ok((text, changed))
    }
}

impl Hunk {
    /// Finds the old lines, as close to the expected line as possible. Ignores trailing white space if there is no
    /// exact match.
    fn find(&self, lines: &[String], from: usize) -> Option<usize> {
        if self.old.is_empty() {
            return Some(self.at.map_or(lines.len(), |at| at.max(from).min(lines.len())));
        }
        let last_start = lines.len().checked_sub(self.old.len())?;
        let wanted = self.at.unwrap_or(from);
        let same: [fn(&str, &str) -> bool; 3] =
            [|a, b| a == b, |a, b| a.trim_end() == b.trim_end(), |a, b| a.trim() == b.trim()];
        same.iter().find_map(|same| {
            (0..=last_start)
                .filter(|at| {
                    *at >= from && self.old.iter().zip(&lines[*at..]).all(|(old, line)| same(old, line))
                })
                .min_by_key(|at| at.abs_diff(wanted))
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PATCH: &str = "\
diff --git a/a.py b/a.py
--- a/a.py
+++ b/a.py
@@ -10,3 +10,3 @@ def x
 def two():
-    return 1
+    return 2

--- /dev/null
+++ b/new.txt
@@ -0,0 +1,2 @@
+one
+two
--- a/old.txt
+++ /dev/null
";

    #[test]
    fn patches_change_create_and_delete_files() {
        let files = parse(PATCH).unwrap();
        assert_eq!(files.len(), 3);
        let (text, changed) =
            files[0].apply("def one():\n    return 1\n\ndef two():\n    return 1\n\nend\n").unwrap();
        assert_eq!(text, "def one():\n    return 1\n\ndef two():\n    return 2\n\nend\n");
        assert_eq!(changed.first(), Some(&(3..5)));
        assert_eq!(files[1].apply("").unwrap().0, "one\ntwo\n");
        assert_eq!((files[2].shown_path(), files[2].new_path.is_none()), ("old.txt", true));
    }

    #[test]
    fn failing_hunk_is_named() {
        let files = parse(PATCH).unwrap();
        let error = files[0].apply("something else\nof three\nlines\n").unwrap_err();
        assert!(error.contains("hunk 1") && error.contains("def two()"), "{error}");
        assert!(parse("nonsense").is_err());
        assert!(parse("@@ -1 +1 @@\n-a\n+b").unwrap_err().contains("before"));
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic(text in "(@@|---|\\+\\+\\+|[-+ a\n]){0,60}", content in "[a \n]{0,40}") {
            for file in parse(&text).unwrap_or_default() {
                let _ = file.apply(&content);
            }
        }
    }
}
