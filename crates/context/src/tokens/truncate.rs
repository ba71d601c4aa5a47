//! Shortens a text to a number of tokens: its head only, or head and tail with a line between them that says what is
//! missing. Also to a number of characters or bytes. Cuts are between lines or words.

use crate::tokens;

/// How far before a cut a line end, or else a space, is looked for.
const LINE_REACH: usize = 80;
const WORD_REACH: usize = 30;

/// The longest start of the text that takes at most `most` tokens. It ends at a line end or between two words if one is
/// near.
pub fn head(text: &str, most: u32) -> String {
    if fits(text, most) {
        return text.to_owned();
    }
    let mut end = bytes_that_may_fit(text.len(), most);
    loop {
        end = floor(text, end);
        if end == 0 {
            return String::new();
        }
        let cost = tokens::count(&text[..end]);
        if cost <= most {
            return text[..break_before(text, end)].to_owned();
        }
        end = shrink(end, most, cost);
    }
}

/// The longest end of the text that takes at most `most` tokens. It begins like [`head`] ends.
pub fn tail(text: &str, most: u32) -> String {
    if fits(text, most) {
        return text.to_owned();
    }
    let mut length = bytes_that_may_fit(text.len(), most);
    loop {
        let start = ceil(text, text.len() - length);
        length = text.len() - start;
        if length == 0 {
            return String::new();
        }
        let cost = tokens::count(&text[start..]);
        if cost <= most {
            return text[break_after(text, start)..].to_owned();
        }
        length = shrink(length, most, cost);
    }
}

/// Head and tail of a text in at most `most` tokens, with `gap(missing_bytes, missing_lines)` between them. The head
/// gets two thirds. Returns the whole text if it fits.
pub fn head_and_tail(text: &str, most: u32, gap: impl Fn(usize, usize) -> String) -> String {
    if fits(text, most) {
        return text.to_owned();
    }
    let lines = text.bytes().filter(|byte| *byte == b'\n').count();
    let widest = tokens::count(&gap(text.len(), lines)) + 4;
    let room = most.saturating_sub(widest);
    let mut head_room = room / 3 * 2;
    let mut tail_room = room - head_room;
    // The joined text may take a token or two more. Each round shrinks the parts, so the loop ends.
    loop {
        let start = head(text, head_room);
        let end = tail(&text[start.len()..], tail_room);
        let missing = &text[start.len()..text.len() - end.len()];
        let gap = gap(missing.len(), missing.bytes().filter(|byte| *byte == b'\n').count());
        let joined = format!("{start}\n{gap}\n{end}");
        if fits(&joined, most) {
            return joined;
        }
        if head_room == 0 && tail_room == 0 {
            return head(&gap, most);
        }
        head_room = head_room.saturating_sub(head_room / 16 + 1);
        tail_room = tail_room.saturating_sub(tail_room / 16 + 1);
    }
}

/// The longest start of the text that has at most `most` characters. It ends like [`head`] does.
pub fn first_characters(text: &str, most: usize) -> &str {
    match text.char_indices().nth(most) {
        Some((end, _)) => &text[..break_before(text, end)],
        None => text,
    }
}

/// The longest end of the text that has at most `most` bytes. It begins like [`tail`] does.
pub fn last_bytes(text: &str, most: usize) -> &str {
    match text.len().checked_sub(most) {
        Some(start) => &text[break_after(text, ceil(text, start))..],
        None => text,
    }
}

/// Whether a text takes at most `most` tokens. A token has at least one byte, so short texts need no counting.
pub fn fits(text: &str, most: u32) -> bool {
    let most_bytes = most as usize;
    if text.len() <= most_bytes {
        return true;
    }
    // No token of the vocabulary is longer than this.
    const LONGEST_TOKEN: usize = 128;
    text.len() <= most_bytes.saturating_mul(LONGEST_TOKEN) && tokens::count(text) <= most
}

fn bytes_that_may_fit(length: usize, most: u32) -> usize {
    length.min((most as usize).saturating_mul(6))
}

fn shrink(length: usize, most: u32, cost: u32) -> usize {
    let scaled = (length as u64 * u64::from(most) / u64::from(cost.max(1))) as usize;
    scaled.min(length - 1)
}

/// The line end, or else the end of a space, that is shortly before a byte offset; the offset itself if there is none.
pub(crate) fn break_before(text: &str, at: usize) -> usize {
    if at >= text.len() {
        return at;
    }
    let before = |reach: usize| &text[ceil(text, at.saturating_sub(reach))..at];
    let line = before(LINE_REACH).rfind('\n').map(|found| before(LINE_REACH).len() - found - 1);
    let space = || {
        let near = before(WORD_REACH);
        let is_between_words = text[at..].starts_with(char::is_whitespace);
        if is_between_words { Some(0) } else { near.rfind([' ', '\t']).map(|found| near.len() - found - 1) }
    };
    // At least something is kept.
    line.or_else(space).map_or(at, |back| at - back).max(usize::from(at > 0)).min(at)
}

/// The start of a line, or else of a word, that is shortly after a byte offset; the offset itself if there is none.
fn break_after(text: &str, at: usize) -> usize {
    if at == 0 || text[..at].ends_with(char::is_whitespace) {
        return at;
    }
    let after = |reach: usize| &text[at..floor(text, at + reach)];
    let line = after(LINE_REACH).find('\n').map(|found| found + 1);
    let space = || after(WORD_REACH).find([' ', '\t']).map(|found| found + 1);
    line.or_else(space).map_or(at, |forward| at + forward)
}

/// The character boundary at or before a byte offset.
pub(crate) fn floor(text: &str, at: usize) -> usize {
    let mut at = at.min(text.len());
    while !text.is_char_boundary(at) {
        at -= 1;
    }
    at
}

/// The character boundary at or after a byte offset.
pub(crate) fn ceil(text: &str, at: usize) -> usize {
    let mut at = at.min(text.len());
    while !text.is_char_boundary(at) {
        at += 1;
    }
    at
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_and_bytes_are_cut_between_words() {
        assert_eq!(first_characters("one two three", 9), "one two ");
        assert_eq!(first_characters("one two three", 7), "one two");
        assert_eq!(first_characters("one two", 7), "one two");
        assert_eq!(last_bytes("one two three", 7), "three");
        assert_eq!(last_bytes("one two three", 5), "three");
        assert_eq!(last_bytes("one\ntwo three", 100), "one\ntwo three");
        assert_eq!(last_bytes("first line\nsecond line", 13), "second line");
    }

    #[test]
    fn cuts_are_between_lines_or_words() {
        let prose = "many short words follow each other in this sentence ".repeat(40);
        let lines: String = (0..200).map(|line| format!("line {line} of the log\n")).collect();
        for most in 5..60 {
            let (start, end) = (head(&prose, most), tail(&prose, most));
            assert!(start.ends_with(' ') || prose[start.len()..].starts_with(' '), "{start}");
            assert!(prose[..prose.len() - end.len()].ends_with(' '), "{end}");
            assert!(!start.is_empty() && tokens::count(&start) <= most && tokens::count(&end) <= most);
            assert!(most < 20 || head(&lines, most).ends_with('\n'), "{most}");
        }
        // Where there is nothing to break at, the text is cut anyway.
        let word = "日本語テキスト".repeat(100);
        assert!(!head(&word, 10).is_empty() && !tail(&word, 10).is_empty());
        assert_eq!(first_characters(&word, 9).chars().count(), 9);
        assert_eq!(last_bytes(&word, 10).chars().count(), 3);
    }
}
