//! Computes the window of a job's prompts: the model's context size, the system prompt and the tools that fit.
//!
//! A large window holds all tools. A smaller one gets the most important tools, and a very small one gets them with
//! short descriptions. The provider's reported usage or a rejected prompt may reveal that the window is smaller than
//! assumed; the tools are then selected again.

use context::{Engine, EntryBody, Factor, Fixed, POLICY_VERSION, Policy, Settings, Window, tokens};
use model::{Model, ModelLimits, ModelName, ToolSpec};

use super::external_tools::reserved_tokens;
use super::instructions::{Detail, system_prompt};
use crate::event::AgentEvent;
use crate::host::ExternalTools;
use crate::settings::AgentSettings;
use crate::tools::Toolbox;

/// The window's share that is reserved for the answer (one part in `ANSWER_SHARE`), and its maximum in tokens.
const ANSWER_SHARE: u32 = 4;
const MAX_ANSWER_TOKENS: u32 = 16_000;

/// A model without native tool calls and with a window of at most this size counts as weak. Given twenty tools, it
/// picks the wrong ones, and it writes one plan after another for work it has already done. It gets only the basic
/// working tools.
const WEAK_CONTEXT_TOKENS: u32 = 32_768;
const WEAK_TOOLS: [&str; 9] = [
    "shell",
    "read_file",
    "write_file",
    "edit_file",
    "finish",
    "history_read",
    "list_files",
    "search_files",
    "python",
];

/// Without these, the agent cannot act, finish, or read what a prompt names but does not show.
const ALWAYS_OFFERED: [&str; 3] = ["shell", "finish", "history_read"];
/// A window without room for all of these gets short tool descriptions.
const BASIC_TOOLS: [&str; 6] = ["shell", "finish", "history_read", "read_file", "write_file", "edit_file"];

/// The tokens that providers count for 1,000 of ours, until their reported usage corrects it. Their vocabularies are
/// not public; these values err on the safe side for code. For all other providers the factor starts at 1.
const START_FACTORS: [(&str, u32); 2] = [("anthropic", 1_200), ("gemini", 1_100)];

pub(crate) fn is_weak(limits: &ModelLimits) -> bool {
    !limits.native_tools && limits.context_tokens <= WEAK_CONTEXT_TOKENS
}

/// Reduces a weak model's tools to the few it can choose among, plus `plan` if a person must approve it.
pub(crate) fn keep_weak_model_tools(limits: &ModelLimits, approve_plan: bool, toolbox: &mut Toolbox) {
    if is_weak(limits) {
        toolbox.retain(|name| WEAK_TOOLS.contains(&name) || (approve_plan && name == "plan"));
    }
}

/// The room for a prompt: tokens by the provider's count, and the factor between that count and ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PromptRoom {
    budget_tokens: u32,
    factor: Factor,
}

impl PromptRoom {
    /// The room of a model before any request.
    pub(crate) fn for_model(model: &dyn Model) -> Self {
        let limits = model.limits();
        let answer = (limits.context_tokens / ANSWER_SHARE).min(limits.output_tokens).min(MAX_ANSWER_TOKENS);
        let budget_tokens = limits.context_tokens.saturating_sub(answer);
        Self { budget_tokens, factor: start_factor(model.name()) }
    }

    /// The room of the same model, corrected by what the log shows.
    pub(crate) fn with_learned_limits(self, model: &dyn Model, engine: &Engine) -> Self {
        let is_same = |window: &Window| {
            window.model == model.name().as_str() && window.budget_tokens == self.budget_tokens
        };
        if engine.window().is_some_and(is_same) {
            Self { budget_tokens: engine.budget_tokens(), factor: engine.factor() }
        } else {
            self
        }
    }

    fn policy(self) -> Policy {
        Settings { budget_tokens: self.budget_tokens, factor: self.factor, fixed: Fixed::default() }.policy()
    }

    /// Whether the window's system prompt and tools stay within their share of the room.
    pub(crate) fn holds(self, window: &Window) -> bool {
        window.system_tokens.saturating_add(window.tools_tokens) <= self.policy().caller_tokens
    }
}

fn start_factor(model: &ModelName) -> Factor {
    let provider = model.as_str().split('/').next().unwrap_or_default();
    let known = START_FACTORS.iter().find(|(name, _)| *name == provider);
    known.map_or(Factor::ONE, |(_, thousandths)| Factor::from_thousandths(*thousandths))
}

