//! Finds values that must not be seen, in every form in which they usually travel, and covers them.
//!
//! What is covered keeps its length: a size that was announced stays true, and a file keeps its layout.

use std::sync::Arc;

use aho_corasick::{AhoCorasick, MatchKind};
use base64::Engine;
use base64::engine::general_purpose::{STANDARD_NO_PAD, URL_SAFE_NO_PAD};
use bytes::Bytes;

/// What stands in the place of a value.
const COVER: u8 = b'*';
/// Values that are shorter would cover half of every text.
pub(crate) const SHORTEST_VALUE: usize = 8;

/// Covers values. Cheap to clone.
#[derive(Clone)]
pub struct Redactor {
    patterns: Option<AhoCorasick>,
    forms: Arc<[Vec<u8>]>,
    longest: usize,
}

impl std::fmt::Debug for Redactor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Redactor").field("longest", &self.longest).finish_non_exhaustive()
    }
}

impl Redactor {
    /// A redactor of these values: as they are, in base64 (alone or inside something longer), and URL-encoded.
    #[must_use]
    pub fn new<'a>(values: impl IntoIterator<Item = &'a str>) -> Self {
        let mut forms: Vec<Vec<u8>> = Vec::new();
        for value in values.into_iter().filter(|value| value.len() >= SHORTEST_VALUE) {
            forms.extend(forms_of(value.as_bytes()));
        }
        forms.sort();
        forms.dedup();
        let longest = forms.iter().map(Vec::len).max().unwrap_or(0);
        // Leftmost-longest: a form that contains another is covered as a whole.
        let patterns = (!forms.is_empty())
            .then(|| AhoCorasick::builder().match_kind(MatchKind::LeftmostLongest).build(&forms).ok())
            .flatten();
        Self { patterns, forms: forms.into(), longest }
    }

    /// Whether there is nothing to look for.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.patterns.is_none()
    }

    /// Whether a value is in these bytes.
    #[must_use]
    pub fn finds(&self, bytes: &[u8]) -> bool {
        self.patterns.as_ref().is_some_and(|patterns| patterns.is_match(bytes))
    }

    /// Whether a value is in these bytes, in capitals or not: names of headers lose theirs on the way.
    #[must_use]
    pub(crate) fn finds_in_any_case(&self, bytes: &[u8]) -> bool {
        self.forms.iter().any(|form| bytes.windows(form.len()).any(|part| part.eq_ignore_ascii_case(form)))
    }

    /// Covers every value in these bytes; returns how many there were.
    pub fn cover(&self, bytes: &mut [u8]) -> usize {
        let Some(patterns) = &self.patterns else { return 0 };
        let found: Vec<_> = patterns.find_iter(&*bytes).map(|found| found.range()).collect();
        for range in &found {
            bytes[range.clone()].fill(COVER);
        }
        found.len()
    }

    /// How many bytes at the end may be the start of a value whose rest has not come.
    #[must_use]
    pub fn unfinished(&self, bytes: &[u8]) -> usize {
        let most = self.longest.saturating_sub(1).min(bytes.len());
        (1..=most).rev().find(|count| self.is_start(&bytes[bytes.len() - count..])).unwrap_or(0)
    }

    fn is_start(&self, bytes: &[u8]) -> bool {
        self.forms.iter().any(|form| form.len() > bytes.len() && form.starts_with(bytes))
    }

    /// Covers every value in a text.
    #[must_use]
    pub fn cover_text(&self, text: &str) -> String {
        if !self.finds(text.as_bytes()) {
            return text.to_owned();
        }
        let mut bytes = text.as_bytes().to_vec();
        self.cover(&mut bytes);
        // A form is whole characters, so what is left is too; should it not be, nothing is shown.
        String::from_utf8(bytes).unwrap_or_default()
    }

    /// Starts covering a stream.
    #[must_use]
    pub fn stream(&self) -> RedactedStream {
        RedactedStream { redactor: self.clone(), held: Vec::new(), found: 0 }
    }
}

/// Covers values in bytes that come in pieces: what may be the start of a value is held back until more is known.
#[derive(Debug)]
pub struct RedactedStream {
    redactor: Redactor,
    held: Vec<u8>,
    found: usize,
}

impl RedactedStream {
    /// Takes the next piece and returns what can be shown.
    pub fn push(&mut self, piece: Bytes) -> Bytes {
        if self.redactor.is_idle() {
            return piece;
        }
        self.held.extend_from_slice(&piece);
        self.found += self.redactor.cover(&mut self.held);
        let keep = self.redactor.unfinished(&self.held);
        self.held.drain(..self.held.len() - keep).collect()
    }

    /// The rest, when nothing follows.
    pub fn finish(&mut self) -> Bytes {
        std::mem::take(&mut self.held).into()
    }

    /// Whether there is nothing to look for.
    pub(crate) fn is_idle(&self) -> bool {
        self.redactor.is_idle()
    }

    /// Whether nothing is held back.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// How many values were covered so far.
    #[must_use]
    pub fn found(&self) -> usize {
        self.found
    }
}

fn forms_of(value: &[u8]) -> Vec<Vec<u8>> {
    let mut forms = vec![value.to_vec()];
    for kept in KEPT {
        for letters in [Letters::Upper, Letters::Lower] {
            let encoded = percent_encode(value, kept, letters);
            // Forms write a space as a plus.
            forms.push(replace(&encoded, b"%20", b"+"));
            forms.push(encoded);
        }
    }
    for shift in 0..3 {
        forms.push(inside_base64(&STANDARD_NO_PAD, value, shift));
        forms.push(inside_base64(&URL_SAFE_NO_PAD, value, shift));
    }
    forms.push(json_escape(value));
    forms.retain(|form| form.len() >= SHORTEST_VALUE);
    forms
}

