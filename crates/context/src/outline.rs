//! The outline of a very large file: a tree of summaries. Chunks of whole lines are summarized by rules, and eight
//! parts of a level are merged into one of the next. Any range can therefore be shown in more detail.

use std::fmt::Write as _;

use crate::facts;
use crate::map::{Definition, definitions};
use crate::recall::Lines;
use crate::tokens;

/// The maximum size of a chunk in lines and bytes, whichever is reached first.
const CHUNK_LINES: usize = 400;
const CHUNK_BYTES: usize = 32 * 1024;
/// How many parts of a level are merged into one of the next.
const FAN: usize = 8;
/// The maximum number of lines that describe one part.
const MOST_SAID: usize = 12;

/// A summarized part of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    pub lines: Lines,
    pub bytes: usize,
    /// Descriptive lines of the part, with line numbers.
    pub said: Vec<String>,
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
            let next = last.chunks(FAN).map(join).collect();
            levels.push(next);
        }
        Self { path: path.to_owned(), lines: crate::output::count_lines(text), bytes: text.len(), levels }
    }

    /// The levels, from chunks to the whole file.
    pub fn levels(&self) -> &[Vec<Part>] {
        &self.levels
    }

    /// Renders the most detailed level that fits into `most_tokens`.
    pub fn render(&self, most_tokens: u32) -> String {
        self.render_range(Lines::ALL, most_tokens)
    }

    /// Renders the outline of a range. A smaller range gets more detail.
    pub fn render_range(&self, range: Lines, most_tokens: u32) -> String {
        let head = format!(
            "{}: {} lines, {} bytes. Read any range by its lines.\n",
            self.path, self.lines, self.bytes
        );
        for level in &self.levels {
            let text = head.clone() + &render(level, range);
            if tokens::count(&text) <= most_tokens {
                return text;
            }
        }
        let top = self.levels.last().map(|level| render(level, range)).unwrap_or_default();
        crate::cut::head(&(head + &top), most_tokens)
    }
}

fn render(level: &[Part], range: Lines) -> String {
    let mut text = String::new();
    for part in level.iter().filter(|part| part.lines.last >= range.first && part.lines.first <= range.last) {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "lines {}-{} ({} bytes)", part.lines.first, part.lines.last, part.bytes);
        for said in &part.said {
            let _ = writeln!(text, "  {said}");
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
            parts.push(sum_up(&chunk, first, bytes, known));
            first += chunk.len();
            (chunk, bytes) = (Vec::new(), 0);
        }
        chunk.push(line);
        bytes += line.len();
    }
    if !chunk.is_empty() {
        parts.push(sum_up(&chunk, first, bytes, known));
    }
    parts
}

/// Describes a chunk: its definitions, or headings, or error lines, or its first and last line.
fn sum_up(chunk: &[&str], first: usize, bytes: usize, known: &[Definition]) -> Part {
    let last = first + chunk.len() - 1;
    let lines = Lines { first, last };
    let numbered = |(at, line): (usize, &&str)| format!("{}: {}", first + at, facts::short(line, 120));
    let mut said: Vec<String> = known
        .iter()
        .filter(|definition| definition.line >= first && definition.line <= last)
        .map(|definition| format!("{}: {}", definition.line, definition.signature))
        .collect();
    if said.is_empty() {
        let telling = |line: &str| line.starts_with('#') || facts::is_telling(line);
        said = chunk.iter().enumerate().filter(|(_, line)| telling(line)).map(numbered).collect();
    }
    if said.is_empty() {
        let filled = || chunk.iter().enumerate().filter(|(_, line)| !line.trim().is_empty());
        said.extend(filled().next().map(numbered));
        said.extend(filled().next_back().filter(|(at, _)| *at > 0).map(numbered));
    }
    Part { lines, bytes, said: spread(said) }
}

fn join(parts: &[Part]) -> Part {
    let first = parts.first().map_or(1, |part| part.lines.first);
    let last = parts.last().map_or(1, |part| part.lines.last);
    let said = parts.iter().flat_map(|part| part.said.iter().cloned()).collect();
    let bytes = parts.iter().map(|part| part.bytes).sum();
    Part { lines: Lines { first, last }, bytes, said: spread(said) }
}

/// Keeps at most [`MOST_SAID`] lines, evenly spaced.
fn spread(said: Vec<String>) -> Vec<String> {
    if said.len() <= MOST_SAID {
        return said;
    }
    let all = said.len();
    let more = all - MOST_SAID;
    let mut kept: Vec<String> = (0..MOST_SAID).map(|at| said[at * all / MOST_SAID].clone()).collect();
    kept.push(format!("({more} more)"));
    kept
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_giant_log_fits_into_an_outline_and_a_range_shows_more() {
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
                prop_assert_eq!(next, crate::output::count_lines(&text) + 1);
                prop_assert_eq!(level.iter().map(|part| part.bytes).sum::<usize>(), text.len());
            }
            prop_assert!(tokens::count(&outline.render(500)) <= 500);
        }
    }
}
