//! What a model is called and which dialect its provider speaks.

use std::fmt;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What a model is called: `provider/model`, or the address of a server with the model behind `#`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(transparent)]
pub struct ModelName(String);

impl ModelName {
    /// Takes a name as it is.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ModelName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

/// How a provider wants to be spoken to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Dialect {
    /// Chat completions, as OpenAI made them and many servers speak them.
    OpenAi,
    /// Responses, OpenAI's newer way, which it wants for models that think.
    Responses,
    /// Messages, as Anthropic made them.
    Anthropic,
    /// Generate content, as Google made it.
    Gemini,
}
