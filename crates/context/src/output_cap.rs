//! The size limit for tool output. A larger output goes into a blob; the model reads its head, its tail, the counts
//! and how to get the rest.

use sha2::{Digest as _, Sha256};

use crate::entry::Blob;
use crate::tokens::truncate;

/// Output with more lines is capped.
pub const MAX_LINES: usize = 2_000;
/// Output with more bytes is capped.
pub const MAX_BYTES: usize = 50 * 1024;

/// Bytes of a preview that are reserved for the line between head and tail.
const GAP_BYTES: usize = 256;
/// A smaller preview would show nothing useful.
const MIN_BYTES: usize = 1024;

/// The maximum that a model reads of one output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    pub lines: usize,
    pub bytes: usize,
}

impl Limits {
    /// The limits for a window that is large enough for them.
    pub const FULL: Self = Self { lines: MAX_LINES, bytes: MAX_BYTES };

    /// The limits for a prompt of `tokens` tokens: one output takes about an eighth of it, at four bytes per token.
    #[must_use]
    pub fn for_budget(tokens: u32) -> Self {
        Self::FULL.with_bytes(tokens as usize / 8 * 4)
    }

    /// Scales the limits to `tenths` tenths.
    #[must_use]
    pub fn tenths(self, tenths: usize) -> Self {
        Self { lines: self.lines * tenths / 10, bytes: self.bytes * tenths / 10 }
    }

    fn with_bytes(self, bytes: usize) -> Self {
        let bytes = bytes.clamp(MIN_BYTES, self.bytes);
        Self { lines: self.lines * bytes / self.bytes, bytes }
    }

    /// Whether a text is within the limits.
    #[must_use]
    pub fn fit(&self, text: &str) -> bool {
        text.len() <= self.bytes && (text.len() <= self.lines || count_lines(text) <= self.lines)
    }
}

/// An output as the model reads it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Capped {
    pub text: String,
    /// Set if `text` is only part of the output: store the complete output under this digest.
    pub blob: Option<Blob>,
}

/// SHA-256 in hexadecimal.
pub fn digest(bytes: &[u8]) -> String {
    hexadecimal(&Sha256::digest(bytes))
}

pub(crate) fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        for nibble in [byte >> 4, byte & 15] {
            text.push(char::from_digit(u32::from(nibble), 16).unwrap_or('0'));
        }
        text
    })
}

/// Caps an output. The preview has the first two thirds and the last third of the allowed size, in whole lines if
/// they are short enough.
pub fn cap(text: &str) -> Capped {
    if is_within(text) {
        return Capped { text: text.to_owned(), blob: None };
    }
    let blob = blob_of(text);
    let text = preview(text, &blob, Limits::FULL, "giving the event and the lines");
    Capped { text, blob: Some(blob) }
}

/// The blob for a complete text.
pub fn blob_of(text: &str) -> Blob {
    let lines = count_lines(text) as u64;
    Blob { digest: digest(text.as_bytes()), bytes: text.len() as u64, lines }
}

/// Whether an output needs no cap.
pub fn is_within(text: &str) -> bool {
    Limits::FULL.fit(text)
}

/// Head and tail of a text that is stored elsewhere as a whole. A line between them has the counts and says how to
/// read the rest: with `history_read`, passing `giving`.
pub fn preview(text: &str, whole: &Blob, limits: Limits, giving: &str) -> String {
    // Reserve room for the line in between, so that the preview of a preview is the same text.
    let bytes = limits.bytes.saturating_sub(GAP_BYTES);
    let head_end = take_head(text, limits.lines / 3 * 2, bytes / 3 * 2);
    let tail_lines = (limits.lines / 3).saturating_sub(2).max(1);
    let tail_start = take_tail(&text[head_end..], tail_lines, bytes / 3) + head_end;
    let (head, tail) = (&text[..head_end], &text[tail_start..]);
    // A line that is shown only in part counts as not shown.
    let first = count_lines(head) + usize::from(head.is_empty() || head.ends_with('\n'));
    let all = usize::try_from(whole.lines).unwrap_or(usize::MAX);
    let last = all - count_lines(tail).min(all) + usize::from(!text[..tail_start].ends_with('\n'));
    let missing = tail_start - head_end;
    format!(
        "{}\n[{missing} bytes, lines {first}-{} of {all} ({} bytes in all), are not shown; read them with history_read, \
         {giving}]\n{tail}",
        head.trim_end_matches('\n'),
        last.clamp(first, all.max(first)),
        whole.bytes,
    )
}

