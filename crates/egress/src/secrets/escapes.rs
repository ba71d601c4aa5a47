//! Decodes escaped characters: percent-encoding, JSON and source code escapes, HTML entities and quoted-printable,
//! also nested.

/// A decoded character: its bytes and the length of its encoded form.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DecodedChar {
    bytes: [u8; 4],
    count: usize,
    pub(crate) length: usize,
}

impl DecodedChar {
    /// The decoded bytes.
    pub(crate) fn meaning(&self) -> &[u8] {
        &self.bytes[..self.count]
    }

    fn byte(byte: u8, length: usize) -> Self {
        Self { bytes: [byte, 0, 0, 0], count: 1, length }
    }

    fn character(character: char, length: usize) -> Self {
        let mut bytes = [0; 4];
        let count = character.encode_utf8(&mut bytes).len();
        Self { bytes, count, length }
    }
}

/// All possible readings of the start of a byte string.
#[derive(Debug, Default)]
pub(crate) struct Decodings {
    found: [Option<DecodedChar>; 8],
    count: usize,
    /// Whether the input ends before the reading is certain.
    pub(crate) is_cut: bool,
}

impl Decodings {
    pub(crate) fn iter(&self) -> impl Iterator<Item = &DecodedChar> {
        self.found.iter().flatten()
    }

    fn add(&mut self, unit: DecodedChar) {
        if let Some(slot) = self.found.get_mut(self.count) {
            *slot = Some(unit);
            self.count += 1;
        }
    }
}

/// The bytes that can begin an escape sequence.
pub(crate) const ESCAPE_CHARS: [u8; 4] = [b'%', b'\\', b'&', b'='];
/// How many times one kind of escaping may be nested in itself.
const DEPTH: usize = 3;
/// The maximum number of digits of a character code.
const DIGITS: usize = 8;

/// Decodes one character at the start of `bytes`, in every possible way.
pub(crate) fn read(bytes: &[u8]) -> Decodings {
    let mut units = Decodings::default();
    let Some(first) = bytes.first() else {
        units.is_cut = true;
        return units;
    };
    units.add(DecodedChar::byte(*first, 1));
    match first {
        b'+' => units.add(DecodedChar::byte(b' ', 1)),
        b'%' => read_percent(bytes, &mut units),
        b'\\' => read_backslash(bytes, &mut units),
        b'&' => read_entity(bytes, 1, &mut units),
        b'=' => read_pair(bytes, 1, &mut units),
        _ => {}
    }
    units
}

/// `%3D`, and with the percent sign itself encoded `%253D`.
fn read_percent(bytes: &[u8], units: &mut Decodings) {
    let mut at = 1;
    for _ in 0..DEPTH {
        read_pair(bytes, at, units);
        match bytes.get(at..at + 2) {
            Some(b"25") => at += 2,
            _ => return,
        }
    }
}

/// Two hexadecimal digits.
fn read_pair(bytes: &[u8], at: usize, units: &mut Decodings) {
    let rest = bytes.get(at..).unwrap_or_default();
    match (rest.first().map(|digit| hex(*digit)), rest.get(1).map(|digit| hex(*digit))) {
        (Some(Some(high)), Some(Some(low))) => units.add(DecodedChar::byte((high << 4) | low, at + 2)),
        (None | Some(Some(_)), None) => units.is_cut = true,
        _ => {}
    }
}

/// `\/`, `\"`, `\x3d`, `\u003d`, and with more backslashes if an escaped text was escaped again.
fn read_backslash(bytes: &[u8], units: &mut Decodings) {
    let run = bytes.iter().take(1 << DEPTH).take_while(|byte| **byte == b'\\').count();
    for doubled in [2, 4] {
        if run >= doubled {
            units.add(DecodedChar::byte(b'\\', doubled));
        }
    }
    let Some(kind) = bytes.get(run) else {
        units.is_cut = true;
        return;
    };
    match kind {
        b'x' => read_pair(bytes, run + 1, units),
        b'u' => {
            let digits = bytes.get(run + 1..).unwrap_or_default();
            let digits = &digits[..digits.len().min(4)];
            let Some(number) = number(digits, 16) else { return };
            if digits.len() < 4 {
                units.is_cut = true;
            } else if let Some(character) = char::from_u32(number) {
                units.add(DecodedChar::character(character, run + 5));
                // HTML inside JSON.
                if character == '&' {
                    read_entity(bytes, run + 5, units);
                }
            }
        }
        b'n' => units.add(DecodedChar::byte(b'\n', run + 1)),
        b'r' => units.add(DecodedChar::byte(b'\r', run + 1)),
        b't' => units.add(DecodedChar::byte(b'\t', run + 1)),
        other if !other.is_ascii_alphanumeric() => units.add(DecodedChar::byte(*other, run + 1)),
        _ => {}
    }
}

