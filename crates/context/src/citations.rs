//! Citations of events in a text: `[e12]`, `[e12-e57]`, and several in one pair of brackets.

use crate::event_id::{EventId, EventRange};

pub fn citations(text: &str) -> Vec<EventRange> {
    let mut found = Vec::new();
    for bracket in text.split('[').skip(1) {
        let Some((inside, _)) = bracket.split_once(']') else { continue };
        found.extend(inside.split([',', ';']).filter_map(|part| citation(part.trim())));
    }
    found
}

fn citation(text: &str) -> Option<EventRange> {
    let event = |text: &str| -> Option<EventId> {
        let digits = text.trim().strip_prefix('e')?;
        let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
        is_number.then(|| digits.parse().ok().map(EventId)).flatten()
    };
    match text.split_once('-') {
        Some((first, last)) => Some(EventRange { first: event(first)?, last: event(last)? }),
        None => event(text).map(EventRange::one),
    }
}

/// The exact names in a text: paths, names that contain an underscore or a dot, numbers of at least three digits. In
/// order, without duplicates.
pub fn identifiers(text: &str) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    let is_part = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-' | '.' | '/' | ':' | '#');
    for word in text.split(|c: char| !is_part(c)) {
        let word = word.trim_matches(['.', ':', '-', '#', '/']);
        let has = |sign: char| word.contains(sign);
        let is_number = word.len() >= 3 && word.bytes().all(|byte| byte.is_ascii_digit());
        let is_name = word.len() >= 3 && (has('_') || has('/') || has('.') || word.contains("::"));
        let is_mixed = word.len() >= 4
            && word.bytes().any(|byte| byte.is_ascii_digit())
            && word.bytes().any(|byte| byte.is_ascii_alphabetic());
        if (is_number || is_name || is_mixed) && !found.iter().any(|known| known == word) {
            found.push(word.to_owned());
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_citation_forms_are_parsed() {
        let range = |first, last| EventRange { first: EventId(first), last: EventId(last) };
        let text = "built it [e12-e57], then [e60, e61]; a[0] and [exit 1] are no events [e7]";
        assert_eq!(citations(text), [range(12, 57), range(60, 60), range(61, 61), range(7, 7)]);
    }

    #[test]
    fn identifiers_are_paths_names_and_numbers() {
        let text = "1. fix parse_header in src/http/parse.rs (issue 4711), then v2 of Engine::view. Done";
        assert_eq!(identifiers(text), ["parse_header", "src/http/parse.rs", "4711", "Engine::view"]);
    }
}
