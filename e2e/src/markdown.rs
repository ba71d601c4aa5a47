//! Links, anchors, tables and code blocks of the documentation, for the rules in `tests/tidy/documentation.rs`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// A Markdown page.
#[derive(Debug, Clone)]
pub struct Page {
    /// Path relative to the root of the documentation.
    pub path: PathBuf,
    text: String,
}

/// A link, image or include of a page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Link {
    /// Line number, from 1.
    pub line: usize,
    pub target: String,
}

/// A line of a page, and whether it belongs to a code block.
struct Line<'a> {
    number: usize,
    text: &'a str,
    is_code: bool,
}

impl Page {
    #[must_use]
    pub fn new(path: impl Into<PathBuf>, text: impl Into<String>) -> Self {
        Self { path: path.into(), text: text.into() }
    }

    /// Reads a file below `root`.
    pub fn read(root: &Path, path: &Path) -> std::io::Result<Self> {
        Ok(Self::new(path, std::fs::read_to_string(root.join(path))?))
    }

    fn lines(&self) -> impl Iterator<Item = Line<'_>> {
        let mut is_code = false;
        self.text.lines().enumerate().map(move |(index, text)| {
            let is_fence = text.trim_start().starts_with("```");
            let line = Line { number: index + 1, text, is_code: is_code || is_fence };
            is_code ^= is_fence;
            line
        })
    }

    /// Targets of links and images outside of code, and of `{{#include ...}}` anywhere.
    #[must_use]
    pub fn links(&self) -> Vec<Link> {
        let mut links = Vec::new();
        for line in self.lines() {
            let included = parts_between(line.text, "{{#include ", "}}");
            let linked =
                if line.is_code { Vec::new() } else { parts_between(&without_code(line.text), "](", ")") };
            let targets = included.into_iter().chain(linked);
            links.extend(targets.map(|target| Link { line: line.number, target }));
        }
        links
    }

    /// The anchors of the page's headings.
    #[must_use]
    pub fn anchors(&self) -> BTreeSet<String> {
        let mut seen = BTreeMap::<String, usize>::new();
        let mut anchors = BTreeSet::new();
        for heading in self.lines().filter(|line| !line.is_code).filter_map(|line| heading_of(line.text)) {
            let anchor = anchor_of(heading);
            let count = seen.entry(anchor.clone()).or_default();
            anchors.insert(if *count == 0 { anchor } else { format!("{anchor}-{count}") });
            *count += 1;
        }
        anchors
    }

    /// The text between the heading `title` and the next heading of the same or a higher level.
    #[must_use]
    pub fn section(&self, title: &str) -> Option<Self> {
        let level = |text: &str| text.bytes().take_while(|byte| *byte == b'#').count();
        let mut lines = self.lines();
        let start = lines.find(|line| !line.is_code && heading_of(line.text) == Some(title))?;
        let end = |line: &Line<'_>| {
            !line.is_code && heading_of(line.text).is_some() && level(line.text) <= level(start.text)
        };
        let text: Vec<&str> = lines.take_while(|line| !end(line)).map(|line| line.text).collect();
        Some(Self::new(&self.path, text.join("\n")))
    }

    /// The cells of the rows of all tables, without headers.
    #[must_use]
    pub fn rows(&self) -> Vec<Vec<String>> {
        let cells = |text: &str| -> Option<Vec<String>> {
            let inner = text.strip_prefix('|')?.strip_suffix('|')?;
            Some(inner.split('|').map(|cell| cell.trim().to_owned()).collect())
        };
        let is_separator = |text: &str| text.starts_with("|---");
        let lines: Vec<Line<'_>> = self.lines().filter(|line| !line.is_code).collect();
        let is_header = |index: usize| lines.get(index + 1).is_some_and(|next| is_separator(next.text));
        let rows =
            lines.iter().enumerate().filter(|(index, line)| !is_separator(line.text) && !is_header(*index));
        rows.filter_map(|(_, line)| cells(line.text)).collect()
    }

    /// The lines outside of code blocks.
    #[must_use]
    pub fn prose_lines(&self) -> Vec<&str> {
        self.lines().filter(|line| !line.is_code).map(|line| line.text).collect()
    }

    /// The lines of code blocks.
    #[must_use]
    pub fn code_lines(&self) -> Vec<&str> {
        self.lines().filter(|line| line.is_code).map(|line| line.text).collect()
    }
}

