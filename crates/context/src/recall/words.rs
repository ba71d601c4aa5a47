//! Splits code and prose into words: identifiers and paths as written, and their parts.
//!
//! `src/http/parseHeader.rs` gives the path, `src`, `http`, `parseheader`, `parse`, `header`, `rs`. All words are
//! lowercase, so that a query need not match the spelling.

use std::borrow::Cow;

use crate::entry::{Entry, EntryBody};

/// The maximum length of a word.
const MAX_BYTES: usize = 48;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// As written.
    Whole,
    /// A part of an identifier or path, which is less specific.
    Part,
}

/// Calls `emit` with every word of a text, including repetitions.
pub fn each_word(text: &str, mut emit: impl FnMut(&str)) {
    each_form(text, |word, _| emit(word));
}

/// Calls `emit` with every word of a text and its form.
pub(super) fn each_form(text: &str, mut emit: impl FnMut(&str, Form)) {
    let mut buffer = String::with_capacity(MAX_BYTES);
    let is_path_sign = |c: char| matches!(c, '/' | '.' | '-');
    for run in text.split(|c: char| !(c.is_alphanumeric() || c == '_' || is_path_sign(c))) {
        let run = run.trim_matches(is_path_sign);
        if run.is_empty() {
            continue;
        }
        if run.contains(is_path_sign) {
            // The path as written. If it is too long, its end, which is more specific than its start.
            let start = crate::tokens::truncate::ceil(run, run.len().saturating_sub(MAX_BYTES));
            send(&run[start..], Form::Whole, &mut buffer, &mut emit);
        }
        for word in run.split(is_path_sign).filter(|word| !word.is_empty()) {
            each_part(word, &mut buffer, &mut emit);
        }
    }
}

/// An identifier and its parts.
fn each_part(word: &str, buffer: &mut String, emit: &mut impl FnMut(&str, Form)) {
    let whole = word.trim_matches('_');
    if whole.is_empty() {
        return;
    }
    send(whole, Form::Whole, buffer, emit);
    if !whole.is_ascii() {
        each_pair(whole, buffer, emit);
    }
    let mut start = 0;
    let bytes = whole.as_bytes();
    for at in 1..=bytes.len() {
        if at < bytes.len() && !is_word_boundary(bytes, at) {
            continue;
        }
        let part = whole[start..at].trim_matches('_');
        // A part of one letter is not specific, and the whole word was emitted already.
        if part.len() > 1 && part.len() < whole.len() {
            send(part, Form::Part, buffer, emit);
        }
        start = at;
    }
}

/// Whether a part ends before this byte: after an underscore, at `aB`, at `ABc` before `B`. Non-ASCII letters never
/// form a boundary, so a part always ends at a character boundary.
fn is_word_boundary(bytes: &[u8], at: usize) -> bool {
    let (before, here) = (bytes[at - 1], bytes[at]);
    if !before.is_ascii() || !here.is_ascii() {
        return false;
    }
    let is_case_change = before.is_ascii_lowercase() && here.is_ascii_uppercase();
    let is_end_of_capitals = before.is_ascii_uppercase()
        && here.is_ascii_uppercase()
        && bytes.get(at + 1).is_some_and(u8::is_ascii_lowercase);
    before == b'_' || is_case_change || is_end_of_capitals
}

/// Text in scripts without spaces is indexed by pairs of characters.
fn each_pair(word: &str, buffer: &mut String, emit: &mut impl FnMut(&str, Form)) {
    let is_unspaced = |c: char| ('\u{2e80}'..='\u{d7ff}').contains(&c) || c >= '\u{20000}';
    let mut starts = word.char_indices().peekable();
    let mut before: Option<(usize, char)> = None;
    while let Some((at, c)) = starts.next() {
        let end = starts.peek().map_or(word.len(), |(at, _)| *at);
        if let Some((start, first)) = before
            && is_unspaced(first)
            && is_unspaced(c)
        {
            send(&word[start..end], Form::Part, buffer, emit);
        }
        before = Some((at, c));
    }
}

