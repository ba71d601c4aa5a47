//! Finds values that must not be seen, in every form in which they usually travel, and covers them.
//!
//! What is covered keeps its length: a size that was announced stays true, and a file keeps its layout. Each character is
//! compared as it may be escaped, so that a text in which some characters are escaped and others are not hides nothing.

#[cfg(test)]
mod tests;

use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use bytes::Bytes;

use crate::escapes::{self, INTRODUCERS, hex};

/// What stands in the place of a value.
const COVER: u8 = b'*';
/// Values that are shorter would cover half of every text.
pub(crate) const SHORTEST_VALUE: usize = 8;
/// Characters that may be meant as they are, or introduce another, or stand between two others.
const MEANS_MORE: [u8; 9] = *b"%\\&=+ \t\r\n";
/// The most blanks that may stand between two characters of base64.
const MOST_BLANKS: usize = 16;

/// Covers values. Cheap to clone.
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

/// What is looked for, and how its characters are written.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Form {
    /// A text whose characters may be escaped.
    Text(Vec<u8>),
    /// The same in base64, of either alphabet, which may be broken into lines.
    Base64(Vec<u8>),
    /// Bytes as pairs of hexadecimal digits, which may be set apart.
    Hex(Vec<u8>),
    /// These bytes.
    Bytes(Vec<u8>),
}

/// How a form fits the start of some bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Fit {
    /// How many bytes it takes.
    length: Option<usize>,
    /// Whether it may take more than there are.
    is_cut: bool,
}

/// How letters are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Letters {
    AsTheyAre,
    InAnyCase,
}

/// Where forms are.
#[derive(Debug, Default)]
struct Scan {
    found: Vec<Range<usize>>,
    /// Where a form begins whose rest has not come.
    cut_from: Option<usize>,
}

impl Redactor {
    /// A redactor of these values: as they are, with characters escaped as in URLs, JSON, HTML and quoted-printable, in base64
    /// (alone or inside something longer), in hexadecimal, and in UTF-16 and UTF-32.
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