/// The part after an ampersand that ends at `at`: `amp;`, `#61;`, `#x3D;`, `equals;`, also with the ampersand itself
/// encoded.
fn read_entity(bytes: &[u8], mut at: usize, units: &mut Decodings) {
    for _ in 0..DEPTH {
        let rest = bytes.get(at..).unwrap_or_default();
        let name = &rest[..rest.len().min(2 + DIGITS)];
        let Some(end) = name.iter().position(|byte| *byte == b';') else {
            units.is_cut |= name.len() == rest.len()
                && name.iter().all(|byte| byte.is_ascii_alphanumeric() || *byte == b'#');
            return;
        };
        if let Some(character) = entity(&name[..end]) {
            units.add(DecodedChar::character(character, at + end + 1));
        }
        if &name[..end] != b"amp" {
            return;
        }
        at += end + 1;
    }
}

fn entity(name: &[u8]) -> Option<char> {
    match name {
        [b'#', b'x' | b'X', digits @ ..] => {
            number(digits, 16).and_then(char::from_u32).filter(|_| !digits.is_empty())
        }
        [b'#', digits @ ..] => number(digits, 10).and_then(char::from_u32).filter(|_| !digits.is_empty()),
        _ => NAMED.iter().find(|(known, _)| known.as_bytes() == name).map(|(_, character)| *character),
    }
}

/// The ASCII characters that have an HTML entity.
const NAMED: [(&str, char); 36] = [
    ("amp", '&'),
    ("apos", '\''),
    ("ast", '*'),
    ("bsol", '\\'),
    ("colon", ':'),
    ("comma", ','),
    ("commat", '@'),
    ("dollar", '$'),
    ("equals", '='),
    ("excl", '!'),
    ("grave", '`'),
    ("gt", '>'),
    ("Hat", '^'),
    ("lbrace", '{'),
    ("lbrack", '['),
    ("lcub", '{'),
    ("lowbar", '_'),
    ("lpar", '('),
    ("lsqb", '['),
    ("lt", '<'),
    ("num", '#'),
    ("percnt", '%'),
    ("period", '.'),
    ("plus", '+'),
    ("quest", '?'),
    ("quot", '"'),
    ("rbrace", '}'),
    ("rbrack", ']'),
    ("rcub", '}'),
    ("rpar", ')'),
    ("rsqb", ']'),
    ("semi", ';'),
    ("sol", '/'),
    ("Tab", '\t'),
    ("vert", '|'),
    ("verbar", '|'),
];

fn number(digits: &[u8], base: u32) -> Option<u32> {
    digits.iter().try_fold(0u32, |number, digit| {
        number.checked_mul(base)?.checked_add(char::from(*digit).to_digit(base)?)
    })
}

pub(crate) fn hex(digit: u8) -> Option<u8> {
    char::from(digit).to_digit(16).and_then(|value| u8::try_from(value).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn common_escapes_are_decoded() {
        for text in [
            "=",
            "%3D",
            "%3d",
            "%253d",
            "%25253D",
            "\\u003d",
            "\\u003D",
            "\\\\u003d",
            "\\x3d",
            "=3D",
            "&#61;",
            "&#061;",
            "&#x3d;",
            "&#X3D;",
            "&equals;",
            "&amp;#61;",
            "&amp;amp;equals;",
            "\\u0026#61;",
            "\\=",
        ] {
            let units = read(text.as_bytes());
            let whole = units.iter().find(|unit| unit.length == text.len());
            assert_eq!(whole.map(DecodedChar::meaning), Some(&b"="[..]), "{text}");
            for cut in 1..text.len() {
                assert!(read(&text.as_bytes()[..cut]).is_cut, "{text} cut at {cut}");
            }
        }
    }

    #[test]
    fn unescaped_characters_have_only_their_literal_reading() {
        for text in ["a", "%zz", "&;", "&nothing;", "&#;", "&#x;", "\\q", "=zz", "\\u12g4"] {
            let units = read(text.as_bytes());
            assert_eq!(units.iter().count(), 1, "{text}: {units:?}");
            assert!(!units.is_cut, "{text}");
        }
    }
}
