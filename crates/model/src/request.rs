//! What a model is asked.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::message::Message;

/// A request to a model. What requests of one conversation have in common is shared between them.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ModelRequest {
    /// Who the model is to be and what rules hold. May be empty.
    pub system: Arc<str>,
    /// The conversation, oldest first. A tool call of the assistant is followed by its result.
    pub messages: Vec<Arc<Message>>,
    /// Whether the last message is a status that only this request has, not a word of the user: no new turn begins with it.
    #[serde(default)]
    pub ends_with_status: bool,
    /// Tools that may be called.
    pub tools: Arc<[ToolSpec]>,
    /// Whether one must be.
    #[serde(default)]
    pub tool_choice: ToolChoice,
    /// Most tokens of the answer; without a value, what the model allows.
    pub max_output_tokens: Option<u32>,
    /// 0 for the same answer every time, as far as the provider can; without a value its default.
    pub temperature: Option<f32>,
    /// How much the model should think, where it can be told.
    #[serde(default)]
    pub effort: Effort,
    /// Indices of messages that end a prefix which later requests will repeat. Tools and system text are taken to be
    /// stable without saying. Only the last three count; providers that cache by themselves do not need them.
    #[serde(default)]
    pub cache_after: Vec<usize>,
    /// The same for all requests of one conversation, so that a provider can send them to where the cache is.
    pub cache_key: Option<String>,
    /// The answer's text must be JSON of this shape. Not together with tools.
    pub output_schema: Option<OutputSchema>,
}

impl ModelRequest {
    /// Adds a message at the end.
    pub fn say(&mut self, message: Message) {
        self.messages.push(Arc::new(message));
    }
}

/// A tool as the model sees it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ToolSpec {
    /// Letters, digits, `_` and `-`, at most 64.
    pub name: String,
    /// What it does and when to use it.
    pub description: String,
    /// JSON schema of its input; an object.
    pub input_schema: Value,
}

/// Whether a tool must be called.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToolChoice {
    /// As the model likes.
    #[default]
    Auto,
    /// None, though they stay in the prompt.
    Never,
    /// At least one.
    Required,
    /// This one.
    Tool(String),
}

/// How much a model should think before it answers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Effort {
    /// What the provider does when nothing is said.
    #[default]
    Unset,
    /// Little.
    Low,
    /// Some.
    Medium,
    /// Much.
    High,
}

/// A shape for the answer's text.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OutputSchema {
    /// Letters, digits, `_` and `-`.
    pub name: String,
    /// JSON schema.
    pub schema: Value,
}
