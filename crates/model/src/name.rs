//! Model names and API dialects.

use std::fmt;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What a model is called: `provider/model`, or the address of a server with the model behind `#`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(transparent)]
pub struct ModelName(String);

impl ModelName {
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ModelName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

/// The API format of a provider.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Dialect {
    /// OpenAI's chat completions API, which many servers implement.
    OpenAi,
    /// OpenAI's newer responses API, which reasoning models require.
    Responses,
    /// Anthropic's messages API.
    Anthropic,
    /// Google's `generateContent` API.
    Gemini,
}
