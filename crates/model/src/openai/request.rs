//! Converts a request to the body of chat completions.

use std::borrow::Cow;

use serde_json::{Map, Value, json};

use super::Flavour;
use super::mistral::{MistralRules, add_to_result, between};
use super::wire::{
    Body, CacheControl, Call, Content, Function, ImageUrl, Message as Wire, Part as WirePart, STREAM,
};
use crate::draft::arguments_object;
use crate::message::{Image, Message, Part, ResultPart, Role, ToolCall, ToolResult};
use crate::name::Dialect;
use crate::request::{Effort, ModelRequest, ToolChoice};
use crate::settings::ModelLimits;

pub(super) fn body<'a>(
    request: &'a ModelRequest,
    model: &'a str,
    flavour: Flavour,
    limits: &ModelLimits,
) -> Body<'a> {
    let breakpoints = breakpoints(request, model, flavour);
    let mut options = Map::new();
    let mut set = |key: &str, value: Value| drop(options.insert(key.to_owned(), value));
    if !request.tools.is_empty() {
        let tools = request.tools.iter().map(|tool| {
            let function =
                json!({"name": tool.name, "description": tool.description, "parameters": tool.input_schema});
            json!({"type": "function", "function": function})
        });
        set("tools", tools.collect());
        match &request.tool_choice {
            ToolChoice::Auto => {}
            ToolChoice::Never => set("tool_choice", json!("none")),
            ToolChoice::Required => set("tool_choice", json!("required")),
            ToolChoice::Tool(name) => {
                set("tool_choice", json!({"type": "function", "function": {"name": name}}));
            }
        }
    }
    if let Some(tokens) = request.max_output_tokens.map(|tokens| tokens.min(limits.output_tokens)) {
        set("max_tokens", json!(tokens));
    }
    // Models that think do not accept a temperature.
    if let Some(temperature) = request.temperature.filter(|_| !limits.reasoning) {
        set("temperature", json!(temperature));
    }
    if let Some(effort) = request.effort.filter(|_| limits.reasoning).map(word_of) {
        match flavour {
            Flavour::OpenRouter => set("reasoning", json!({"effort": effort})),
            Flavour::Mistral | Flavour::Compatible => set("reasoning_effort", json!(effort)),
        }
    }
    if let Some(output) = &request.output_schema {
        let schema = json!({"name": output.name, "schema": output.schema, "strict": true});
        set("response_format", json!({"type": "json_schema", "json_schema": schema}));
    }
    if flavour == Flavour::OpenRouter {
        set("usage", json!({"include": true}));
    }
    let messages = messages(request, limits, &breakpoints, MistralRules::of(model, flavour));
    Body { model, messages, stream: true, stream_options: STREAM, options }
}

fn word_of(effort: Effort) -> &'static str {
    match effort {
        Effort::Off => "none",
        Effort::Low => "low",
        Effort::Medium => "medium",
        Effort::High => "high",
    }
}

/// Which messages get a cache breakpoint: only with a gateway that forwards it to a model that uses it.
fn breakpoints(request: &ModelRequest, model: &str, flavour: Flavour) -> Vec<usize> {
    if flavour != Flavour::OpenRouter || !model.starts_with("anthropic/") {
        return Vec::new();
    }
    let last = request.cache_after.len().saturating_sub(3);
    request.cache_after[last..].to_vec()
}

fn messages<'a>(
    request: &'a ModelRequest,
    limits: &ModelLimits,
    breakpoints: &[usize],
    mistral_rules: MistralRules,
) -> Vec<Wire<'a>> {
    let mut messages = Vec::with_capacity(request.messages.len() + 1);
    if !request.system.is_empty() {
        let mut system = Wire::System { content: Content::Text((&*request.system).into()) };
        if !breakpoints.is_empty() {
            mark(&mut system);
        }
        messages.push(system);
    }
    // Reasoning is sent back while the tools of the same turn run, but not after the next user message.
    let status =
        request.messages.len() - usize::from(request.ends_with_status && !request.messages.is_empty());
    let turn = request.messages[..status].iter().rposition(|message| {
        message.role == Role::User && !message.parts.iter().any(|part| matches!(part, Part::ToolResult(_)))
    });
    for (index, message) in request.messages.iter().enumerate() {
        match message.role {
            Role::Assistant => {
                messages.extend(assistant(message, turn.is_none_or(|turn| index > turn), mistral_rules))
            }
            Role::User
                if mistral_rules.is_mistral && index == status && add_to_result(&mut messages, message) => {}
            Role::User => add_user(&mut messages, message, limits, mistral_rules),
        }
        if breakpoints.contains(&index)
            && let Some(last) = messages.last_mut()
        {
            mark(last);
        }
    }
    messages
}

/// Sets a cache breakpoint on a message's last text.
fn mark(message: &mut Wire<'_>) {
    let (Wire::System { content }
    | Wire::User { content }
    | Wire::Tool { content, .. }
    | Wire::Assistant { content: Some(content), .. }) = message
    else {
        return;
    };
    if let Content::Text(text) = content {
        *content = Content::Parts(vec![WirePart::text(std::mem::take(text))]);
    }
    if let Content::Parts(parts) = content
        && let Some(WirePart::Text { cache_control, .. } | WirePart::ImageUrl { cache_control, .. }) =
            parts.last_mut()
    {
        *cache_control = Some(CacheControl { kind: "ephemeral" });
    }
}

