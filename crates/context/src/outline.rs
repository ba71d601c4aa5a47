//! The outline of a very large file: a tree of summaries. Chunks of whole lines are summarized by rules, and eight
//! parts of a level are merged into one of the next. Any range can therefore be shown in more detail.

use std::fmt::Write as _;

use crate::event_facts;
use crate::map::{Definition, definitions};
use crate::recall::Lines;
use crate::tokens;

/// The maximum size of a chunk in lines and bytes, whichever is reached first.
const CHUNK_LINES: usize = 400;
const CHUNK_BYTES: usize = 32 * 1024;
/// How many parts of a level are merged into one of the next.
const FAN_IN: usize = 8;
/// The maximum number of lines that describe one part.
const MAX_DESCRIPTIONS: usize = 12;

/// A summarized part of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    pub lines: Lines,
    pub bytes: usize,
    /// Descriptive lines of the part, with line numbers.
    pub descriptions: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outline {
    path: String,
    lines: usize,
    bytes: usize,
    /// From the chunks to the single part that covers the whole file.
    levels: Vec<Vec<Part>>,
}

impl Outline {
    /// Builds the outline of any text file.
    pub fn of(path: &str, text: &str) -> Self {
        let known = definitions(path, text);
        let mut levels = vec![chunks(text, &known)];
        while let Some(last) = levels.last().filter(|level| level.len() > 1) {
            let next = last.chunks(FAN_IN).map(join).collect();
            levels.push(next);
        }
        Self { path: path.to_owned(), lines: crate::output_cap::count_lines(text), bytes: text.len(), levels }
    }

    /// The levels, from chunks to the whole file.
    pub fn levels(&self) -> &[Vec<Part>] {
        &self.levels
    }

    /// Renders the most detailed level that fits into `max_tokens`.
    pub fn render(&self, max_tokens: u32) -> String {
        self.render_range(Lines::ALL, max_tokens)
    }

    /// Renders the outline of a range. A smaller range gets more detail.
    pub fn render_range(&self, range: Lines, max_tokens: u32) -> String {
        let head = format!(
            "{}: {} lines, {} bytes. Read any range by its lines.\n",
            self.path, self.lines, self.bytes
        );
        for level in &self.levels {
            let text = head.clone() + &render(level, range);
            if tokens::count(&text) <= max_tokens {
                return text;
            }
        }
        let top = self.levels.last().map(|level| render(level, range)).unwrap_or_default();
        crate::tokens::truncate::head(&(head + &top), max_tokens)
    }
}

fn render(level: &[Part], range: Lines) -> String {
    let mut text = String::new();
    for part in level.iter().filter(|part| part.lines.last >= range.first && part.lines.first <= range.last) {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "lines {}-{} ({} bytes)", part.lines.first, part.lines.last, part.bytes);
        for description in &part.descriptions {
            let _ = writeln!(text, "  {description}");
        }
    }
    text
}

fn chunks(text: &str, known: &[Definition]) -> Vec<Part> {
    let mut parts = Vec::new();
    let mut chunk: Vec<&str> = Vec::new();
    let (mut first, mut bytes) = (1, 0);
    for line in text.split_inclusive('\n') {
        if !chunk.is_empty() && (chunk.len() == CHUNK_LINES || bytes + line.len() > CHUNK_BYTES) {
            parts.push(describe_chunk(&chunk, first, bytes, known));
            first += chunk.len();
            (chunk, bytes) = (Vec::new(), 0);
        }
        chunk.push(line);
        bytes += line.len();
    }
    if !chunk.is_empty() {
        parts.push(describe_chunk(&chunk, first, bytes, known));
    }
    parts
}