/// Number of lines; a last line without a line end counts.
pub fn count_lines(text: &str) -> usize {
    let ends = text.bytes().filter(|byte| *byte == b'\n').count();
    ends + usize::from(!text.is_empty() && !text.ends_with('\n'))
}

/// The end of the head: the line or byte limit, at a line boundary unless the line is longer than the limit.
fn take_head(text: &str, lines: usize, bytes: usize) -> usize {
    let limit = truncate::floor(text, bytes);
    let by_lines = text.match_indices('\n').nth(lines.saturating_sub(1)).map_or(text.len(), |(at, _)| at + 1);
    if by_lines <= limit {
        return by_lines;
    }
    match text[..limit].rfind('\n') {
        Some(at) if at + 1 >= limit / 2 => at + 1,
        _ => limit,
    }
}

/// The start of the tail.
fn take_tail(text: &str, lines: usize, bytes: usize) -> usize {
    let limit = truncate::ceil(text, text.len().saturating_sub(bytes));
    let trimmed = text.strip_suffix('\n').unwrap_or(text);
    let by_lines = trimmed.rmatch_indices('\n').nth(lines.saturating_sub(1)).map_or(0, |(at, _)| at + 1);
    if by_lines >= limit {
        return by_lines;
    }
    match text[limit..].find('\n') {
        Some(at) if at < (text.len() - limit) / 2 => limit + at + 1,
        _ => limit,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_small_output_is_left_alone() {
        assert_eq!(cap("ok\n"), Capped { text: "ok\n".into(), blob: None });
    }

    #[test]
    fn ten_megabytes_leave_head_tail_and_counts() {
        let text: String = (1..=400_000).map(|line| format!("line number {line:>12}\n")).collect();
        let capped = cap(&text);
        let blob = capped.blob.unwrap();
        assert_eq!((blob.bytes, blob.lines), (text.len() as u64, 400_000));
        assert_eq!(blob.digest, digest(text.as_bytes()));
        assert!(capped.text.starts_with("line number            1\n"));
        assert!(capped.text.ends_with("line number       400000\n"));
        assert!(capped.text.contains("of 400000"), "{}", &capped.text[30_000..]);
        assert!(capped.text.len() <= MAX_BYTES);
    }

    #[test]
    fn one_long_line_is_counted_as_the_one_line_that_it_is() {
        let capped = cap(&"x".repeat(100_000));
        assert!(capped.text.contains("bytes, lines 1-1 of 1 (100000 bytes in all)"), "{}", capped.text);
        // The middle one of three lines is long, and both of its ends are shown.
        let capped = cap(&format!("first\n{}\nlast\n", "y".repeat(100_000)));
        assert!(capped.text.contains("bytes, lines 2-2 of 3 (100012 bytes in all)"), "{}", capped.text);
    }

    #[test]
    fn a_small_window_reads_less_of_an_output() {
        assert_eq!(Limits::for_budget(200_000), Limits::FULL);
        let small = Limits::for_budget(4_096);
        assert_eq!(small, Limits { lines: 80, bytes: 2048 });
        let text: String = (1..=9_000).map(|line| format!("{line}\n")).collect();
        let shown = preview(&text, &blob_of(&text), small, "giving the event");
        assert!(shown.len() <= small.bytes && count_lines(&shown) <= small.lines, "{shown}");
        assert!(shown.starts_with("1\n2\n") && shown.ends_with("8999\n9000\n"), "{shown}");
        assert!(shown.contains(" of 9000 ("), "{shown}");
        assert_eq!(Limits::for_budget(0).bytes, MIN_BYTES);
    }

    proptest! {
        #[test]
        fn preview_fits_the_cap_and_quotes_the_text(
            unit in "\\PC{0,40}", repeat in 1_usize..4000, ends in any::<bool>(), budget in 0_u32..300_000
        ) {
            let text = format!("{unit}{}", if ends { "\n" } else { "" }).repeat(repeat);
            let capped = cap(&text);
            prop_assert!(capped.text.len() <= MAX_BYTES);
            prop_assert!(count_lines(&capped.text) <= MAX_LINES);
            prop_assert_eq!(capped.blob.is_none(), capped.text == text);
            prop_assert_eq!(cap(&capped.text).blob, None);
            let limits = Limits::for_budget(budget);
            if !limits.fit(&text) {
                let shown = preview(&text, &blob_of(&text), limits, "giving event `turn-12-3` and the lines");
                prop_assert!(limits.fit(&shown), "{} bytes, {} lines of {limits:?}", shown.len(), count_lines(&shown));
            }
        }
    }
}
