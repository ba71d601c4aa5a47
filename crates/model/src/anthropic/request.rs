//! Converts a request to the body of the messages API.

use serde_json::{Value, json};

use crate::draft::arguments_object;
use crate::message::{Image, Message, Part, ResultPart, Role, ToolResult};
use crate::name::Dialect;
use crate::request::{Effort, ModelRequest, ToolChoice};
use crate::settings::ModelLimits;

/// Cache breakpoints available for messages: the API allows four, and one is used for tools and system text.
const MAX_CACHE_BREAKPOINTS: usize = 3;
/// Models up to this generation take a token budget for thinking; later ones take an effort level.
const BUDGET_THINKING_MODELS: [&str; 6] = ["claude-3", "-4-0", "-4-1", "-4-5", "-4-2", "claude-2"];

/// The default for `max_tokens`, which the API requires.
const DEFAULT_OUTPUT: u32 = 32_000;

pub(super) fn body(request: &ModelRequest, model: &str, limits: &ModelLimits) -> Value {
    let tokens = request.max_output_tokens.unwrap_or(DEFAULT_OUTPUT).min(limits.output_tokens).max(1);
    let mut body = json!({
        "model": model,
        "max_tokens": tokens,
        "messages": messages(request, limits),
        "stream": true,
    });
    if !request.system.is_empty() {
        body["system"] =
            json!([{"type": "text", "text": request.system, "cache_control": {"type": "ephemeral"}}]);
    }
    if !request.tools.is_empty() {
        let mut tools: Vec<Value> = request
            .tools
            .iter()
            .map(|tool| json!({"name": tool.name, "description": tool.description, "input_schema": tool.input_schema}))
            .collect();
        // A breakpoint on the system text also covers the tools, which precede it.
        if let Some(last) = tools.last_mut().filter(|_| request.system.is_empty()) {
            last["cache_control"] = json!({"type": "ephemeral"});
        }
        body["tools"] = Value::Array(tools);
        body["tool_choice"] = match &request.tool_choice {
            ToolChoice::Auto => json!({"type": "auto"}),
            ToolChoice::Never => json!({"type": "none"}),
            ToolChoice::Required => json!({"type": "any"}),
            ToolChoice::Tool(name) => json!({"type": "tool", "name": name}),
        };
    }
    let thinks = set_effort(&mut body, request.effort.filter(|_| limits.reasoning), model, tokens);
    // Models that decide themselves how much to think do not accept a temperature.
    if let Some(temperature) = request.temperature.filter(|_| !thinks && uses_thinking_budget(model)) {
        body["temperature"] = json!(temperature);
    }
    if let Some(output) = &request.output_schema {
        body["output_config"]["format"] = json!({"type": "json_schema", "schema": output.schema});
    }
    body
}

/// Sets how much to think; returns whether thinking is enabled.
fn set_effort(body: &mut Value, effort: Option<Effort>, model: &str, tokens: u32) -> bool {
    let (word, budget) = match effort {
        None | Some(Effort::Off) => return false,
        Some(Effort::Low) => ("low", 2048),
        Some(Effort::Medium) => ("medium", 8192),
        Some(Effort::High) => ("high", 24_576),
    };
    // A model that is forced to call a tool cannot think.
    if matches!(body["tool_choice"]["type"].as_str(), Some("any" | "tool")) {
        return false;
    }
    if !uses_thinking_budget(model) {
        body["thinking"] = json!({"type": "adaptive"});
        body["output_config"]["effort"] = json!(word);
        return true;
    }
    // A budget has at least 1024 tokens, and must leave room for the answer.
    let budget = budget.min(tokens / 2);
    if budget < 1024 {
        return false;
    }
    body["thinking"] = json!({"type": "enabled", "budget_tokens": budget});
    true
}

fn uses_thinking_budget(model: &str) -> bool {
    BUDGET_THINKING_MODELS.iter().any(|part| model.contains(part))
}

/// Replaces characters that the API does not accept in ids; calls made by other models may contain them.
fn id(text: &str) -> String {
    text.chars().map(|c| if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' }).collect()
}

/// Builds alternating messages with cache breakpoints.
fn messages(request: &ModelRequest, limits: &ModelLimits) -> Vec<Value> {
    let mut messages: Vec<(Role, Vec<Value>)> = Vec::new();
    let first_breakpoint = request.cache_after.len().saturating_sub(MAX_CACHE_BREAKPOINTS);
    for (index, message) in request.messages.iter().enumerate() {
        let mut blocks = blocks(message, limits);
        if request.cache_after[first_breakpoint..].contains(&index) {
            mark(&mut blocks);
        }
        if blocks.is_empty() {
            continue;
        }
        match messages.last_mut() {
            Some((role, known)) if *role == message.role => known.extend(blocks),
            _ => messages.push((message.role, blocks)),
        }
    }
    if messages.first().is_some_and(|(role, _)| *role == Role::Assistant) {
        messages.insert(0, (Role::User, vec![json!({"type": "text", "text": "(the conversation goes on)"})]));
    }
    let role = |role| if role == Role::User { "user" } else { "assistant" };
    messages.into_iter().map(|(who, content)| json!({"role": role(who), "content": content})).collect()
}

/// Sets a cache breakpoint on the last block that may have one.
fn mark(blocks: &mut [Value]) {
    let may = |block: &&mut Value| !block["type"].as_str().unwrap_or_default().contains("thinking");
    if let Some(block) = blocks.iter_mut().rev().find(may) {
        block["cache_control"] = json!({"type": "ephemeral"});
    }
}

fn blocks(message: &Message, limits: &ModelLimits) -> Vec<Value> {
    let results = message.parts.iter().filter_map(|part| match part {
        Part::ToolResult(result) => Some(tool_result(result, limits)),
        _ => None,
    });
    let rest = message.parts.iter().filter_map(|part| match part {
        Part::Text(text) if text.trim().is_empty() => None,
        Part::Text(text) => Some(json!({"type": "text", "text": text})),
        Part::Image(image) => Some(picture(image, limits)),
        Part::Reasoning(reasoning) if reasoning.opaque.dialect == Dialect::Anthropic => Some(reasoning.opaque.data.clone()),
        Part::ToolCall(call) => {
            Some(json!({"type": "tool_use", "id": id(&call.id), "name": call.name, "input": arguments_object(&call.arguments)}))
        }
        Part::Reasoning(_) | Part::ToolResult(_) => None,
    });
    // In a message, results must come first.
    results.chain(rest).collect()
}

fn tool_result(result: &ToolResult, limits: &ModelLimits) -> Value {
    let content: Vec<Value> = result
        .parts
        .iter()
        .filter_map(|part| match part {
            ResultPart::Text(text) if text.trim().is_empty() => None,
            ResultPart::Text(text) => Some(json!({"type": "text", "text": text})),
            ResultPart::Image(image) => Some(picture(image, limits)),
        })
        .collect();
    let content =
        if content.is_empty() { json!([{"type": "text", "text": "(no output)"}]) } else { json!(content) };
    let mut value = json!({"type": "tool_result", "tool_use_id": id(&result.id), "content": content});
    if result.is_error {
        value["is_error"] = json!(true);
    }
    value
}

fn picture(image: &Image, limits: &ModelLimits) -> Value {
    if !limits.vision {
        return json!({"type": "text", "text": image.placeholder_text()});
    }
    json!({"type": "image", "source": {"type": "base64", "media_type": image.media_type, "data": image.base64()}})
}
