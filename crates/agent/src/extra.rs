//! External tools, such as those of an MCP server. They may appear and disappear while the job runs. The host runs
//! them.

use async_trait::async_trait;
use model::ToolSpec;
use serde_json::Value;

use crate::event::ToolEnd;
use crate::host::{Ability, Stopped};
use crate::tool::{AnyTool, CallContext, Effect, ToolFlow};

/// The maximum number of tools that every provider accepts in one request.
const MOST_TOOLS: usize = 128;
/// The minimum number of tokens reserved for external tools.
const LEAST_RESERVE: u32 = 2_000;

#[derive(Debug, Clone, PartialEq)]
pub struct ExtraTool {
    pub spec: ToolSpec,
    pub effect: Effect,
}

/// The external tools that are available at this moment.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ExtraTools {
    /// Increases with every change.
    pub version: u64,
    /// Whether the job can have external tools at all.
    pub is_expected: bool,
    /// The tools, most important first.
    pub tools: Vec<ExtraTool>,
    /// What to tell the model about missing tools.
    pub notes: Vec<String>,
}

#[async_trait]
impl AnyTool for ExtraTool {
    fn name(&self) -> &str {
        &self.spec.name
    }

    fn spec(&self) -> ToolSpec {
        self.spec.clone()
    }

    fn effect(&self) -> Effect {
        self.effect
    }

    fn needs(&self) -> &'static [Ability] {
        &[]
    }

    async fn run(&self, input: Value, call: &CallContext<'_>) -> Result<ToolFlow, Stopped> {
        if !input.is_object() {
            let text = format!(
                "{}: the arguments must be one JSON object. Expected: {}",
                self.spec.name, self.spec.input_schema["properties"]
            );
            return Ok(ToolEnd::malformed(text).into());
        }
        Ok(call.host.call_extra(&self.spec.name, input, call.id).await?.into())
    }
}

impl ExtraTools {
    /// How many tokens to reserve for external tools, out of `allowance` tokens for all tools.
    pub(crate) fn reserve(&self, allowance: u32) -> u32 {
        if !self.is_expected {
            return 0;
        }
        let known: u32 = self.tools.iter().map(|tool| crate::window::tool_tokens(&tool.spec)).sum();
        (known.saturating_mul(3) / 2).max(LEAST_RESERVE).min(allowance / 2)
    }

    /// The tools that fit into `reserve` tokens, and notes for the model about the rest.
    pub(crate) fn fitting(&self, reserve: u32, own_tools: usize) -> (Vec<ExtraTool>, Vec<String>) {
        let mut left = reserve;
        let mut fitting = Vec::new();
        for tool in self.tools.iter().take(MOST_TOOLS.saturating_sub(own_tools)) {
            let tokens = crate::window::tool_tokens(&tool.spec);
            if tokens > left {
                break;
            }
            left -= tokens;
            fitting.push(tool.clone());
        }
        let mut notes = self.notes.clone();
        if let Some(first) = self.tools.get(fitting.len()) {
            notes.push(format!(
                "{} more tools are left out, from `{}` on: there is no room for them",
                self.tools.len() - fitting.len(),
                first.spec.name
            ));
        }
        (fitting, notes)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn tools(count: usize) -> ExtraTools {
        let tool = |number: usize| ExtraTool {
            spec: ToolSpec {
                name: format!("s__tool{number}"),
                description: "Does something that is described in a few words.".into(),
                input_schema: json!({"type": "object", "properties": {"a": {"type": "string"}}}),
            },
            effect: Effect::Changes,
        };
        ExtraTools { is_expected: true, tools: (0..count).map(tool).collect(), ..ExtraTools::default() }
    }

    #[test]
    fn too_many_tools_are_cut_and_the_model_is_told() {
        let many = tools(200);
        let reserve = many.reserve(1_000_000);
        let (fitting, notes) = many.fitting(reserve, 17);
        assert_eq!(fitting.len(), 111);
        assert_eq!(notes, ["89 more tools are left out, from `s__tool111` on: there is no room for them"]);
        let (few, _) = many.fitting(many.reserve(1_000), 17);
        assert!(!few.is_empty() && few.len() < 40, "{}", few.len());
    }

    #[test]
    fn nothing_is_kept_where_nothing_is_expected() {
        assert_eq!(ExtraTools::default().reserve(10_000), 0);
        assert_eq!(tools(0).reserve(10_000), LEAST_RESERVE);
    }
}
