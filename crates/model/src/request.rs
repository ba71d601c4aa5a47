//! Requests to a model.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::message::Message;

/// A request to a model. Requests of one conversation share their common data.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ModelRequest {
    /// The system prompt. May be empty.
    pub system: Arc<str>,
    /// The conversation, oldest first. A tool call of the assistant is followed by its result.
    pub messages: Vec<Arc<Message>>,
    /// Whether the last message is a temporary status that only this request contains, not a user message: it does
    /// not start a new turn.
    #[serde(default)]
    pub ends_with_status: bool,
    /// The tools that the model may call.
    pub tools: Arc<[ToolSpec]>,
    #[serde(default)]
    pub tool_choice: ToolChoice,
    /// The maximum number of output tokens; by default what the model allows.
    pub max_output_tokens: Option<u32>,
    /// 0 for deterministic answers, as far as the provider supports it; by default the provider's default.
    pub temperature: Option<f32>,
    /// How much the model should think, if it can; by default what the provider does by itself.
    #[serde(default)]
    pub effort: Option<Effort>,
    /// Indices of messages that end a prefix which later requests will repeat. Tools and system prompt are always
    /// considered stable. Only the last three count; providers with automatic caching ignore them.
    #[serde(default)]
    pub cache_after: Vec<usize>,
    /// The same for all requests of one conversation, so that a provider can route them to the server with the cache.
    pub cache_key: Option<String>,
    /// A JSON schema for the answer's text. Cannot be combined with tools.
    pub output_schema: Option<OutputSchema>,
}

impl ModelRequest {
    /// Appends a message.
    pub fn say(&mut self, message: Message) {
        self.messages.push(Arc::new(message));
    }
}

/// A tool definition for the model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ToolSpec {
    /// At most 64 letters, digits, `_` and `-`.
    pub name: String,
    /// What the tool does and when to use it.
    pub description: String,
    /// JSON schema of the input; must be an object.
    pub input_schema: Value,
}

/// Whether the model must call a tool.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToolChoice {
    /// The model decides.
    #[default]
    Auto,
    /// No calls, although the tools stay in the prompt.
    Never,
    /// At least one call.
    Required,
    /// A call of this tool.
    Tool(String),
}

/// How much a model thinks before it answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Effort {
    /// Not at all, or as little as the model allows.
    Off,
    Low,
    Medium,
    High,
}

/// A JSON schema for the answer's text.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OutputSchema {
    /// Letters, digits, `_` and `-`.
    pub name: String,
    pub schema: Value,
}
