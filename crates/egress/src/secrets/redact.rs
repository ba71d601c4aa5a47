//! Finds and masks secret values in every form in which they usually occur.
//!
//! Masking preserves the length, so announced sizes stay correct and files keep their layout. Characters are
//! compared in their decoded form, so a text in which only some characters are escaped is also found.

#[cfg(test)]
mod tests;

use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use bytes::Bytes;

use super::escapes::{self, ESCAPE_CHARS, hex};

/// The masking character.
const MASK: u8 = b'*';
/// Shorter values would match too much harmless text.
pub(crate) const SHORTEST_VALUE: usize = 8;
/// Characters that may be literal, begin an escape sequence, or separate two other characters.
const AMBIGUOUS_CHARS: [u8; 9] = *b"%\\&=+ \t\r\n";
/// Maximum number of blanks between two characters of base64.
const MAX_BLANKS: usize = 16;

/// Masks values. Cheap to clone.
#[derive(Clone)]
pub struct Redactor {
    forms: Arc<[Form]>,
    /// For each byte, the forms that may begin with it.
    starts: Arc<[Vec<usize>]>,
}

impl std::fmt::Debug for Redactor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Redactor").field("forms", &self.forms.len()).finish_non_exhaustive()
    }
}

/// A form to search for, by how its characters are encoded.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Form {
    /// Text whose characters may be escaped.
    Text(Vec<u8>),
    /// Base64 of either alphabet, possibly broken into lines.
    Base64(Vec<u8>),
    /// Pairs of hexadecimal digits, possibly with separators.
    Hex(Vec<u8>),
    /// Literal bytes.
    Bytes(Vec<u8>),
}

/// How a form matches the start of a byte string.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Fit {
    /// The length of the match.
    length: Option<usize>,
    /// Whether the form may need more bytes than there are.
    is_cut: bool,
}

/// How letters are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CaseSensitivity {
    Sensitive,
    Insensitive,
}

/// The result of a search.
#[derive(Debug, Default)]
struct Scan {
    found: Vec<Range<usize>>,
    /// The start of a possible match that is cut off at the end.
    cut_from: Option<usize>,
}

