//! Converts tool results to the form of built-in tools: text, images, and whether the call failed.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use model::Image;
use serde_json::Value;

/// The maximum number of images per call, and the maximum size of an image.
const MAX_IMAGES: usize = 4;
const MAX_IMAGE_BYTES: usize = 8 * 1024 * 1024;
/// The maximum text per call.
const MAX_TEXT_BYTES: usize = 4 * 1024 * 1024;
/// Image types that models accept.
const IMAGE_TYPES: [&str; 4] = ["image/png", "image/jpeg", "image/gif", "image/webp"];

/// The result of a tool call.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ToolOutcome {
    pub text: String,
    /// Images for models that accept them.
    pub images: Vec<Image>,
    /// Whether the server reports a failure.
    pub is_error: bool,
}

impl ToolOutcome {
    /// Parses a result as received.
    ///
    /// # Errors
    /// The value is not the result of a call.
    pub fn read(result: &Value) -> Result<Self, String> {
        let content = match &result["content"] {
            Value::Array(content) => content.as_slice(),
            Value::Null if !result["structuredContent"].is_null() => &[],
            _ => return Err(format!("no content in {}", short(&result.to_string()))),
        };
        let mut outcome = Self { is_error: result["isError"] == Value::Bool(true), ..Self::default() };
        for block in content {
            outcome.take(block);
        }
        let structured = &result["structuredContent"];
        // For older clients, servers repeat structured content as text; one copy is enough.
        if outcome.text.trim().is_empty() && !structured.is_null() {
            outcome.text = serde_json::to_string_pretty(structured).unwrap_or_default();
        }
        if outcome.text.len() > MAX_TEXT_BYTES {
            let end = outcome.text.floor_char_boundary(MAX_TEXT_BYTES);
            outcome.text.truncate(end);
            outcome.text += "\n[the rest is left out: it is longer than 4 MiB]";
        }
        if outcome.text.is_empty() && outcome.images.is_empty() {
            outcome.text = "(no output)".into();
        }
        Ok(outcome)
    }

    fn take(&mut self, block: &Value) {
        let text_of = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        match block["type"].as_str() {
            Some("text") => self.push_text(&text_of(&block["text"])),
            Some("image") => self.push_image(&text_of(&block["mimeType"]), &text_of(&block["data"])),
            Some("audio") => {
                self.push_text(&format!("[sound, {}: not shown]", short(&text_of(&block["mimeType"]))))
            }
            Some("resource") => {
                let resource = &block["resource"];
                match resource["text"].as_str() {
                    Some(text) => self.push_text(&format!("[{}]\n{text}", short(&text_of(&resource["uri"])))),
                    None => self.push_text(&format!("[{}, not text]", short(&text_of(&resource["uri"])))),
                }
            }
            Some("resource_link") => {
                self.push_text(&format!("[{}] {}", text_of(&block["uri"]), text_of(&block["description"])));
            }
            _ => {
                self.push_text(&format!("[something that is not understood: {}]", short(&block.to_string())))
            }
        }
    }

    fn push_text(&mut self, text: &str) {
        if !self.text.is_empty() && !self.text.ends_with('\n') {
            self.text.push('\n');
        }
        self.text += text;
    }

    fn push_image(&mut self, media_type: &str, data: &str) {
        let bytes = STANDARD.decode(data.replace(['\n', '\r'], ""));
        match bytes {
            Ok(bytes)
                if IMAGE_TYPES.contains(&media_type)
                    && bytes.len() <= MAX_IMAGE_BYTES
                    && self.images.len() < MAX_IMAGES =>
            {
                self.push_text(&format!("[picture, {media_type}, {} bytes]", bytes.len()));
                self.images.push(Image { media_type: media_type.to_owned(), bytes });
            }
            _ => self.push_text(&format!("[a picture, {}, that cannot be shown]", short(media_type))),
        }
    }
}

/// Shortens a text for a message.
pub(crate) fn short(text: &str) -> String {
    let mut short: String = text.chars().take(200).collect();
    if short.len() < text.len() {
        short.push_str("...");
    }
    short
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn text_images_and_errors_are_converted() {
        let result = json!({"isError": true, "content": [
            {"type": "text", "text": "one"},
            {"type": "image", "mimeType": "image/png", "data": "aGk="},
            {"type": "image", "mimeType": "image/x-strange", "data": "aGk="},
            {"type": "resource", "resource": {"uri": "file:///a", "text": "inside"}},
            {"type": "news"}
        ]});
        let outcome = ToolOutcome::read(&result).unwrap();
        assert!(outcome.is_error);
        assert_eq!(outcome.images, [Image { media_type: "image/png".into(), bytes: b"hi".into() }]);
        assert_eq!(
            outcome.text,
            "one\n[picture, image/png, 2 bytes]\n[a picture, image/x-strange, that cannot be shown]\n[file:///a]\n\
             inside\n[something that is not understood: {\"type\":\"news\"}]"
        );
    }

    #[test]
    fn structured_content_without_text_is_shown_as_json() {
        let outcome = ToolOutcome::read(&json!({"content": [], "structuredContent": {"sum": 3}})).unwrap();
        assert_eq!((outcome.text.as_str(), outcome.is_error), ("{\n  \"sum\": 3\n}", false));
        assert_eq!(ToolOutcome::read(&json!({"content": []})).unwrap().text, "(no output)");
        assert!(ToolOutcome::read(&json!({"tools": []})).is_err());
    }
}