/// Describes a chunk: its definitions, or headings, or error lines, or its first and last line.
fn describe_chunk(chunk: &[&str], first: usize, bytes: usize, known: &[Definition]) -> Part {
    let last = first + chunk.len() - 1;
    let lines = Lines { first, last };
    let numbered = |(at, line): (usize, &&str)| format!("{}: {}", first + at, event_facts::short(line, 120));
    let mut descriptions: Vec<String> = known
        .iter()
        .filter(|definition| definition.line >= first && definition.line <= last)
        .map(|definition| format!("{}: {}", definition.line, definition.signature))
        .collect();
    if descriptions.is_empty() {
        let most_descriptive = |line: &str| line.starts_with('#') || event_facts::is_notable(line);
        descriptions =
            chunk.iter().enumerate().filter(|(_, line)| most_descriptive(line)).map(numbered).collect();
    }
    if descriptions.is_empty() {
        let filled = || chunk.iter().enumerate().filter(|(_, line)| !line.trim().is_empty());
        descriptions.extend(filled().next().map(numbered));
        descriptions.extend(filled().next_back().filter(|(at, _)| *at > 0).map(numbered));
    }
    Part { lines, bytes, descriptions: spread(descriptions) }
}

fn join(parts: &[Part]) -> Part {
    let first = parts.first().map_or(1, |part| part.lines.first);
    let last = parts.last().map_or(1, |part| part.lines.last);
    let descriptions = parts.iter().flat_map(|part| part.descriptions.iter().cloned()).collect();
    let bytes = parts.iter().map(|part| part.bytes).sum();
    Part { lines: Lines { first, last }, bytes, descriptions: spread(descriptions) }
}

/// Keeps at most [`MAX_DESCRIPTIONS`] lines, evenly spaced.
fn spread(lines: Vec<String>) -> Vec<String> {
    if lines.len() <= MAX_DESCRIPTIONS {
        return lines;
    }
    let all = lines.len();
    let more = all - MAX_DESCRIPTIONS;
    let mut kept: Vec<String> =
        (0..MAX_DESCRIPTIONS).map(|at| lines[at * all / MAX_DESCRIPTIONS].clone()).collect();
    kept.push(format!("({more} more)"));
    kept
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn large_log_is_outlined_and_ranges_show_more_detail() {
        let text: String = (1..=200_000)
            .map(|line| {
                if line % 40_000 == 7 {
                    format!("error: step {line} failed\n")
                } else {
                    format!("step {line} done\n")
                }
            })
            .collect();
        let outline = Outline::of("build.log", &text);
        let whole = outline.render(1_500);
        assert!(tokens::count(&whole) <= 1_500);
        assert!(whole.starts_with("build.log: 200000 lines, "), "{whole}");
        assert!(whole.contains("7: error: step 7 failed"), "{whole}");
        let range = outline.render_range(Lines { first: 40_001, last: 40_400 }, 1_500);
        assert!(
            range.contains("lines 40001-40400") && range.contains("40007: error: step 40007 failed"),
            "{range}"
        );
    }

    #[test]
    fn code_is_outlined_by_its_definitions() {
        let text: String =
            (0..3000).map(|n| format!("pub fn function_{n}(x: u32) -> u32 {{\n    x\n}}\n\n")).collect();
        let outline = Outline::of("src/big.rs", &text);
        let range = outline.render_range(Lines { first: 1, last: 400 }, 2_000);
        assert!(range.contains("1: pub fn function_0(x: u32) -> u32"), "{range}");
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 16, ..ProptestConfig::default() })]
        #[test]
        fn every_level_covers_every_line_once(
            lines in prop::collection::vec("[ -~]{0,60}", 1..20), repeat in 0_usize..300, end in "\n?"
        ) {
            let text = lines.join("\n").repeat(repeat) + &end;
            let outline = Outline::of("a.txt", &text);
            for level in outline.levels() {
                let mut next = 1;
                for part in level {
                    prop_assert_eq!(part.lines.first, next);
                    next = part.lines.last + 1;
                }
                prop_assert_eq!(next, crate::output_cap::count_lines(&text) + 1);
                prop_assert_eq!(level.iter().map(|part| part.bytes).sum::<usize>(), text.len());
            }
            prop_assert!(tokens::count(&outline.render(500)) <= 500);
        }
    }
}