impl Redactor {
    /// A redactor for these values: literal; escaped as in URLs, JSON, HTML and quoted-printable; in base64, alone
    /// or inside a longer text; in hexadecimal; and in UTF-16 and UTF-32.
    #[must_use]
    pub fn new<'a>(values: impl IntoIterator<Item = &'a str>) -> Self {
        let values = values.into_iter().filter(|value| value.len() >= SHORTEST_VALUE);
        let mut forms: Vec<Form> = values.flat_map(forms_of).collect();
        forms.sort();
        forms.dedup();
        let starting = |byte| {
            let beginning = forms.iter().enumerate().filter(|(_, form)| form.may_begin_with(byte));
            beginning.map(|(number, _)| number).collect()
        };
        let starts: Vec<Vec<usize>> = (0..=u8::MAX).map(starting).collect();
        Self { forms: forms.into(), starts: starts.into() }
    }

    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.forms.is_empty()
    }

    #[must_use]
    pub fn finds(&self, bytes: &[u8]) -> bool {
        !self.scan(bytes, CaseSensitivity::Sensitive).found.is_empty()
    }

    /// Like [`Self::finds`], but ignoring case: header names lose theirs on the way.
    #[must_use]
    pub(crate) fn finds_in_any_case(&self, bytes: &[u8]) -> bool {
        !self.scan(bytes, CaseSensitivity::Insensitive).found.is_empty()
    }

    /// Masks every value and returns how many there were.
    pub fn cover(&self, bytes: &mut [u8]) -> usize {
        let found = self.scan(bytes, CaseSensitivity::Sensitive).found;
        for range in &found {
            bytes[range.clone()].fill(MASK);
        }
        found.len()
    }

    /// The number of bytes at the end that may be an incomplete value.
    #[must_use]
    pub fn unfinished(&self, bytes: &[u8]) -> usize {
        self.scan(bytes, CaseSensitivity::Sensitive).cut_from.map_or(0, |from| bytes.len() - from)
    }

    /// Examines each byte once, and compares forms only where one may begin.
    fn scan(&self, bytes: &[u8], case: CaseSensitivity) -> Scan {
        let mut scan = Scan::default();
        if self.is_idle() {
            return scan;
        }
        // Header names and reason phrases are short, so every form is compared.
        let all: Vec<usize> = match case {
            CaseSensitivity::Sensitive => Vec::new(),
            CaseSensitivity::Insensitive => (0..self.forms.len()).collect(),
        };
        let mut at = 0;
        while let Some(byte) = bytes.get(at) {
            let starting = match case {
                CaseSensitivity::Sensitive => &self.starts[usize::from(*byte)],
                CaseSensitivity::Insensitive => &all,
            };
            let rest = &bytes[at..];
            if starting.is_empty()
                || (case == CaseSensitivity::Sensitive && self.is_irrelevant_escape(*byte, rest))
            {
                at += 1;
                continue;
            }
            // The longest match: a form that contains another is masked completely.
            let mut longest = 0;
            for number in starting {
                let fit = self.forms[*number].fit(rest, case);
                longest = longest.max(fit.length.unwrap_or(0));
                if fit.is_cut && scan.cut_from.is_none() {
                    scan.cut_from = Some(at);
                }
            }
            if longest > 0 {
                scan.found.push(at..at + longest);
            }
            at += longest.max(1);
        }
        scan
    }

    /// Whether this is an escape character that no form begins with, neither literally nor decoded.
    fn is_irrelevant_escape(&self, byte: u8, rest: &[u8]) -> bool {
        if !ESCAPE_CHARS.contains(&byte) {
            return false;
        }
        let units = escapes::read(rest);
        let is_first = |byte: &u8| {
            self.forms.iter().any(|form| form.first() == Some(standard(*byte)) || form.first() == Some(*byte))
        };
        !units.is_cut && !units.iter().any(|unit| unit.meaning().first().is_some_and(is_first))
    }

    /// Masks every value in a text.
    #[must_use]
    pub fn redact_text(&self, text: &str) -> String {
        let mut bytes = text.as_bytes().to_vec();
        if self.cover(&mut bytes) == 0 {
            return text.to_owned();
        }
        // A match covers whole characters, so the rest is valid UTF-8. If it were not, nothing is shown.
        String::from_utf8(bytes).unwrap_or_default()
    }

    /// Starts masking a stream.
    #[must_use]
    pub fn stream(&self) -> RedactedStream {
        RedactedStream { redactor: self.clone(), held: Vec::new(), found: 0 }
    }
}

/// Masks values in a stream of chunks. Bytes that may begin a value are held back until the next chunk.
#[derive(Debug)]
pub struct RedactedStream {
    redactor: Redactor,
    held: Vec<u8>,
    found: usize,
}

impl RedactedStream {
    /// Processes the next chunk and returns the bytes that can be passed on.
    pub fn push(&mut self, piece: Bytes) -> Bytes {
        if self.redactor.is_idle() {
            return piece;
        }
        if self.held.is_empty() {
            let scan = self.redactor.scan(&piece, CaseSensitivity::Sensitive);
            if scan.found.is_empty() && scan.cut_from.is_none() {
                return piece;
            }
        }
        self.held.extend_from_slice(&piece);
        let scan = self.redactor.scan(&self.held, CaseSensitivity::Sensitive);
        // Held bytes are not masked yet: a value may turn out to be part of a longer one.
        let shown = scan.cut_from.unwrap_or(self.held.len());
        for range in scan.found.iter().filter(|range| range.end <= shown) {
            self.held[range.clone()].fill(MASK);
            self.found += 1;
        }
        self.held.drain(..shown).collect()
    }