/// The characters that do not change, whatever stands before and after the value, when it begins `shift` bytes into
/// a group of three.
fn inside_base64(engine: &impl Engine, value: &[u8], shift: usize) -> Vec<u8> {
    let mut padded = vec![0; shift];
    padded.extend_from_slice(value);
    let encoded = engine.encode(&padded).into_bytes();
    let first = [0, 2, 3][shift];
    // The bits of the last character belong to what follows unless a group of three is full.
    let whole = padded.len() / 3 * 4 + [0, 1, 2][padded.len() % 3];
    encoded.get(first..whole).unwrap_or_default().to_vec()
}

#[derive(Clone, Copy)]
enum Letters {
    Upper,
    Lower,
}

/// What the usual ways of URL-encoding leave as it is, beside letters and digits: the standard, Python's `quote`, the
/// `encodeURIComponent` and `encodeURI` of browsers, and forms.
const KEPT: [&[u8]; 5] = [b"-_.~", b"-_.~/", b"-_.~!'()*", b"-_.~!'()*;,/?:@&=+$#", b"-_.*"];

fn replace(text: &[u8], part: &[u8], by: &[u8]) -> Vec<u8> {
    let mut new = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some(first) = rest.first() {
        if let Some(after) = rest.strip_prefix(part) {
            new.extend_from_slice(by);
            rest = after;
        } else {
            new.push(*first);
            rest = &rest[1..];
        }
    }
    new
}

fn percent_encode(value: &[u8], kept: &[u8], letters: Letters) -> Vec<u8> {
    let mut encoded = Vec::with_capacity(value.len());
    for byte in value {
        if byte.is_ascii_alphanumeric() || kept.contains(byte) {
            encoded.push(*byte);
        } else {
            let text = match letters {
                Letters::Upper => format!("%{byte:02X}"),
                Letters::Lower => format!("%{byte:02x}"),
            };
            encoded.extend_from_slice(text.as_bytes());
        }
    }
    encoded
}

/// As it stands inside a JSON text.
fn json_escape(value: &[u8]) -> Vec<u8> {
    let text = serde_json::to_string(&String::from_utf8_lossy(value)).unwrap_or_default();
    text.as_bytes().get(1..text.len().saturating_sub(1)).unwrap_or_default().to_vec()
}

#[cfg(test)]
mod tests {
    use base64::engine::general_purpose::STANDARD;
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_value_is_covered_in_each_form() {
        let value = "s3cr3t/+value \"x\"";
        let redactor = Redactor::new([value]);
        let json = serde_json::to_string(value).unwrap();
        for form in [
            value.to_owned(),
            json,
            "s3cr3t%2F%2Bvalue%20%22x%22".into(),
            "s3cr3t%2f%2bvalue%20%22x%22".into(),
        ] {
            let covered = redactor.cover_text(&format!("before {form} after"));
            assert!(
                covered.starts_with("before ") && covered.ends_with(" after") && covered.contains("****"),
                "{covered}"
            );
            assert!(!covered.contains("s3cr3t"), "{covered}");
        }
    }

    #[test]
    fn every_usual_way_of_url_encoding_is_covered() {
        let redactor = Redactor::new(["a/b c!d'e(f)*g~h"]);
        for form in [
            "a/b%20c%21d%27e%28f%29%2Ag~h", // Python: quote
            "a%2Fb+c%21d%27e%28f%29%2Ag~h", // Python: quote_plus
            "a%2Fb%20c!d'e(f)*g~h",         // JavaScript: encodeURIComponent
            "a/b%20c!d'e(f)*g~h",           // JavaScript: encodeURI
            "a%2Fb+c%21d%27e%28f%29*g%7Eh", // JavaScript: URLSearchParams
        ] {
            assert_eq!(redactor.cover_text(form), "*".repeat(form.len()), "{form}");
        }
    }

    #[test]
    fn nothing_is_covered_where_there_is_nothing_to_hide() {
        assert_eq!(Redactor::new(["short"]).cover_text("a short text"), "a short text");
        assert!(Redactor::new([]).is_idle());
    }

    proptest! {
        #[test]
        fn a_value_inside_base64_is_found_whatever_stands_around_it(
            value in "[ -~]{12,40}", before in proptest::collection::vec(any::<u8>(), 0..7),
            after in proptest::collection::vec(any::<u8>(), 0..7),
        ) {
            let redactor = Redactor::new([value.as_str()]);
            let mut bytes = before;
            bytes.extend_from_slice(value.as_bytes());
            bytes.extend_from_slice(&after);
            prop_assert!(redactor.finds(STANDARD.encode(&bytes).as_bytes()));
            prop_assert!(redactor.finds(URL_SAFE_NO_PAD.encode(&bytes).as_bytes()));
        }

        #[test]
        fn a_stream_in_pieces_is_covered_like_the_whole(
            value in "[a-z0-9]{8,20}", before in "[A-Z]{0,30}", after in "[A-Z]{0,30}", cuts in proptest::collection::vec(1usize..9, 1..40),
        ) {
            let redactor = Redactor::new([value.as_str()]);
            let whole = format!("{before}{value}{after}{value}");
            let mut stream = redactor.stream();
            let (mut shown, mut rest) = (Vec::new(), whole.as_bytes());
            for cut in cuts {
                let (piece, left) = rest.split_at(cut.min(rest.len()));
                shown.extend(stream.push(Bytes::copy_from_slice(piece)));
                rest = left;
            }
            shown.extend(stream.push(Bytes::copy_from_slice(rest)));
            shown.extend(stream.finish());
            prop_assert_eq!(shown.len(), whole.len());
            prop_assert_eq!(String::from_utf8(shown).unwrap(), redactor.cover_text(&whole));
        }
    }
}
