//! Converts a kernel's published messages to display records.

use protocol::{CellError, Display, DisplayKind, MAX_DISPLAY_BYTES, plain_text};
use serde_json::{Map, Value, json};

use crate::kernels::zmtp::Frame;

/// The longest plain text of a display. Longer text is useless to readers.
const MAX_TEXT_CHARS: usize = 1024 * 1024;

/// Converts a message to a display; `None` if it is not a display message.
pub(crate) fn display(kind: &str, content: &Frame) -> Option<Display> {
    let kind = match kind {
        "execute_result" => DisplayKind::Result,
        "display_data" => DisplayKind::Data,
        "update_display_data" => DisplayKind::Update,
        "clear_output" => DisplayKind::Clear,
        "error" => DisplayKind::Error,
        _ => return None,
    };
    let mut display = Display::new(kind);
    let content: Value = match content {
        Frame::Whole(bytes) => serde_json::from_slice(bytes).ok()?,
        Frame::Cut { head, left_out, tail } => {
            let bytes = head.len() as u64 + left_out + tail.len() as u64;
            display.data = note(&format!("something of {bytes} bytes"));
            return Some(display);
        }
    };
    let object = |name: &str| content.get(name).and_then(Value::as_object).cloned().unwrap_or_default();
    display.data = object("data");
    display.metadata = object("metadata");
    display.execution_count = content.get("execution_count").and_then(Value::as_u64);
    let id = content.get("transient").and_then(|transient| transient.get("display_id"));
    display.display_id = id.and_then(Value::as_str).map(str::to_owned);
    if let Some(Value::String(plain)) = display.data.get_mut("text/plain") {
        // Some kernels always color their results.
        *plain = plain_text(plain);
        if let Some((end, _)) = plain.char_indices().nth(MAX_TEXT_CHARS) {
            plain.truncate(end);
            plain.push_str(" ...");
        }
    }
    if kind == DisplayKind::Error {
        display.error = Some(error(&content));
    }
    Some(display)
}

fn error(content: &Value) -> CellError {
    let said = |name: &str| content.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
    let lines = content.get("traceback").and_then(Value::as_array).into_iter().flatten();
    CellError {
        name: said("ename"),
        message: said("evalue"),
        traceback: lines.filter_map(Value::as_str).map(str::to_owned).collect(),
    }
}

fn note(what: &str) -> Map<String, Value> {
    let mut data = Map::new();
    data.insert("text/plain".into(), json!(format!("[{what} was left out: too large to be kept]")));
    data
}

/// Encodes a display as a record. Replaces formats that are too large with a note, starting with the largest.
pub(crate) fn bounded(mut display: Display) -> (Display, Vec<u8>) {
    loop {
        if let Some(record) = display.encode() {
            return (display, record);
        }
        let size = |value: &Value| serde_json::to_vec(value).map_or(0, |json| json.len());
        let largest = display.data.iter().max_by_key(|(_, value)| size(value));
        match largest.map(|(name, value)| (name.clone(), size(value))) {
            Some((name, bytes)) if bytes > MAX_DISPLAY_BYTES / 64 => {
                display.data.remove(&name);
                if display.data.is_empty() {
                    display.data = note(&format!("{name} of {bytes} bytes"));
                }
            }
            _ => {
                let error = display.error.take().map(|error| CellError {
                    message: error.message.chars().take(10_000).collect(),
                    traceback: Vec::new(),
                    ..error
                });
                display = Display { error, data: note("a display"), ..Display::new(display.kind) };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whole(content: &Value) -> Frame {
        Frame::Whole(content.to_string().into_bytes())
    }

    #[test]
    fn results_lose_colors_and_keep_their_media_types() {
        let content = json!({
            "data": {"text/plain": "\u{1b}[33m2\u{1b}[39m", "text/html": "<b>2</b>"}, "metadata": {}, "execution_count": 3
        });
        let shown = display("execute_result", &whole(&content)).unwrap();
        assert_eq!((&shown.data["text/plain"], &shown.data["text/html"]), (&json!("2"), &json!("<b>2</b>")));
        assert_eq!(shown.execution_count, Some(3));
        assert!(display("comm_open", &whole(&content)).is_none());
    }

    #[test]
    fn errors_keep_their_traceback_unchanged() {
        let content = json!({"ename": "E", "evalue": "no", "traceback": ["\u{1b}[31mline"]});
        let error = display("error", &whole(&content)).unwrap().error.unwrap();
        assert_eq!((error.name.as_str(), error.traceback[0].as_str()), ("E", "\u{1b}[31mline"));
    }

    #[test]
    fn oversized_display_is_replaced_by_a_note() {
        let mut large = Display::new(DisplayKind::Data);
        large.data.insert("image/png".into(), json!("x".repeat(MAX_DISPLAY_BYTES)));
        large.data.insert("text/plain".into(), json!("<Figure>"));
        let (kept, record) = bounded(large.clone());
        assert_eq!(kept.data.keys().collect::<Vec<_>>(), ["text/plain"]);
        assert!(record.len() < 1000);
        large.data.remove("text/plain");
        let (kept, _) = bounded(large);
        assert!(kept.data["text/plain"].as_str().unwrap().contains("image/png of"));
        let mut error = Display::new(DisplayKind::Error);
        let traceback = vec!["x".repeat(1000); MAX_DISPLAY_BYTES / 1000];
        error.error = Some(CellError { name: "E".into(), message: "no".into(), traceback });
        assert_eq!(bounded(error).0.error.unwrap().name, "E");
    }
}