fn assistant(message: &Message, is_this_turn: bool, mistral_rules: MistralRules) -> Option<Wire<'_>> {
    let mut texts = Vec::new();
    let mut tool_calls = Vec::new();
    let mut thought = Map::new();
    for part in &message.parts {
        match part {
            Part::Text(more) => texts.push(more.as_str()),
            Part::ToolCall(call) => tool_calls.push(tool_call(call, mistral_rules)),
            Part::Reasoning(reasoning) if is_this_turn && reasoning.opaque.dialect == Dialect::OpenAi => {
                let data = &reasoning.opaque.data;
                if let Some(details) = data.get("reasoning_details") {
                    thought.insert("reasoning_details".into(), details.clone());
                }
                if let Some(field) = data["field"].as_str() {
                    thought.insert(field.to_owned(), json!(reasoning.text));
                }
            }
            Part::Reasoning(_) | Part::Image(_) | Part::ToolResult(_) => {}
        }
    }
    let text = joined(&texts, "");
    if text.is_empty() && tool_calls.is_empty() {
        return None;
    }
    let content = (!text.is_empty()).then_some(Content::Text(text));
    Some(Wire::Assistant { content, tool_calls, thought })
}

/// Borrows a single text; joins several.
fn joined<'a>(texts: &[&'a str], between: &str) -> Cow<'a, str> {
    match texts {
        [only] => Cow::Borrowed(only),
        several => Cow::Owned(several.join(between)),
    }
}

fn tool_call(call: &ToolCall, mistral_rules: MistralRules) -> Call<'_> {
    let arguments = arguments_object(&call.arguments);
    Call {
        id: mistral_rules.id(&call.id),
        kind: "function",
        function: Function { name: &call.name, arguments },
    }
}

/// Adds results first, because they must follow their calls, then images from tools.
fn add_user<'a>(
    messages: &mut Vec<Wire<'a>>,
    message: &'a Message,
    limits: &ModelLimits,
    mistral_rules: MistralRules,
) {
    let mut parts = Vec::new();
    for part in &message.parts {
        if let Part::ToolResult(result) = part {
            messages.push(tool_result(result, limits, &mut parts, mistral_rules));
        }
    }
    for part in &message.parts {
        match part {
            Part::Text(text) => parts.push(WirePart::text(text.as_str().into())),
            Part::Image(image) => parts.push(picture(image, limits)),
            Part::Reasoning(_) | Part::ToolCall(_) | Part::ToolResult(_) => {}
        }
    }
    // Sends plain text as a string: not every server accepts a list.
    let content = match parts.as_slice() {
        [] => return,
        [WirePart::Text { text, .. }] => Content::Text(text.clone()),
        several if several.iter().all(|part| matches!(part, WirePart::Text { .. })) => {
            let texts: Vec<&str> = several.iter().filter_map(WirePart::as_text).collect();
            Content::Text(texts.join("\n\n").into())
        }
        _ => Content::Parts(parts),
    };
    match messages.last_mut() {
        // Not every server accepts two user messages in a row.
        Some(Wire::User { content: known }) => return known.join(content),
        Some(Wire::Tool { .. }) if mistral_rules.is_mistral => messages.push(between()),
        _ => {}
    }
    messages.push(Wire::User { content });
}

fn tool_result<'a>(
    result: &'a ToolResult,
    limits: &ModelLimits,
    pictures: &mut Vec<WirePart<'a>>,
    mistral_rules: MistralRules,
) -> Wire<'a> {
    let mut texts: Vec<Cow<'a, str>> = Vec::with_capacity(result.parts.len());
    for part in &result.parts {
        match part {
            ResultPart::Text(text) => texts.push(text.as_str().into()),
            ResultPart::Image(image) if limits.vision => {
                texts.push("[a picture, shown below]".into());
                pictures.push(WirePart::text(format!("Picture from {}:", result.name).into()));
                pictures.push(picture(image, limits));
            }
            ResultPart::Image(image) => texts.push(image.placeholder_text().into()),
        }
    }
    let text = if texts.len() == 1 { texts.remove(0) } else { texts.join("\n").into() };
    let text = match (text.is_empty(), result.is_error) {
        (true, false) => "(no output)".into(),
        (true, true) => "Error".into(),
        (false, true) if !text.to_lowercase().starts_with("error") => format!("Error: {text}").into(),
        (false, _) => text,
    };
    Wire::Tool { tool_call_id: mistral_rules.id(&result.id), content: Content::Text(text) }
}

fn picture<'a>(image: &Image, limits: &ModelLimits) -> WirePart<'a> {
    if !limits.vision {
        return WirePart::text(image.placeholder_text().into());
    }
    let url = format!("data:{};base64,{}", image.media_type, image.base64());
    WirePart::ImageUrl { image_url: ImageUrl { url }, cache_control: None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_that_the_model_does_not_support_are_left_out() {
        let request = ModelRequest {
            temperature: Some(0.0),
            max_output_tokens: Some(9_000),
            ..ModelRequest::default()
        };
        for (reasoning, temperature) in [(false, json!(0.0)), (true, Value::Null)] {
            let limits = ModelLimits {
                context_tokens: 16_000,
                output_tokens: 4_000,
                vision: false,
                native_tools: true,
                reasoning,
            };
            let body = json!(body(&request, "m", Flavour::Compatible, &limits));
            assert_eq!(
                (&body["temperature"], &body["max_tokens"]),
                (&temperature, &json!(4_000)),
                "{reasoning}"
            );
        }
    }
}
