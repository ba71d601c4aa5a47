//! The duration at the end of a command's result. It differs from run to run, so loops are detected without it.

use std::borrow::Cow;

/// Such as `, 2.3 s`.
pub(crate) fn duration_note(milliseconds: u64) -> String {
    format!(", {}.{} s", milliseconds / 1000, milliseconds % 1000 / 100)
}

/// A result without the last duration in brackets.
#[must_use]
pub fn without_duration(text: &str) -> Cow<'_, str> {
    let Some((before, after)) = text.rsplit_once(" s]") else { return text.into() };
    let rest = before.trim_end_matches(|letter: char| letter.is_ascii_digit() || letter == '.');
    match rest.strip_suffix(", ") {
        Some(rest) if rest.len() + 2 < before.len() => format!("{rest}]{after}").into(),
        _ => text.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_that_differ_in_their_duration_are_the_same() {
        assert_eq!([0, 99, 2345, 61_000].map(duration_note), [", 0.0 s", ", 0.0 s", ", 2.3 s", ", 61.0 s"]);
        let result = |milliseconds| format!("ok\n[exit code 0{}]", duration_note(milliseconds));
        assert_eq!(without_duration(&result(1)), "ok\n[exit code 0]");
        assert_eq!(without_duration(&result(1)), without_duration(&result(61_000)));
        for text in ["ok", "[still running after 2.0 s; handle `a`]", "[takes s]", "[, s]", ""] {
            assert_eq!(without_duration(text), text);
        }
    }
}
