//! What a kernel shows beside text: results, pictures, tables, errors.
//!
//! A record is a byte that occurs in no JSON text, the JSON, and a line end, as in RFC 7464. So who follows a call may
//! come in the middle, after a gap, and still finds where the next record starts.

use bytes::BytesMut;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// The longest record; the guest shortens what would be longer.
pub const MAX_DISPLAY_BYTES: usize = 6 * 1024 * 1024;
const START: u8 = 0x1e;
const END: u8 = b'\n';

/// What is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DisplayKind {
    /// The value of the cell's last expression.
    Result,
    /// Something that the code wanted to be shown.
    Data,
    /// A new form of something that was shown before under the same `display_id`.
    Update,
    /// What was shown so far is to be cleared.
    Clear,
    /// The exception that has ended the cell.
    Error,
}

/// An exception.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CellError {
    /// Its type.
    pub name: String,
    /// What it says.
    pub message: String,
    /// As the kernel prints it, colours included.
    pub traceback: Vec<String>,
}

/// One thing that is shown.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Display {
    /// What it is.
    pub kind: DisplayKind,
    /// The same thing in several forms, by media type; binary ones are base64.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub data: Map<String, Value>,
    /// What the kernel says about the forms.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub metadata: Map<String, Value>,
    /// Names it for updates.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub display_id: Option<String>,
    /// The kernel's number of the cell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub execution_count: Option<u64>,
    /// The exception, where it is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<CellError>,
}

impl Display {
    /// What somebody sees who reads text alone.
    #[must_use]
    pub fn text(&self) -> String {
        if let Some(error) = &self.error {
            let lines = if error.traceback.is_empty() {
                format!("{}: {}", error.name, error.message)
            } else {
                error.traceback.join("\n")
            };
            return plain_text(&lines);
        }
        if let Some(Value::String(text)) = self.data.get("text/plain") {
            return text.clone();
        }
        let names: Vec<&str> = self.data.keys().map(String::as_str).collect();
        if names.is_empty() { String::new() } else { format!("({})", names.join(", ")) }
    }

    /// Something without content.
    #[must_use]
    pub fn new(kind: DisplayKind) -> Self {
        Self {
            kind,
            data: Map::new(),
            metadata: Map::new(),
            display_id: None,
            execution_count: None,
            error: None,
        }
    }

    /// The record, or `None` where it would be too long.
    #[must_use]
    pub fn encode(&self) -> Option<Vec<u8>> {
        let mut record = vec![START];
        serde_json::to_writer(&mut record, self).ok()?;
        record.push(END);
        (record.len() <= MAX_DISPLAY_BYTES).then_some(record)
    }
}

/// The text without control sequences of terminals.
#[must_use]
pub fn plain_text(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text.chars().peekable();
    while let Some(letter) = rest.next() {
        if letter != '\x1b' {
            out.push(letter);
            continue;
        }
        match rest.next() {
            // A control sequence ends with a letter or a sign, an operating system command with a bell.
            Some('[') => {
                while rest.next_if(|next| !('\x40'..='\x7e').contains(next)).is_some() {}
                rest.next();
            }
            Some(']') => while rest.next().is_some_and(|next| next != '\x07') {},
            _ => {}
        }
    }
    out
}

/// Puts records together again.
#[derive(Debug, Default)]
pub struct DisplayReader {
    /// Empty, or a record from its start.
    partial: BytesMut,
}

impl DisplayReader {
    /// Takes bytes and gives back the records that are whole. What is no record is left out.
    pub fn take(&mut self, bytes: &[u8]) -> Vec<Display> {
        let mut found = Vec::new();
        for piece in bytes.split_inclusive(|byte| *byte == END) {
            let piece = match piece.iter().rposition(|byte| *byte == START) {
                Some(start) => {
                    self.partial.clear();
                    &piece[start..]
                }
                None if self.partial.is_empty() => continue,
                None => piece,
            };
            if self.partial.len() + piece.len() > MAX_DISPLAY_BYTES {
                self.partial.clear();
                continue;
            }
            self.partial.extend_from_slice(piece);
            if piece.last() == Some(&END) {
                let record = self.partial.split();
                found.extend(serde_json::from_slice(&record[1..]).ok());
            }
        }
        found
    }

    /// Whether a record has begun and its end has not come.
    #[must_use]
    pub fn is_waiting(&self) -> bool {
        !self.partial.is_empty()
    }

    /// Something is missing between what came and what will come.
    pub fn skip(&mut self) {
        self.partial.clear();
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn display(text: &str) -> Display {
        let mut display = Display::new(DisplayKind::Result);
        display.data.insert("text/plain".into(), json!(text));
        display
    }

    proptest! {
        #[test]
        fn records_survive_any_cut(texts in prop::collection::vec(".{0,40}", 1..5), cuts in prop::collection::vec(0usize..500, 0..6)) {
            let displays: Vec<Display> = texts.iter().map(|text| display(text)).collect();
            let bytes: Vec<u8> = displays.iter().flat_map(|display| display.encode().unwrap()).collect();
            let mut places: Vec<usize> = cuts.into_iter().map(|cut| cut.min(bytes.len())).collect();
            places.extend([0, bytes.len()]);
            places.sort_unstable();
            let mut reader = DisplayReader::default();
            let found: Vec<Display> = places.windows(2).flat_map(|cut| reader.take(&bytes[cut[0]..cut[1]])).collect();
            prop_assert_eq!(found, displays);
            prop_assert!(!reader.is_waiting());
        }
    }

    #[test]
    fn colours_go_and_text_stays() {
        assert_eq!(plain_text("\x1b[0;31mValueError\x1b[0m: ä \x1b]0;title\x07x"), "ValueError: ä x");
        assert_eq!(plain_text("a\x1b[38;5;28mb\x1b"), "ab");
    }

    #[test]
    fn after_a_gap_the_next_whole_record_is_found() {
        let (first, second) = (display("first").encode().unwrap(), display("second").encode().unwrap());
        let mut reader = DisplayReader::default();
        assert!(reader.take(&first[..9]).is_empty() && reader.is_waiting());
        reader.skip();
        let rest: Vec<u8> = first[20..].iter().chain(&second).copied().collect();
        assert_eq!(reader.take(&rest), [display("second")]);
    }

    #[test]
    fn what_never_ends_is_not_kept() {
        let mut reader = DisplayReader::default();
        reader.take(&[START]);
        for _ in 0..10 {
            reader.take(&vec![b'x'; 1024 * 1024]);
        }
        assert!(!reader.is_waiting());
        assert!(display(&"x".repeat(MAX_DISPLAY_BYTES)).encode().is_none());
    }
}
