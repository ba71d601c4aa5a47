//! Messages and their parts. Serializable, because the event log stores them.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

use crate::name::Dialect;

/// The author of a message. Tool results are parts of a user message; the system prompt is a separate field of the
/// request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// The user, or tools.
    User,
    Assistant,
}

/// One message. If a provider requires alternating roles, adjacent messages with the same role are merged.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Message {
    pub role: Role,
    pub parts: Vec<Part>,
}

impl Message {
    /// A user message with plain text.
    pub fn user(text: impl Into<String>) -> Self {
        Self { role: Role::User, parts: vec![Part::Text(text.into())] }
    }

    /// An assistant message with the parts of an [`crate::Answer`].
    pub fn assistant(parts: Vec<Part>) -> Self {
        Self { role: Role::Assistant, parts }
    }

    /// Tool results, which are sent as a user message.
    pub fn results(results: Vec<ToolResult>) -> Self {
        Self { role: Role::User, parts: results.into_iter().map(Part::ToolResult).collect() }
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Part {
    Text(String),
    /// An image. A model without vision gets a text that mentions it.
    Image(Image),
    /// The model's reasoning, and the data that its provider needs back.
    Reasoning(Reasoning),
    /// A request of the model to run a tool.
    ToolCall(ToolCall),
    ToolResult(ToolResult),
}

#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Image {
    /// Such as `image/png`.
    pub media_type: String,
    /// The file's content; serialized as base64.
    #[serde(serialize_with = "to_base64", deserialize_with = "from_base64")]
    pub bytes: Vec<u8>,
}

impl std::fmt::Debug for Image {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Image({}, {} bytes)", self.media_type, self.bytes.len())
    }
}

impl Image {
    pub(crate) fn base64(&self) -> String {
        STANDARD.encode(&self.bytes)
    }

    /// The replacement text for models without vision.
    pub(crate) fn placeholder_text(&self) -> String {
        format!("[a picture ({}, {} bytes) that this model cannot see]", self.media_type, self.bytes.len())
    }
}

fn to_base64<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&STANDARD.encode(bytes))
}

fn from_base64<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
    let text = String::deserialize(deserializer)?;
    STANDARD.decode(text).map_err(serde::de::Error::custom)
}

/// JSON that only one kind of provider understands. It is sent back verbatim to that kind, and omitted for others.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Opaque {
    /// The API that understands it.
    pub dialect: Dialect,
    pub data: Value,
}

/// The model's reasoning before its answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Reasoning {
    /// The readable part; empty if the provider hides it.
    #[serde(default)]
    pub text: String,
    /// The data that the provider needs back.
    pub opaque: Opaque,
}

/// A request of the model to run a tool.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ToolCall {
    /// Identifies the call in its result. Unique within an answer, but not across answers; missing and duplicate ids
    /// from a provider are replaced.
    pub id: String,
    /// The tool's name; it may be unknown.
    pub name: String,
    /// An object. If the model wrote something that is not JSON even for the lenient parser, this is its text as a
    /// string, so that the validation of the tool's input rejects it and the model can be informed.
    pub arguments: Value,
    /// The data that the provider needs back with this call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub opaque: Option<Opaque>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ToolResult {
    pub id: String,
    pub name: String,
    /// Text and images, in order.
    pub parts: Vec<ResultPart>,
    #[serde(default)]
    pub is_error: bool,
}

impl ToolResult {
    /// A plain-text result.
    pub fn text(call: &ToolCall, text: impl Into<String>) -> Self {
        Self {
            id: call.id.clone(),
            name: call.name.clone(),
            parts: vec![ResultPart::Text(text.into())],
            is_error: false,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ResultPart {
    Text(String),
    Image(Image),
}
