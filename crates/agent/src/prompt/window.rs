//! Computes the window of a job's prompts: the model's context size, the system prompt and the tools that fit.
//!
//! A large window holds all tools. A smaller one gets the most important tools, and a very small one gets them with
//! short descriptions. The selection is made once, with a margin, and stays for the whole job, because a change costs the
//! provider's prompt cache from its first byte on. Only if the provider's reported usage or a rejected prompt reveals that
//! the window is much smaller than assumed are the tools selected again. The history tools are selected and counted from
//! the start, but offered only once a prompt leaves something out.

use context::{Engine, EntryBody, Factor, Fixed, POLICY_VERSION, Policy, Settings, Window, tokens};
use model::{Model, ModelLimits, ModelName, ToolSpec};

use super::external_tools::reserved_tokens;
use super::instructions::{Detail, system_prompt};
use crate::conversation::is_history_tool;
use crate::event::AgentEvent;
use crate::host::ExternalTools;
use crate::settings::AgentSettings;
use crate::tools::{Importance, Toolbox, role_of};

/// The window's share that is reserved for the answer (one part in `ANSWER_SHARE`), and its maximum in tokens.
const ANSWER_SHARE: u32 = 4;
const MAX_ANSWER_TOKENS: u32 = 16_000;

/// A model without native tool calls and with a window of at most this size counts as weak. Given twenty tools, it
/// picks the wrong ones, and it writes one plan after another for work it has already done. It gets only the tools of at
/// least [`Importance::Simple`].
const WEAK_CONTEXT_TOKENS: u32 = 32_768;

/// The share of a prompt that system prompt and tools may take before they are selected again. They are selected for a
/// quarter of it.
const TOLERATED_PERCENT: u64 = 30;

/// Tools that are of little use without each other. `browser` needs neither of these: it finds elements by itself and
/// takes its own screenshots.
const TOGETHER: [&[&str]; 1] = [&["screenshot", "gui"]];

/// The tokens that providers count for 1,000 of ours, until their reported usage corrects it. Their vocabularies are
/// not public; these values err on the safe side for code. For all other providers the factor starts at 1.
const START_FACTORS: [(&str, u32); 2] = [("anthropic", 1_200), ("gemini", 1_100)];

pub(crate) fn is_weak(limits: &ModelLimits) -> bool {
    !limits.native_tools && limits.context_tokens <= WEAK_CONTEXT_TOKENS
}

/// Reduces a weak model's tools to the few it can choose among, plus `plan` if a person must approve it.
pub(crate) fn keep_weak_model_tools(limits: &ModelLimits, approve_plan: bool, toolbox: &mut Toolbox) {
    if is_weak(limits) {
        toolbox.retain(|name| is_at_least(name, Importance::Simple) || (approve_plan && name == "plan"));
    }
}