    /// Whether there is nothing to look for.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.forms.is_empty()
    }

    /// Whether a value is in these bytes.
    #[must_use]
    pub fn finds(&self, bytes: &[u8]) -> bool {
        !self.scan(bytes, Letters::AsTheyAre).found.is_empty()
    }

    /// Whether a value is in these bytes, in capitals or not: names of headers lose theirs on the way.
    #[must_use]
    pub(crate) fn finds_in_any_case(&self, bytes: &[u8]) -> bool {
        !self.scan(bytes, Letters::InAnyCase).found.is_empty()
    }

    /// Covers every value in these bytes; returns how many there were.
    pub fn cover(&self, bytes: &mut [u8]) -> usize {
        let found = self.scan(bytes, Letters::AsTheyAre).found;
        for range in &found {
            bytes[range.clone()].fill(COVER);
        }
        found.len()
    }

    /// How many bytes at the end may be the start of a value whose rest has not come.
    #[must_use]
    pub fn unfinished(&self, bytes: &[u8]) -> usize {
        self.scan(bytes, Letters::AsTheyAre).cut_from.map_or(0, |from| bytes.len() - from)
    }

    /// Looks at each byte once, and further only where a form may begin.
    fn scan(&self, bytes: &[u8], letters: Letters) -> Scan {
        let mut scan = Scan::default();
        if self.is_idle() {
            return scan;
        }
        // Names and phrases, which are short, are compared with every form.
        let all: Vec<usize> = match letters {
            Letters::AsTheyAre => Vec::new(),
            Letters::InAnyCase => (0..self.forms.len()).collect(),
        };
        let mut at = 0;
        while let Some(byte) = bytes.get(at) {
            let starting = match letters {
                Letters::AsTheyAre => &self.starts[usize::from(*byte)],
                Letters::InAnyCase => &all,
            };
            let rest = &bytes[at..];
            if starting.is_empty() || (letters == Letters::AsTheyAre && self.is_no_escaped_start(*byte, rest))
            {
                at += 1;
                continue;
            }
            // The longest: a form that contains another is covered as a whole.
            let mut longest = 0;
            for number in starting {
                let fit = self.forms[*number].fit(rest, letters);
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

    /// Whether what begins here is escaped, or would be, and is not the first character of any form.
    fn is_no_escaped_start(&self, byte: u8, rest: &[u8]) -> bool {
        if !INTRODUCERS.contains(&byte) {
            return false;
        }
        let units = escapes::read(rest);
        let is_first = |byte: &u8| {
            self.forms.iter().any(|form| form.first() == Some(standard(*byte)) || form.first() == Some(*byte))
        };
        !units.is_cut && !units.iter().any(|unit| unit.meaning().first().is_some_and(is_first))
    }

    /// Covers every value in a text.
    #[must_use]
    pub fn cover_text(&self, text: &str) -> String {
        let mut bytes = text.as_bytes().to_vec();
        if self.cover(&mut bytes) == 0 {
            return text.to_owned();
        }
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
        if self.held.is_empty() {
            let scan = self.redactor.scan(&piece, Letters::AsTheyAre);
            if scan.found.is_empty() && scan.cut_from.is_none() {
                return piece;
            }
        }
        self.held.extend_from_slice(&piece);
        let scan = self.redactor.scan(&self.held, Letters::AsTheyAre);
        // What is held back stays as it is: a value may turn out to be a part of a longer one.
        let shown = scan.cut_from.unwrap_or(self.held.len());
        for range in scan.found.iter().filter(|range| range.end <= shown) {
            self.held[range.clone()].fill(COVER);
            self.found += 1;
        }
        self.held.drain(..shown).collect()
    }

    /// The rest, when nothing follows.
    pub fn finish(&mut self) -> Bytes {
        self.found += self.redactor.cover(&mut self.held);
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
        // Without the zeros around it, what begins with ASCII is the same in either order.
        let from = wide.iter().position(|byte| *byte != 0).unwrap_or(0);
        let to = wide.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        forms.push(Form::Bytes(wide[from..to].to_vec()));
    }
    forms
}

/// The characters that do not change, whatever stands before and after the value, when it begins `shift` bytes into
/// a group of three.
fn inside_base64(value: &[u8], shift: usize) -> Vec<u8> {
    let mut padded = vec![0; shift];
    padded.extend_from_slice(value);
    let encoded = STANDARD_NO_PAD.encode(&padded).into_bytes();
    let first = [0, 2, 3][shift];
    // The bits of the last character belong to what follows unless a group of three is full.
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
                is_first(text, byte) || INTRODUCERS.contains(&byte) || (byte == b'+' && is_first(text, b' '))
            }
            Self::Base64(text) => is_first(text, standard(byte)) || INTRODUCERS.contains(&byte),
            Self::Hex(value) => value.first().is_some_and(|first| hex(byte) == Some(first >> 4)),
            Self::Bytes(bytes) => is_first(bytes, byte),
        }
    }

    fn fit(&self, bytes: &[u8], letters: Letters) -> Fit {
        match self {
            Self::Text(text) => fit_text(text, bytes, |wanted, byte| same(wanted, byte, letters), soft_break),
            Self::Base64(text) => {
                fit_text(text, bytes, |wanted, byte| same(wanted, standard(byte), letters), blanks)
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

fn same(wanted: u8, byte: u8, letters: Letters) -> bool {
    match letters {
        Letters::AsTheyAre => wanted == byte,
        Letters::InAnyCase => wanted.eq_ignore_ascii_case(&byte),
    }
}

/// A character of the alphabet of URLs in the standard one.
fn standard(byte: u8) -> u8 {
    match byte {
        b'-' => b'+',
        b'_' => b'/',
        other => other,
    }
}

/// What quoted-printable puts where a line would be too long.
fn soft_break(bytes: &[u8]) -> usize {
    [&b"=\r\n"[..], b"=\n"].iter().find(|end| bytes.starts_with(end)).map_or(0, |end| end.len())
}

/// The ends of lines, and what may stand around them, also as they are written into JSON.
fn blanks(bytes: &[u8]) -> usize {
    let mut at = soft_break(bytes);
    while at < MOST_BLANKS {
        match bytes.get(at..).unwrap_or_default() {
            [b' ' | b'\t' | b'\r' | b'\n', ..] => at += 1,
            [b'\\', b'r' | b'n', ..] => at += 2,
            _ => break,
        }
    }
    at
}

/// Compares character by character. A character that introduces an escape may also be meant as it is: then both ways are gone.
fn fit_text(
    text: &[u8],
    bytes: &[u8],
    is_same: impl Fn(u8, u8) -> bool,
    gap: impl Fn(&[u8]) -> usize,
) -> Fit {
    // Most texts are told apart by their first characters, which mean nothing else.
    let mut plain = 0;
    while let Some(byte) = bytes.get(plain).filter(|byte| !MEANS_MORE.contains(byte)) {
        match text.get(plain) {
            None => return Fit { length: Some(plain), is_cut: false },
            Some(wanted) if is_same(*wanted, *byte) => plain += 1,
            Some(_) => return Fit::default(),
        }
    }
    let mut fit = Fit::default();
    // Ways that are still to be gone, and where ways have parted: neither is needed but for few texts.
    let (mut ways, mut parted) = (Vec::new(), HashSet::new());
    let mut next = Some((plain, plain));
    while let Some(way) = next.take().or_else(|| ways.pop()) {
        let (done, at) = way;
        let (wanted, rest) = (&text[done..], &bytes[at..]);
        if wanted.is_empty() {
            fit.length = fit.length.max(Some(at));
            continue;
        }
        if parted.contains(&way) {
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
                    ways.push(further);
                    parted.insert(way);
                }
            }
        }
    }
    fit
}

/// Pairs of digits, with at most one character between two of them.
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