/// What the fixed part of a prompt is selected from.
pub(crate) struct PromptInputs<'a> {
    pub(crate) model: &'a dyn Model,
    pub(crate) settings: &'a AgentSettings,
    pub(crate) egress: &'a str,
    /// All tools that the job may use, most important first.
    pub(crate) toolbox: &'a Toolbox,
    pub(crate) external: &'a ExternalTools,
}

/// The fixed part of a prompt: system prompt and tools.
pub(crate) struct FixedPart {
    pub(crate) window: Window,
    /// The built-in tools offered to the model.
    pub(crate) toolbox: Toolbox,
    /// Tokens reserved for external tools.
    pub(crate) reserve: u32,
}

/// Selects as many tools as fit beside a system prompt that mentions only those tools.
pub(crate) fn fit(inputs: &PromptInputs<'_>, room: PromptRoom) -> FixedPart {
    let full = select(inputs, inputs.toolbox, Detail::Full, room);
    let is_basic = |name: &str| BASIC_TOOLS.contains(&name) && inputs.toolbox.find(name).is_some();
    if room.holds(&full.window)
        && BASIC_TOOLS.iter().all(|name| !is_basic(name) || full.toolbox.find(name).is_some())
    {
        return full;
    }
    select(inputs, &inputs.toolbox.with_short_specs(), Detail::Short, room)
}

fn select(inputs: &PromptInputs<'_>, all: &Toolbox, detail: Detail, room: PromptRoom) -> FixedPart {
    let is_needed =
        |name: &str| ALWAYS_OFFERED.contains(&name) || (inputs.settings.approve_plan && name == "plan");
    let with_tools = |names: &[String]| {
        let mut chosen = all.clone();
        chosen.retain(|name| names.iter().any(|wanted| wanted == name));
        let system = system_prompt(inputs.settings, inputs.egress, &chosen, detail);
        let system_tokens = tokens::count(&system);
        let tools_tokens: u32 = chosen.specs().iter().map(tool_tokens).sum();
        (chosen, system, system_tokens, tools_tokens)
    };
    let (needed, others): (Vec<String>, Vec<String>) =
        all.names().into_iter().partition(|name| is_needed(name));
    let (basic, rest): (Vec<String>, Vec<String>) =
        others.into_iter().partition(|name| BASIC_TOOLS.contains(&name.as_str()));
    let mut names = needed;
    let mut best = with_tools(&names);
    let caller_tokens = room.policy().caller_tokens;
    let reserve = reserved_tokens(inputs.external, caller_tokens.saturating_sub(best.2));
    for name in basic.into_iter().chain(rest) {
        names.push(name);
        let more = with_tools(&names);
        if more.2.saturating_add(more.3).saturating_add(reserve) <= caller_tokens {
            best = more;
        } else {
            names.pop();
        }
    }
    let (toolbox, system, system_tokens, tools_tokens) = best;
    if toolbox.len() < all.len() {
        tracing::info!(
            fitting = toolbox.len(),
            of = all.len(),
            "the model is offered only some of the tools"
        );
    }
    // The tools that are always needed may leave less than the intended reserve.
    let left = caller_tokens.saturating_sub(system_tokens).saturating_sub(tools_tokens);
    let reserve = reserve.min(left);
    let initial = PromptRoom::for_model(inputs.model);
    let window = Window {
        model: inputs.model.name().to_string(),
        budget_tokens: initial.budget_tokens,
        system,
        system_tokens,
        tools: specs_as_json(&toolbox.specs()),
        tools_tokens: tools_tokens + reserve,
        sees_pictures: inputs.model.limits().vision,
        policy_version: POLICY_VERSION,
        factor: Some(initial.factor).filter(|factor| *factor != Factor::ONE),
    };
    FixedPart { window, toolbox, reserve }
}

/// The tools as they are logged.
pub(crate) fn specs_as_json(specs: &[ToolSpec]) -> Vec<serde_json::Value> {
    specs.iter().map(|spec| serde_json::to_value(spec).unwrap_or_default()).collect()
}

/// The event that logs the window.
pub(crate) fn window_event(window: &Window) -> AgentEvent {
    AgentEvent::ContextChanged(EntryBody::Window(window.clone()))
}

/// Tokens of a tool's specification.
pub(crate) fn tool_tokens(spec: &ToolSpec) -> u32 {
    tokens::count(&spec.name) + tokens::count(&spec.description) + tokens::count_json(&spec.input_schema)
}

#[cfg(test)]
#[path = "window_tests.rs"]
mod tests;