/// Whether the tool of this name is at least this important.
fn is_at_least(name: &str, importance: Importance) -> bool {
    role_of(name).importance <= importance
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
    fn holds(self, window: &Window) -> bool {
        window.system_tokens.saturating_add(window.tools_tokens) <= self.policy().caller_tokens
    }

    /// Whether system prompt and tools that were selected earlier leave enough room, so that they can stay.
    pub(crate) fn tolerates(self, window: &Window) -> bool {
        let fixed = u64::from(window.system_tokens) + u64::from(window.tools_tokens);
        fixed * 100 <= u64::from(self.policy().budget) * TOLERATED_PERCENT
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
    /// Whether a prompt has left something out, so that the history tools are useful.
    pub(crate) offers_history: bool,
}

/// Whether the history tools are among the tools of a logged window.
pub(crate) fn has_history_tools(window: &Window) -> bool {
    window.tools.iter().any(|tool| tool["name"].as_str().is_some_and(is_history_tool))
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
    let names = inputs.toolbox.names();
    let mut basic = names.iter().filter(|name| is_at_least(name, Importance::Basic));
    let has = |name: &str| {
        full.toolbox.find(name).is_some() || full.window.held_tools.iter().any(|held| held == name)
    };
    if room.holds(&full.window) && basic.all(|name| has(name)) {
        return full;
    }
    select(inputs, &inputs.toolbox.with_short_specs(), Detail::Short, room)
}

/// The selection that the log has, so that a restart does not change the prompt from its first byte on. `None` if it was
/// for another model or window, or lacks a tool that is always needed.
pub(crate) fn keep(inputs: &PromptInputs<'_>, logged: &Window) -> Option<FixedPart> {
    let room = PromptRoom::for_model(inputs.model);
    if logged.model != inputs.model.name().as_str() || logged.budget_tokens != room.budget_tokens {
        return None;
    }
    let description = |name: &str| {
        let tool = logged.tools.iter().find(|tool| tool["name"] == name)?;
        tool["description"].as_str()
    };
    let is_selected =
        |name: &str| description(name).is_some() || logged.held_tools.iter().any(|held| held == name);
    let is_lacking = |name: &String| is_needed(inputs, name) && !is_selected(name);
    if inputs.toolbox.names().iter().any(is_lacking) {
        return None;
    }
    let short = inputs.toolbox.with_short_specs();
    let is_short = short.specs().iter().zip(inputs.toolbox.specs()).any(|(short, full)| {
        short.description != full.description && description(&short.name) == Some(&short.description)
    });
    let (mut chosen, detail) =
        if is_short { (short, Detail::Short) } else { (inputs.toolbox.clone(), Detail::Full) };
    chosen.retain(is_selected);
    let choice = Choice::new(inputs, chosen, detail);
    let reserve = logged.tools_tokens.saturating_sub(choice.tools_tokens);
    Some(choice.into_fixed_part(inputs, reserve))
}

fn is_needed(inputs: &PromptInputs<'_>, name: &str) -> bool {
    is_at_least(name, Importance::Always) || (inputs.settings.approve_plan && name == "plan")
}

/// Some tools and the system prompt that goes with them.
struct Choice {
    toolbox: Toolbox,
    detail: Detail,
    system: String,
    system_tokens: u32,
    tools_tokens: u32,
}

impl Choice {
    fn new(inputs: &PromptInputs<'_>, toolbox: Toolbox, detail: Detail) -> Self {
        let system = system_prompt(inputs.settings, inputs.egress, &toolbox, detail);
        let system_tokens = tokens::count(&system);
        let tools_tokens = toolbox.specs().iter().map(tool_tokens).sum();
        Self { toolbox, detail, system, system_tokens, tools_tokens }
    }

    fn tokens(&self) -> u32 {
        self.system_tokens.saturating_add(self.tools_tokens)
    }

    /// Makes the window. Tools that are held back are not in it, but their tokens are, so that adding them later leaves the
    /// rest of the prompt as it is.
    fn into_fixed_part(self, inputs: &PromptInputs<'_>, reserve: u32) -> FixedPart {
        let initial = PromptRoom::for_model(inputs.model);
        let (mut toolbox, mut system) = (self.toolbox, self.system);
        let mut held_tools = toolbox.names();
        held_tools.retain(|name| !inputs.offers_history && is_history_tool(name));
        if !held_tools.is_empty() {
            toolbox.retain(|name| !is_history_tool(name));
            system = system_prompt(inputs.settings, inputs.egress, &toolbox, self.detail);
        }
        let window = Window {
            model: inputs.model.name().to_string(),
            budget_tokens: initial.budget_tokens,
            system,
            system_tokens: self.system_tokens,
            tools: specs_as_json(&toolbox.specs()),
            tools_tokens: self.tools_tokens + reserve,
            held_tools,
            sees_pictures: inputs.model.limits().vision,
            policy_version: POLICY_VERSION,
            factor: Some(initial.factor).filter(|factor| *factor != Factor::ONE),
        };
        FixedPart { window, toolbox, reserve }
    }
}

fn select(inputs: &PromptInputs<'_>, all: &Toolbox, detail: Detail, room: PromptRoom) -> FixedPart {
    let with_tools = |names: &[String]| {
        let mut chosen = all.clone();
        chosen.retain(|name| names.iter().any(|wanted| wanted == name));
        Choice::new(inputs, chosen, detail)
    };
    let (needed, others): (Vec<String>, Vec<String>) =
        all.names().into_iter().partition(|name| is_needed(inputs, name));
    let (basic, rest): (Vec<String>, Vec<String>) =
        others.into_iter().partition(|name| is_at_least(name, Importance::Basic));
    let mut names = needed;
    let mut best = with_tools(&names);
    let caller_tokens = room.policy().caller_tokens;
    let reserve = reserved_tokens(inputs.external, caller_tokens.saturating_sub(best.system_tokens));
    for name in basic.into_iter().chain(rest) {
        let group = together_with(&name, all);
        if group.iter().any(|name| names.contains(name)) {
            continue;
        }
        let before = names.len();
        names.extend(group);
        let more = with_tools(&names);
        // The basic tools are worth the margin.
        let limit = if is_at_least(&name, Importance::Basic) { caller_tokens } else { caller_tokens / 5 * 4 };
        if more.tokens().saturating_add(reserve) <= limit {
            best = more;
        } else {
            names.truncate(before);
        }
    }
    if best.toolbox.len() < all.len() {
        tracing::info!(
            fitting = best.toolbox.len(),
            of = all.len(),
            "the model is offered only some of the tools"
        );
    }
    // The tools that are always needed may leave less than the intended reserve.
    let reserve = reserve.min(caller_tokens.saturating_sub(best.tokens()));
    best.into_fixed_part(inputs, reserve)
}

/// The tools that are offered together with this one or not at all, itself included.
fn together_with(name: &str, all: &Toolbox) -> Vec<String> {
    let group = TOGETHER.iter().find(|group| group.contains(&name));
    let known = group.into_iter().flat_map(|group| group.iter()).filter(|name| all.find(name).is_some());
    let names: Vec<String> = known.map(|name| (*name).to_owned()).collect();
    if names.is_empty() { vec![name.to_owned()] } else { names }
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
