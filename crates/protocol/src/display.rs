//! Output of a kernel besides text: results, images, tables, errors.
//!
//! A record is a byte that cannot occur in JSON text, then the JSON, then a newline, as in RFC 7464. A reader that
//! starts in the middle or after a gap can therefore find the start of the next record.

use bytes::BytesMut;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// The longest record. The guest shortens longer ones.
pub const MAX_DISPLAY_BYTES: usize = 6 * 1024 * 1024;
const START: u8 = 0x1e;
const END: u8 = b'\n';

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DisplayKind {
    /// The value of the last expression of the cell.
    Result,
    /// Data that the code displayed explicitly.
    Data,
    /// Replaces data that was displayed earlier with the same `display_id`.
    Update,
    /// Clears all output displayed so far.
    Clear,
    /// The exception that ended the cell.
    Error,
}

/// An exception raised by the code of a cell.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CellError {
    /// The type of the exception.
    pub name: String,
    pub message: String,
    /// As printed by the kernel, including color codes.
    pub traceback: Vec<String>,
}

/// One display record.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Display {
    pub kind: DisplayKind,
    /// The same content in several formats, keyed by media type. Binary formats are base64.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub data: Map<String, Value>,
    /// The kernel's metadata about `data`.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub metadata: Map<String, Value>,
    /// The identifier that [`DisplayKind::Update`] refers to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub display_id: Option<String>,
    /// The kernel's execution counter for the cell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub execution_count: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<CellError>,
}

impl Display {
    /// The content as plain text.
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

    /// Creates an empty record.
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

    /// Encodes the record, or returns `None` if it would be longer than [`MAX_DISPLAY_BYTES`].
    #[must_use]
    pub fn encode(&self) -> Option<Vec<u8>> {
        let mut record = vec![START];
        serde_json::to_writer(&mut record, self).ok()?;
        record.push(END);
        (record.len() <= MAX_DISPLAY_BYTES).then_some(record)
    }
}

/// Removes terminal control sequences from a text.
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
            // A CSI sequence ends with a byte from 0x40 to 0x7e, an OSC sequence with BEL.
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

/// Reassembles display records from a byte stream.
#[derive(Debug, Default)]
pub struct DisplayReader {
    /// Empty, or the beginning of a record.
    partial: BytesMut,
}

impl DisplayReader {
    /// Consumes bytes and returns the records that are now complete. Skips bytes that belong to no record.
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

    /// Whether the reader has the beginning of a record but not its end.
    #[must_use]
    pub fn is_waiting(&self) -> bool {
        !self.partial.is_empty()
    }

    /// Discards a partial record because bytes are missing from the stream.
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
        fn records_are_reassembled_from_arbitrary_pieces(texts in prop::collection::vec(".{0,40}", 1..5), cuts in prop::collection::vec(0usize..500, 0..6)) {
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
    fn plain_text_strips_control_sequences() {
        assert_eq!(plain_text("\x1b[0;31mValueError\x1b[0m: ä \x1b]0;title\x07x"), "ValueError: ä x");
        assert_eq!(plain_text("a\x1b[38;5;28mb\x1b"), "ab");
    }

    #[test]
    fn reader_finds_the_next_complete_record_after_a_gap() {
        let (first, second) = (display("first").encode().unwrap(), display("second").encode().unwrap());
        let mut reader = DisplayReader::default();
        assert!(reader.take(&first[..9]).is_empty() && reader.is_waiting());
        reader.skip();
        let rest: Vec<u8> = first[20..].iter().chain(&second).copied().collect();
        assert_eq!(reader.take(&rest), [display("second")]);
    }

    #[test]
    fn oversized_records_are_dropped() {
        let mut reader = DisplayReader::default();
        reader.take(&[START]);
        for _ in 0..10 {
            reader.take(&vec![b'x'; 1024 * 1024]);
        }
        assert!(!reader.is_waiting());
        assert!(display(&"x".repeat(MAX_DISPLAY_BYTES)).encode().is_none());
    }
}