fn send(word: &str, form: Form, buffer: &mut String, emit: &mut impl FnMut(&str, Form)) {
    let is_short_number = word.len() < 3 && word.bytes().all(|byte| byte.is_ascii_digit());
    if word.len() < 2 || is_short_number {
        return;
    }
    let word = &word[..crate::tokens::truncate::floor(word, MAX_BYTES)];
    buffer.clear();
    if word.is_ascii() {
        buffer.push_str(word);
        buffer.make_ascii_lowercase();
    } else {
        buffer.extend(word.chars().flat_map(char::to_lowercase));
    }
    emit(buffer, form);
}

/// The searchable text of an entry; empty for entries that a model never reads.
pub fn text_of(entry: &Entry) -> Cow<'_, str> {
    match &entry.body {
        EntryBody::User { text, .. } | EntryBody::Plan { text } => Cow::Borrowed(text),
        EntryBody::Result(result) => Cow::Borrowed(&result.text),
        EntryBody::Note { name, text } => Cow::Owned(format!("{name}\n{text}")),
        EntryBody::Assistant { text, calls, .. } if calls.is_empty() => Cow::Borrowed(text),
        EntryBody::Assistant { text, calls, .. } => {
            let mut all = text.clone();
            for call in calls {
                all.push('\n');
                all.push_str(&call.name);
                each_string(&call.arguments, &mut |text| {
                    all.push('\n');
                    all.push_str(text);
                });
            }
            Cow::Owned(all)
        }
        EntryBody::Summary(_)
        | EntryBody::Correction { .. }
        | EntryBody::Tighten { .. }
        | EntryBody::Window(_)
        | EntryBody::Map { .. } => Cow::Borrowed(""),
    }
}

/// The strings within a value, unescaped.
fn each_string(value: &serde_json::Value, emit: &mut impl FnMut(&str)) {
    match value {
        serde_json::Value::String(text) => emit(text),
        serde_json::Value::Array(values) => values.iter().for_each(|value| each_string(value, emit)),
        serde_json::Value::Object(values) => values.values().for_each(|value| each_string(value, emit)),
        serde_json::Value::Number(number) => emit(&number.to_string()),
        serde_json::Value::Null | serde_json::Value::Bool(_) => {}
    }
}

/// The day of a timestamp, as `2026-11-15`, the form that queries use.
pub(super) fn day_of(time_ms: i64) -> String {
    let days = time_ms.div_euclid(86_400_000);
    // Converts days to a date of the Gregorian calendar, counting from 1 March of year 0.
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let day_of_era = shifted.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_index = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_index + 2) / 5 + 1;
    let month = if month_index < 10 { month_index + 3 } else { month_index - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn words(text: &str) -> Vec<String> {
        let mut all = Vec::new();
        each_word(text, |word| all.push(word.to_owned()));
        all
    }

    #[test]
    fn identifiers_and_paths_are_found_whole_and_by_their_parts() {
        assert_eq!(words("parse_header"), ["parse_header", "parse", "header"]);
        assert_eq!(words("parseHTTPHeader"), ["parsehttpheader", "parse", "http", "header"]);
        assert_eq!(
            words("in ./src/http/core.rs:42"),
            ["in", "src/http/core.rs", "src", "http", "core", "rs"]
        );
        assert_eq!(words("error E0308, __init__"), ["error", "e0308", "init"]);
        assert_eq!(words("Ошибка 日本語"), ["ошибка", "日本語", "日本", "本語"]);
    }

    #[test]
    fn day_of_matches_the_calendar() {
        assert_eq!(day_of(0), "1970-01-01");
        assert_eq!(day_of(1_709_164_800_000), "2024-02-29");
        assert_eq!(day_of(-1), "1969-12-31");
    }

    proptest! {
        #[test]
        fn any_text_has_words_of_bounded_length(text in "\\PC{0,300}") {
            each_word(&text, |word| assert!(!word.is_empty() && word.chars().count() <= MAX_BYTES));
        }
    }
}