    /// Returns the rest at the end of the stream.
    pub fn finish(&mut self) -> Bytes {
        self.found += self.redactor.cover(&mut self.held);
        std::mem::take(&mut self.held).into()
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.redactor.is_idle()
    }

    /// Whether no bytes are held back.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// The number of values masked so far.
    #[must_use]
    pub fn found(&self) -> usize {
        self.found
    }
}

fn forms_of(value: &str) -> Vec<Form> {
    let bytes = value.as_bytes();
    let mut forms = vec![Form::Text(bytes.to_vec()), Form::Hex(bytes.to_vec())];
    forms.extend((0..3).map(|shift| Form::Base64(inside_base64(bytes, shift))));
    let sixteen = |to_bytes: fn(u16) -> [u8; 2]| value.encode_utf16().flat_map(to_bytes).collect::<Vec<u8>>();
    let thirty_two = |to_bytes: fn(u32) -> [u8; 4]| {
        value.chars().flat_map(|character| to_bytes(u32::from(character))).collect::<Vec<u8>>()
    };
    for wide in [
        sixteen(u16::to_le_bytes),
        sixteen(u16::to_be_bytes),
        thirty_two(u32::to_le_bytes),
        thirty_two(u32::to_be_bytes),
    ] {
        // Without the zeros around it, text that begins with ASCII is the same in both byte orders.
        let from = wide.iter().position(|byte| *byte != 0).unwrap_or(0);
        let to = wide.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        forms.push(Form::Bytes(wide[from..to].to_vec()));
    }
    forms
}

/// The base64 characters that do not depend on the text before and after the value, if the value begins `shift`
/// bytes into a group of three.
fn inside_base64(value: &[u8], shift: usize) -> Vec<u8> {
    let mut padded = vec![0; shift];
    padded.extend_from_slice(value);
    let encoded = STANDARD_NO_PAD.encode(&padded).into_bytes();
    let first = [0, 2, 3][shift];
    // The bits of the last character belong to the following text unless a group of three is complete.
    let whole = padded.len() / 3 * 4 + [0, 1, 2][padded.len() % 3];
    encoded.get(first..whole).unwrap_or_default().to_vec()
}

impl Form {
    /// Its first character or byte.
    fn first(&self) -> Option<u8> {
        match self {
            Self::Text(bytes) | Self::Base64(bytes) | Self::Hex(bytes) | Self::Bytes(bytes) => {
                bytes.first().copied()
            }
        }
    }

    fn may_begin_with(&self, byte: u8) -> bool {
        let is_first = |form: &[u8], byte: u8| form.first() == Some(&byte);
        match self {
            Self::Text(text) => {
                is_first(text, byte) || ESCAPE_CHARS.contains(&byte) || (byte == b'+' && is_first(text, b' '))
            }
            Self::Base64(text) => is_first(text, standard(byte)) || ESCAPE_CHARS.contains(&byte),
            Self::Hex(value) => value.first().is_some_and(|first| hex(byte) == Some(first >> 4)),
            Self::Bytes(bytes) => is_first(bytes, byte),
        }
    }

    fn fit(&self, bytes: &[u8], case: CaseSensitivity) -> Fit {
        match self {
            Self::Text(text) => {
                fit_text(text, bytes, |wanted, byte| is_same_char(wanted, byte, case), soft_break)
            }
            Self::Base64(text) => {
                fit_text(text, bytes, |wanted, byte| is_same_char(wanted, standard(byte), case), blanks)
            }
            Self::Hex(value) => fit_hex(value, bytes),
            Self::Bytes(wanted) => {
                let common = wanted.len().min(bytes.len());
                let fits = wanted[..common] == bytes[..common];
                Fit {
                    length: (fits && common == wanted.len()).then_some(common),
                    is_cut: fits && common < wanted.len(),
                }
            }
        }
    }
}

