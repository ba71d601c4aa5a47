//! What an operator says about a single model. It overrides the table and what the model's server reports.

use serde::Deserialize;

use super::{ModelLimits, ToolMode};
use crate::request::Effort;

/// Settings of one model. What is absent comes from the table, from the model's server, or from the settings of all
/// models.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ModelOverrides {
    /// Tokens of prompt and answer together.
    pub context_tokens: Option<u32>,
    /// Most tokens of an answer.
    pub output_tokens: Option<u32>,
    /// Whether it sees images.
    pub vision: Option<bool>,
    /// Whether it can think before it answers.
    pub thinking: Option<bool>,
    /// How it calls tools.
    pub tools: Option<ToolMode>,
    /// How much it thinks, if a job does not say.
    pub effort: Option<Effort>,
}

impl ModelOverrides {
    pub(crate) fn apply(&self, limits: ModelLimits) -> ModelLimits {
        ModelLimits {
            context_tokens: self.context_tokens.unwrap_or(limits.context_tokens),
            output_tokens: self.output_tokens.unwrap_or(limits.output_tokens),
            vision: self.vision.unwrap_or(limits.vision),
            reasoning: self.thinking.unwrap_or(limits.reasoning),
            native_tools: limits.native_tools,
        }
    }
}
