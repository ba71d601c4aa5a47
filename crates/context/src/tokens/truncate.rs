//! Shortens a text to a number of tokens: its head only, or head and tail with a line between them that says what is
//! missing.

use crate::tokens;

/// The longest start of the text that takes at most `most` tokens. It ends at a character boundary and, if one is
/// near, at a line end.
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
            return text[..end].to_owned();
        }
        end = shrink(end, most, cost);
    }
}

/// The longest end of the text that takes at most `most` tokens.
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
            return text[start..].to_owned();
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