fn is_same_char(wanted: u8, byte: u8, case: CaseSensitivity) -> bool {
    match case {
        CaseSensitivity::Sensitive => wanted == byte,
        CaseSensitivity::Insensitive => wanted.eq_ignore_ascii_case(&byte),
    }
}

/// Maps a character of the URL-safe base64 alphabet to the standard alphabet.
fn standard(byte: u8) -> u8 {
    match byte {
        b'-' => b'+',
        b'_' => b'/',
        other => other,
    }
}

/// The length of a quoted-printable soft line break.
fn soft_break(bytes: &[u8]) -> usize {
    [&b"=\r\n"[..], b"=\n"].iter().find(|end| bytes.starts_with(end)).map_or(0, |end| end.len())
}

/// The length of line ends and the white space around them, also as escaped in JSON.
fn blanks(bytes: &[u8]) -> usize {
    let mut at = soft_break(bytes);
    while at < MAX_BLANKS {
        match bytes.get(at..).unwrap_or_default() {
            [b' ' | b'\t' | b'\r' | b'\n', ..] => at += 1,
            [b'\\', b'r' | b'n', ..] => at += 2,
            _ => break,
        }
    }
    at
}

/// Compares character by character. An escape character may also be literal, so both readings are tried.
fn fit_text(
    text: &[u8],
    bytes: &[u8],
    is_same: impl Fn(u8, u8) -> bool,
    gap: impl Fn(&[u8]) -> usize,
) -> Fit {
    // Most texts differ in their first characters, which are never ambiguous.
    let mut plain = 0;
    while let Some(byte) = bytes.get(plain).filter(|byte| !AMBIGUOUS_CHARS.contains(byte)) {
        match text.get(plain) {
            None => return Fit { length: Some(plain), is_cut: false },
            Some(wanted) if is_same(*wanted, *byte) => plain += 1,
            Some(_) => return Fit::default(),
        }
    }
    let mut fit = Fit::default();
    // Readings still to try and positions already seen. Few texts need either.
    let (mut pending, mut seen) = (Vec::new(), HashSet::new());
    let mut next = Some((plain, plain));
    while let Some(reading) = next.take().or_else(|| pending.pop()) {
        let (done, at) = reading;
        let (wanted, rest) = (&text[done..], &bytes[at..]);
        if wanted.is_empty() {
            fit.length = fit.length.max(Some(at));
            continue;
        }
        if seen.contains(&reading) {
            continue;
        }
        let skipped = if done == 0 { 0 } else { gap(rest) };
        for start in [Some(0), (skipped > 0).then_some(skipped)].into_iter().flatten() {
            let units = escapes::read(&rest[start..]);
            fit.is_cut |= units.is_cut;
            for unit in units.iter() {
                let meaning = unit.meaning();
                let is_wanted = wanted.len() >= meaning.len()
                    && meaning.iter().zip(wanted).all(|(byte, wanted)| is_same(*wanted, *byte));
                if !is_wanted {
                    continue;
                }
                let further = (done + meaning.len(), at + start + unit.length);
                if next.is_none() {
                    next = Some(further);
                } else {
                    pending.push(further);
                    seen.insert(reading);
                }
            }
        }
    }
    fit
}

/// Compares pairs of hexadecimal digits with at most one character between two pairs.
fn fit_hex(value: &[u8], bytes: &[u8]) -> Fit {
    let mut at = 0;
    for (number, byte) in value.iter().enumerate() {
        if number > 0 && bytes.get(at).is_some_and(|between| b" :-".contains(between)) {
            at += 1;
        }
        for wanted in [byte >> 4, byte & 15] {
            match bytes.get(at) {
                None => return Fit { length: None, is_cut: true },
                Some(digit) if hex(*digit) == Some(wanted) => at += 1,
                Some(_) => return Fit::default(),
            }
        }
    }
    Fit { length: Some(at), is_cut: false }
}
