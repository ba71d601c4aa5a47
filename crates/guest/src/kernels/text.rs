//! Text printed by kernels, including text in messages that were too large to be kept whole.

use std::borrow::Cow;

use serde::Deserialize;

use crate::kernels::zmtp::Frame;

/// Text that a kernel has printed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Printed {
    /// Whether the text is standard error.
    pub(crate) is_error: bool,
    /// The text. If the message was too large: its beginning, a note, and its end.
    pub(crate) pieces: Vec<String>,
}

#[derive(Deserialize)]
struct StreamContent<'a> {
    #[serde(borrow)]
    name: Cow<'a, str>,
    text: String,
}

/// Extracts the text of a `stream` message.
pub(crate) fn printed(content: &Frame) -> Option<Printed> {
    match content {
        Frame::Whole(bytes) => {
            let content: StreamContent<'_> = serde_json::from_slice(bytes).ok()?;
            Some(Printed { is_error: content.name == "stderr", pieces: vec![content.text] })
        }
        Frame::Cut { head, left_out, tail } => {
            let (name, text) = split_head(head)?;
            let note = format!("\n[{left_out} bytes were left out here: too much in one piece]\n");
            let pieces = vec![unescape(text), note, unescape(from_safe_place(tail))];
            Some(Printed { is_error: name == "stderr", pieces })
        }
    }
}

/// Splits the beginning of a message into the stream's name and its text: `{"name": "stdout", "text": "...`.
fn split_head(head: &[u8]) -> Option<(&'static str, &[u8])> {
    let opening = String::from_utf8_lossy(head.get(..64)?).into_owned();
    let name = if opening.contains("\"stderr\"") { "stderr" } else { "stdout" };
    let key = opening.find("\"text\"")? + "\"text\"".len();
    let quote = opening.get(key..)?.find('"')? + key + 1;
    Some((name, head.get(quote..)?))
}

/// Drops bytes until the first position that is certainly outside an escape sequence or a multi-byte character.
fn from_safe_place(tail: &[u8]) -> &[u8] {
    const LONGEST_ESCAPE: usize = 6;
    let is_safe = |window: &[u8]| window.iter().all(|byte| *byte != b'\\' && byte.is_ascii());
    match tail.windows(LONGEST_ESCAPE + 1).position(is_safe) {
        Some(place) => tail.get(place + LONGEST_ESCAPE..).unwrap_or_default(),
        None => &[],
    }
}

/// Decodes a JSON string up to its end or to where it was cut.
fn unescape(bytes: &[u8]) -> String {
    let mut end = 0;
    while let Some(byte) = bytes.get(end) {
        let length = match byte {
            b'"' => break,
            b'\\' if bytes.get(end + 1) == Some(&b'u') => 6,
            b'\\' => 2,
            _ => 1,
        };
        if end + length > bytes.len() {
            break;
        }
        end += length;
    }
    let body = bytes.get(..end).unwrap_or_default();
    let whole = match std::str::from_utf8(body) {
        Ok(text) => text,
        Err(error) => body
            .get(..error.valid_up_to())
            .and_then(|text| std::str::from_utf8(text).ok())
            .unwrap_or_default(),
    };
    let quoted = format!("\"{whole}\"");
    serde_json::from_str(&quoted).unwrap_or_else(|_| whole.to_owned())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn whole_messages_are_read() {
        let content = json!({"name": "stderr", "text": "a\n\"b\""}).to_string();
        let printed = printed(&Frame::Whole(content.into_bytes())).unwrap();
        assert_eq!(printed, Printed { is_error: true, pieces: vec!["a\n\"b\"".into()] });
        assert!(super::printed(&Frame::Whole(b"{}".to_vec())).is_none());
    }

    #[test]
    fn both_ends_of_a_cut_message_are_decoded() {
        let text = "line with \\ and \u{1} and ä\n".repeat(100);
        let content = json!({"name": "stdout", "text": text}).to_string().into_bytes();
        for cut in 200..260 {
            let frame = Frame::Cut {
                head: content[..cut].to_vec(),
                left_out: 7,
                tail: content[content.len() - cut..].to_vec(),
            };
            let printed = printed(&frame).unwrap();
            assert!(!printed.is_error);
            assert!(text.starts_with(&printed.pieces[0]) && printed.pieces[0].len() > 100, "{printed:?}");
            assert!(text.ends_with(&printed.pieces[2]) && printed.pieces[2].len() > 100, "{printed:?}");
        }
    }
}
