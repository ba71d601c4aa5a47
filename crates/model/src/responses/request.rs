//! Converts a request to the body of the responses API.

use serde_json::{Value, json};

use crate::draft::arguments_object;
use crate::message::{Image, Message, Part, ResultPart, Role, ToolResult};
use crate::name::Dialect;
use crate::request::{Effort, ModelRequest, ToolChoice};
use crate::settings::ModelLimits;

pub(super) fn body(request: &ModelRequest, model: &str, limits: &ModelLimits) -> Value {
    let input: Vec<Value> = request.messages.iter().flat_map(|message| items(message, limits)).collect();
    let mut body = json!({"model": model, "input": input, "stream": true, "store": false});
    let mut set = |key: &str, value: Value| body[key] = value;
    if !request.system.is_empty() {
        set("instructions", json!(request.system));
    }
    if !request.tools.is_empty() {
        let tools = request.tools.iter().map(|tool| {
            json!({
                "type": "function",
                "name": tool.name,
                "description": tool.description,
                "parameters": tool.input_schema,
                "strict": false,
            })
        });
        set("tools", tools.collect());
        match &request.tool_choice {
            ToolChoice::Auto => {}
            ToolChoice::Never => set("tool_choice", json!("none")),
            ToolChoice::Required => set("tool_choice", json!("required")),
            ToolChoice::Tool(name) => set("tool_choice", json!({"type": "function", "name": name})),
        }
    }
    if let Some(tokens) = request.max_output_tokens.map(|tokens| tokens.min(limits.output_tokens)) {
        set("max_output_tokens", json!(tokens));
    }
    if limits.reasoning {
        set("include", json!(["reasoning.encrypted_content"]));
    } else if let Some(temperature) = request.temperature {
        set("temperature", json!(temperature));
    }
    if let Some(effort) = request.effort.filter(|_| limits.reasoning) {
        let word = match effort {
            Effort::Off => least_effort(model),
            Effort::Low => "low",
            Effort::Medium => "medium",
            Effort::High => "high",
        };
        set("reasoning", json!({"effort": word}));
    }
    if let Some(output) = &request.output_schema {
        let format =
            json!({"type": "json_schema", "name": output.name, "schema": output.schema, "strict": false});
        set("text", json!({"format": format}));
    }
    if let Some(key) = &request.cache_key {
        set("prompt_cache_key", json!(key));
    }
    body
}

/// The lowest effort that a model accepts. Not all can do without thinking.
fn least_effort(model: &str) -> &'static str {
    match model {
        "gpt-5" => "minimal",
        _ if model.starts_with("gpt-5-") => "minimal",
        _ if model.starts_with('o') => "low",
        _ => "none",
    }
}

/// Splits a message into items: calls, results and reasoning are separate items, in order.
fn items(message: &Message, limits: &ModelLimits) -> Vec<Value> {
    let mut items = Vec::new();
    let mut content = Vec::new();
    for part in &message.parts {
        match part {
            Part::Text(text) if message.role == Role::Assistant => {
                items.push(json!({"role": "assistant", "content": [{"type": "output_text", "text": text}]}));
            }
            Part::Text(text) => content.push(json!({"type": "input_text", "text": text})),
            Part::Image(image) => content.push(picture(image, limits)),
            Part::Reasoning(reasoning) if reasoning.opaque.dialect == Dialect::Responses => {
                items.push(reasoning.opaque.data.clone());
            }
            Part::Reasoning(_) => {}
            Part::ToolCall(call) => items.push(json!({
                "type": "function_call",
                "call_id": call.id,
                "name": call.name,
                "arguments": arguments_object(&call.arguments).to_string(),
            })),
            Part::ToolResult(result) => items.push(tool_result(result, limits)),
        }
    }
    if !content.is_empty() {
        items.push(json!({"role": "user", "content": content}));
    }
    items
}

fn tool_result(result: &ToolResult, limits: &ModelLimits) -> Value {
    let mut content: Vec<Value> = result
        .parts
        .iter()
        .map(|part| match part {
            ResultPart::Text(text) => json!({"type": "input_text", "text": text}),
            ResultPart::Image(image) => picture(image, limits),
        })
        .collect();
    if result.is_error {
        content.insert(0, json!({"type": "input_text", "text": "Error:"}));
    }
    if content.is_empty() {
        content.push(json!({"type": "input_text", "text": "(no output)"}));
    }
    json!({"type": "function_call_output", "call_id": result.id, "output": content})
}

fn picture(image: &Image, limits: &ModelLimits) -> Value {
    if !limits.vision {
        return json!({"type": "input_text", "text": image.placeholder_text()});
    }
    json!({"type": "input_image", "image_url": format!("data:{};base64,{}", image.media_type, image.base64())})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_that_must_think_do_so_as_little_as_possible() {
        let words = ["gpt-5", "gpt-5-mini", "gpt-5.6", "o3"].map(least_effort);
        assert_eq!(words, ["minimal", "minimal", "none", "low"]);
    }
}
