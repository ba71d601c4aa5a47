//! What an edit has changed: the lines around it with their numbers, and a syntax error that it has introduced.

use std::fmt::Write as _;
use std::ops::Range;

use context::map::first_syntax_error;
use context::truncate::first_characters;

/// Lines shown before and after the change.
const AROUND: usize = 2;
/// The maximum number of lines shown; of a longer change the beginning is shown.
const MAX_LINES: usize = 24;
/// Longer lines are cut, in characters.
const LONGEST_LINE: usize = 200;
/// Larger contents are not parsed: the parser runs on the async worker.
const MAX_PARSED_BYTES: usize = 512 * 1024;

/// The lines of `after` around changes, each given by the byte offsets of what it has put there, in order.
pub(super) fn changed_regions(after: &str, changes: impl IntoIterator<Item = Range<usize>>) -> String {
    let (mut counted, mut line) = (0, 0);
    let mut line_of = |offset: usize| {
        let offset = offset.min(after.len());
        line += after.as_bytes()[counted..offset.max(counted)].iter().filter(|byte| **byte == b'\n').count();
        counted = offset.max(counted);
        line
    };
    let lines = changes.into_iter().map(|change| {
        let first = line_of(change.start).saturating_sub(AROUND);
        first..line_of(change.end) + AROUND + 1
    });
    numbered_regions(after, lines.collect())
}

/// These lines of a text, counted from 0, with their numbers. Ranges are in order and may overlap.
pub(super) fn numbered_regions(text: &str, regions: Vec<Range<usize>>) -> String {
    let lines: Vec<&str> = text.lines().collect();
    let (mut shown, mut next, mut count, mut left_out) = (String::new(), 0, 0, 0);
    for region in regions {
        let first = region.start.max(next);
        for (index, line) in lines.iter().enumerate().take(region.end).skip(first) {
            if count == MAX_LINES {
                left_out += 1;
                continue;
            }
            if index > next && count > 0 {
                shown += "  ...\n";
            }
            count += 1;
            next = index + 1;
            // Writing to a string cannot fail.
            let _ = writeln!(shown, "{:>5}  {}", index + 1, first_characters(line, LONGEST_LINE));
        }
        next = next.max(region.end);
    }
    if left_out > 0 {
        let _ = writeln!(shown, "[{left_out} more lines of the change]");
    }
    shown
}

/// A note about a syntax error that the new content has and the old one had not; empty if there is none, or if
/// one of them is too large to be parsed.
pub(super) fn syntax_note(path: &str, before: Option<&str>, after: &str) -> String {
    if before.unwrap_or_default().len().max(after.len()) > MAX_PARSED_BYTES {
        return String::new();
    }
    let had_error = before.is_some_and(|before| first_syntax_error(path, before).is_some());
    match first_syntax_error(path, after) {
        Some(line) if !had_error => format!("\n[{path} has a syntax error at line {line} now]"),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_shown_with_its_numbers_and_neighbours() {
        let after: String = (1..=40).map(|line| format!("line {line}\n")).collect();
        let at = after.find("line 10").unwrap();
        let changed_region =
            |after: &str, at: usize, length: usize| changed_regions(after, std::iter::once(at..at + length));
        let wanted = "    8  line 8\n    9  line 9\n   10  line 10\n   11  line 11\n   12  line 12\n";
        assert_eq!(changed_region(&after, at, 7), wanted);
        assert!(
            changed_region(&after, 0, after.len())
                .ends_with("   24  line 24\n[16 more lines of the change]\n")
        );
        assert_eq!(changed_region("", 0, 0), "");
    }

    #[test]
    fn several_changes_are_shown_in_order_and_joined_where_they_meet() {
        let after: String = (1..=40).map(|line| format!("line {line}\n")).collect();
        let places = ["line 3\n", "line 6\n", "line 20"].map(|line| {
            let at = after.find(line).unwrap();
            at..at + 6
        });
        let lines = |range: std::ops::RangeInclusive<usize>| -> String {
            range.map(|line| format!("{line:>5}  line {line}\n")).collect()
        };
        assert_eq!(changed_regions(&after, places), format!("{}  ...\n{}", lines(1..=8), lines(18..=22)));
        let ends = changed_regions(&after, [0..1, after.len() - 1..after.len()]);
        assert_eq!(ends, format!("{}  ...\n{}", lines(1..=3), lines(38..=40)));
    }

    #[test]
    fn only_new_syntax_errors_are_mentioned() {
        let (good, bad) = ("def f():\n    return 1\n", "def f(:\n    return 1\n");
        assert_eq!(syntax_note("a.py", Some(good), bad), "\n[a.py has a syntax error at line 1 now]");
        assert_eq!(syntax_note("a.py", None, bad), "\n[a.py has a syntax error at line 1 now]");
        assert_eq!(syntax_note("a.py", Some(bad), bad), "");
        assert_eq!(syntax_note("a.py", Some(bad), good), "");
    }

    #[test]
    fn large_contents_are_not_parsed() {
        let (good, bad) = ("def f():\n    return 1\n", "def f(:\n    return 1\n");
        let large = format!("{bad}{}", "#\n".repeat(MAX_PARSED_BYTES / 2));
        assert_eq!(syntax_note("a.py", Some(good), &large), "");
        assert_eq!(syntax_note("a.py", Some(&large), bad), "");
    }

    #[test]
    fn a_file_written_in_pieces_has_no_new_syntax_error() {
        let (first, second) = ("values = [\n", "    1,\n");
        assert_eq!(syntax_note("a.py", Some(first), &format!("{first}{second}")), "");
    }
}