/// The words between backticks of a text.
#[must_use]
pub fn code_spans(text: &str) -> Vec<&str> {
    text.split('`').skip(1).step_by(2).collect()
}

/// Links of `page` that lead nowhere, each with the line and the reason. `root` is the folder that pages are relative to.
#[must_use]
pub fn broken_links(root: &Path, page: &Page) -> Vec<String> {
    let folder = page.path.parent().unwrap_or(Path::new(""));
    let mut broken = Vec::new();
    for link in page.links() {
        if ["http://", "https://", "mailto:"].iter().any(|scheme| link.target.starts_with(scheme)) {
            continue;
        }
        let (path, anchor) = link.target.split_once('#').unwrap_or((link.target.as_str(), ""));
        let target = if path.is_empty() { page.path.clone() } else { folder.join(path) };
        let mut report = |what: &str| {
            broken.push(format!("{}:{}: {what}: {}", page.path.display(), link.line, link.target));
        };
        if !root.join(&target).exists() {
            report("no such file");
            continue;
        }
        if anchor.is_empty() {
            continue;
        }
        let anchors = Page::read(root, &target).map(|target| target.anchors()).unwrap_or_default();
        if !anchors.contains(anchor) {
            report("no such heading");
        }
    }
    broken
}

fn heading_of(text: &str) -> Option<&str> {
    let title = text.trim_start_matches('#');
    let level = text.len() - title.len();
    if (1..=6).contains(&level) { title.strip_prefix(' ').map(str::trim) } else { None }
}

/// The anchor that GitHub and mdbook make of a heading.
fn anchor_of(heading: &str) -> String {
    heading
        .to_lowercase()
        .chars()
        .filter_map(|c| match c {
            ' ' => Some('-'),
            c if c.is_alphanumeric() || c == '-' || c == '_' => Some(c),
            _ => None,
        })
        .collect()
}

fn parts_between(text: &str, before: &str, after: &str) -> Vec<String> {
    text.split(before).skip(1).filter_map(|rest| rest.split(after).next()).map(str::to_owned).collect()
}

/// The text with its code spans blanked out.
fn without_code(text: &str) -> String {
    text.split('`').step_by(2).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(text: &str) -> Page {
        Page::new("docs/page.md", text)
    }

    #[test]
    fn links_in_code_are_no_links() {
        let text = "[a](one.md) ![b](two.png)\n`[c](three.md)`\n```\n[d](four.md)\n```\n| [e](#five) |";
        let targets: Vec<String> = page(text).links().into_iter().map(|link| link.target).collect();
        assert_eq!(targets, ["one.md", "two.png", "#five"]);
    }

    #[test]
    fn included_files_are_links_also_in_code() {
        let links = page("```toml\n{{#include ../a.toml}}\n```").links();
        assert_eq!(links, [Link { line: 2, target: "../a.toml".into() }]);
    }

    #[test]
    fn anchors_are_numbered_when_headings_repeat() {
        let text = "# When the host's `disk` gets full\n## Errors\n```\n# no heading\n```\n## Errors";
        let anchors: Vec<String> = page(text).anchors().into_iter().collect();
        assert_eq!(anchors, ["errors", "errors-1", "when-the-hosts-disk-gets-full"]);
    }

    #[test]
    fn a_section_ends_at_the_next_heading_of_its_level() {
        let text = "# A\n## B\n|x|y|\n|---|---|\n| 1 | 2 |\n### C\n| 3 | 4 |\n## D\n| 5 | 6 |";
        let rows = page(text).section("B").unwrap().rows();
        assert_eq!(rows, [["1", "2"], ["3", "4"]]);
    }

    #[test]
    fn links_to_missing_files_and_headings_are_broken() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("docs")).unwrap();
        std::fs::write(folder.path().join("docs/other.md"), "# Here\n").unwrap();
        let broken = |text: &str| {
            let page = page(text);
            std::fs::write(folder.path().join("docs/page.md"), text).unwrap();
            broken_links(folder.path(), &page)
        };
        assert!(
            broken("# Top\n[a](other.md) [b](other.md#here) [c](#top) [d](https://example.org/x)").is_empty()
        );
        assert_eq!(broken("[a](missing.md)"), ["docs/page.md:1: no such file: missing.md"]);
        assert_eq!(broken("\n[a](other.md#there)"), ["docs/page.md:2: no such heading: other.md#there"]);
        assert_eq!(broken("[a](#top)"), ["docs/page.md:1: no such heading: #top"]);
    }
}
