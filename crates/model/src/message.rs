//! What was said: messages and their parts. Serializable, because the log keeps them.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

use crate::name::Dialect;

/// Who speaks. Tool results are parts of a user's message; the system's text is its own field of the request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// The person, or the tools.
    User,
    /// The model.
    Assistant,
}

/// One message. Neighbours of the same role are joined where a provider wants them to alternate.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Message {
    /// Who speaks.
    pub role: Role,
    /// What is said, in order.
    pub parts: Vec<Part>,
}

impl Message {
    /// A message of the user with plain text.
    pub fn user(text: impl Into<String>) -> Self {
        Self { role: Role::User, parts: vec![Part::Text(text.into())] }
    }

    /// A message of the model with these parts, as an [`crate::Answer`] has them.
    pub fn assistant(parts: Vec<Part>) -> Self {
        Self { role: Role::Assistant, parts }
    }

    /// The results of tools, which go back as a user's message.
    pub fn results(results: Vec<ToolResult>) -> Self {
        Self { role: Role::User, parts: results.into_iter().map(Part::ToolResult).collect() }
    }
}

/// A part of a message.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Part {
    /// Plain text.
    Text(String),
    /// A picture. A model without vision is told in words that there was one.
    Image(Image),
    /// What the model thought, and what its provider wants back of it.
    Reasoning(Reasoning),
    /// The model wants a tool to be run.
    ToolCall(ToolCall),
    /// What a tool said.
    ToolResult(ToolResult),
}

/// A picture.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Image {
    /// Such as `image/png`.
    pub media_type: String,
    /// The file's content; base64 where it is written down.
    #[serde(serialize_with = "to_base64", deserialize_with = "from_base64")]
    pub bytes: Vec<u8>,
}

impl std::fmt::Debug for Image {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Image({}, {} bytes)", self.media_type, self.bytes.len())
    }
}

impl Image {
    /// The content as providers take it.
    pub(crate) fn base64(&self) -> String {
        STANDARD.encode(&self.bytes)
    }

    /// What a model without eyes is told.
    pub(crate) fn unseen(&self) -> String {
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

/// JSON that only one kind of provider understands. It is sent back word for word to that kind, and left out for others.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Opaque {
    /// Who understands it.
    pub dialect: Dialect,
    /// As it came.
    pub data: Value,
}

/// What the model thought before it answered.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Reasoning {
    /// The readable part; empty where the provider hides it.
    #[serde(default)]
    pub text: String,
    /// What the provider wants back.
    pub opaque: Opaque,
}

/// The model wants a tool to be run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ToolCall {
    /// Names the call in its result. Unique within an answer (an id that a provider gave twice, or not at all, was
    /// replaced), not across answers.
    pub id: String,
    /// The tool; not necessarily one that was offered.
    pub name: String,
    /// An object. When the model wrote something that is not JSON, even with mercy, this is its text as a string, so
    /// that the check of the tool's input refuses it and the model can be told.
    pub arguments: Value,
    /// What the provider wants back with this call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub opaque: Option<Opaque>,
}

/// What a tool said.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ToolResult {
    /// The call's id.
    pub id: String,
    /// The tool's name.
    pub name: String,
    /// Text and pictures, in order.
    pub parts: Vec<ResultPart>,
    /// Whether the tool failed.
    #[serde(default)]
    pub is_error: bool,
}

impl ToolResult {
    /// A result that is plain text.
    pub fn text(call: &ToolCall, text: impl Into<String>) -> Self {
        Self {
            id: call.id.clone(),
            name: call.name.clone(),
            parts: vec![ResultPart::Text(text.into())],
            is_error: false,
        }
    }
}

/// A part of a tool's result.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ResultPart {
    /// Plain text.
    Text(String),
    /// A picture.
    Image(Image),
}
