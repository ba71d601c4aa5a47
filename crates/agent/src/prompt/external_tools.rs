//! Selects the external tools that fit into a prompt.

use super::window::tool_tokens;
use crate::host::{ExternalTool, ExternalTools};

/// The maximum number of tools that every provider accepts in one request.
const MAX_TOOLS: usize = 128;
/// The minimum number of tokens reserved for external tools.
const MIN_RESERVE: u32 = 2_000;

/// How many tokens to reserve for external tools, out of `allowance` tokens for all tools.
pub(super) fn reserved_tokens(external: &ExternalTools, allowance: u32) -> u32 {
    if !external.is_expected {
        return 0;
    }
    let known: u32 = external.tools.iter().map(|tool| tool_tokens(&tool.spec)).sum();
    (known.saturating_mul(3) / 2).max(MIN_RESERVE).min(allowance / 2)
}

/// The tools that fit into `reserve` tokens, and notes for the model about the rest.
pub(crate) fn fitting_external_tools(
    external: &ExternalTools,
    reserve: u32,
    own_tools: usize,
) -> (Vec<ExternalTool>, Vec<String>) {
    let mut left = reserve;
    let mut fitting = Vec::new();
    for tool in external.tools.iter().take(MAX_TOOLS.saturating_sub(own_tools)) {
        let tokens = tool_tokens(&tool.spec);
        if tokens > left {
            break;
        }
        left -= tokens;
        fitting.push(tool.clone());
    }
    let mut notes = external.notes.clone();
    if let Some(first) = external.tools.get(fitting.len()) {
        notes.push(format!(
            "{} more tools are left out, from `{}` on: there is no room for them",
            external.tools.len() - fitting.len(),
            first.spec.name
        ));
    }
    (fitting, notes)
}

#[cfg(test)]
mod tests {
    use model::ToolSpec;
    use serde_json::json;

    use super::*;
    use crate::host::Effect;

    fn tools(count: usize) -> ExternalTools {
        let tool = |number: usize| ExternalTool {
            spec: ToolSpec {
                name: format!("s__tool{number}"),
                description: "Does something that is described in a few words.".into(),
                input_schema: json!({"type": "object", "properties": {"a": {"type": "string"}}}),
            },
            effect: Effect::Changes,
        };
        ExternalTools { is_expected: true, tools: (0..count).map(tool).collect(), ..ExternalTools::default() }
    }

    #[test]
    fn excess_external_tools_are_dropped_with_a_note() {
        let many = tools(200);
        let reserve = reserved_tokens(&many, 1_000_000);
        let (fitting, notes) = fitting_external_tools(&many, reserve, 17);
        assert_eq!(fitting.len(), 111);
        assert_eq!(notes, ["89 more tools are left out, from `s__tool111` on: there is no room for them"]);
        let (few, _) = fitting_external_tools(&many, reserved_tokens(&many, 1_000), 17);
        assert!(!few.is_empty() && few.len() < 40, "{}", few.len());
    }

    #[test]
    fn no_tokens_are_reserved_without_external_tools() {
        assert_eq!(reserved_tokens(&ExternalTools::default(), 10_000), 0);
        assert_eq!(reserved_tokens(&tools(0), 10_000), MIN_RESERVE);
    }
}
