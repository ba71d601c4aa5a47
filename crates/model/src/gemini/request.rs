//! Converts a request to the body of `generateContent`.

use std::collections::HashMap;

use serde_json::{Value, json};

use crate::draft::arguments_object;
use crate::message::{Image, Message, Part, ResultPart, Role, ToolCall, ToolResult};
use crate::name::Dialect;
use crate::request::{Effort, ModelRequest, ToolChoice};
use crate::settings::ModelLimits;

/// Replaces the signature of a call that another model made; the API documents this value for that purpose.
const FOREIGN_SIGNATURE: &str = "skip_thought_signature_validator";

pub(super) fn body(request: &ModelRequest, model: &str, limits: &ModelLimits) -> Value {
    let mut body = json!({"contents": contents(request, limits)});
    if !request.system.is_empty() {
        body["systemInstruction"] = json!({"parts": [{"text": request.system}]});
    }
    if !request.tools.is_empty() {
        let declarations: Vec<Value> = request
            .tools
            .iter()
            .map(|tool| {
                json!({"name": tool.name, "description": tool.description, "parametersJsonSchema": tool.input_schema})
            })
            .collect();
        body["tools"] = json!([{"functionDeclarations": declarations}]);
        let calling = match &request.tool_choice {
            ToolChoice::Auto => json!({"mode": "AUTO"}),
            ToolChoice::Never => json!({"mode": "NONE"}),
            ToolChoice::Required => json!({"mode": "ANY"}),
            ToolChoice::Tool(name) => json!({"mode": "ANY", "allowedFunctionNames": [name]}),
        };
        body["toolConfig"] = json!({"functionCallingConfig": calling});
    }
    let mut generation = json!({});
    if let Some(tokens) = request.max_output_tokens.map(|tokens| tokens.min(limits.output_tokens)) {
        generation["maxOutputTokens"] = json!(tokens);
    }
    // Later models that think repeat themselves at any temperature but their own.
    if let Some(temperature) =
        request.temperature.filter(|_| !limits.reasoning || is_second_generation(model))
    {
        generation["temperature"] = json!(temperature);
    }
    if limits.reasoning {
        generation["thinkingConfig"] = json!({"includeThoughts": true});
        let effort = request.effort.map(|effort| match effort {
            // The large models cannot do without thinking.
            Effort::Off if model.contains("pro") => ("low", 128),
            Effort::Off => ("low", 0),
            Effort::Low => ("low", 1024),
            Effort::Medium => ("medium", 8192),
            Effort::High => ("high", 24_576),
        });
        match effort {
            None => {}
            Some((_, budget)) if is_second_generation(model) => {
                generation["thinkingConfig"]["thinkingBudget"] = json!(budget)
            }
            Some((level, _)) => generation["thinkingConfig"]["thinkingLevel"] = json!(level),
        }
    }
    if let Some(output) = &request.output_schema {
        generation["responseMimeType"] = json!("application/json");
        generation["responseJsonSchema"] = output.schema.clone();
    }
    if generation.as_object().is_some_and(|object| !object.is_empty()) {
        body["generationConfig"] = generation;
    }
    body
}

fn is_second_generation(model: &str) -> bool {
    model.contains("gemini-2")
}

/// The provider's call ids, by our call ids.
type Names<'a> = HashMap<&'a str, &'a str>;

fn contents(request: &ModelRequest, limits: &ModelLimits) -> Vec<Value> {
    let mut contents: Vec<(Role, Vec<Value>)> = Vec::new();
    // A result names its call only if the provider gave the call an id, and by that id: our ids may differ.
    let parts_of_all = || request.messages.iter().flat_map(|message| &message.parts);
    let named: Names<'_> = parts_of_all()
        .filter_map(|part| {
            let Part::ToolCall(call) = part else { return None };
            Some((call.id.as_str(), own_data(call)?.get("id")?.as_str()?))
        })
        .collect();
    for message in &request.messages {
        let parts = parts(message, limits, &named);
        if parts.is_empty() {
            continue;
        }
        match contents.last_mut() {
            Some((role, known)) if *role == message.role => known.extend(parts),
            _ => contents.push((message.role, parts)),
        }
    }
    let role = |role| if role == Role::User { "user" } else { "model" };
    contents.into_iter().map(|(who, parts)| json!({"role": role(who), "parts": parts})).collect()
}

fn parts(message: &Message, limits: &ModelLimits, named: &Names<'_>) -> Vec<Value> {
    let mut parts = Vec::new();
    let mut is_first_call = true;
    for part in &message.parts {
        match part {
            Part::Text(text) if text.is_empty() => {}
            Part::Text(text) => parts.push(json!({"text": text})),
            Part::Image(image) => parts.push(picture(image, limits)),
            Part::Reasoning(reasoning) if reasoning.opaque.dialect == Dialect::Gemini => {
                // Only the signature is sent back, in a separate part as it may also arrive.
                if let Some(signature) = reasoning.opaque.data.get("thoughtSignature") {
                    parts.push(json!({"text": "", "thoughtSignature": signature}));
                }
            }
            Part::Reasoning(_) => {}
            Part::ToolCall(call) => {
                parts.push(tool_call(call, std::mem::take(&mut is_first_call)));
            }
            Part::ToolResult(result) => parts.extend(tool_result(result, limits, named)),
        }
    }
    parts
}

fn own_data(call: &ToolCall) -> Option<&Value> {
    call.opaque.as_ref().filter(|opaque| opaque.dialect == Dialect::Gemini).map(|opaque| &opaque.data)
}

fn tool_call(call: &ToolCall, is_first: bool) -> Value {
    let own = own_data(call);
    let mut value = json!({"functionCall": {"name": call.name, "args": arguments_object(&call.arguments)}});
    if let Some(id) = own.and_then(|data| data.get("id")) {
        value["functionCall"]["id"] = id.clone();
    }
    match own.and_then(|data| data.get("thoughtSignature")) {
        Some(signature) => value["thoughtSignature"] = signature.clone(),
        // Of parallel calls only the first is signed. A call without any data was made by another model.
        None if is_first && own.is_none() => value["thoughtSignature"] = json!(FOREIGN_SIGNATURE),
        None => {}
    }
    value
}

fn tool_result(result: &ToolResult, limits: &ModelLimits, named: &Names<'_>) -> Vec<Value> {
    let mut texts = Vec::new();
    let mut pictures = Vec::new();
    for part in &result.parts {
        match part {
            ResultPart::Text(text) => texts.push(text.clone()),
            ResultPart::Image(image) if limits.vision => pictures.push(picture(image, limits)),
            ResultPart::Image(image) => texts.push(image.placeholder_text()),
        }
    }
    let key = if result.is_error { "error" } else { "output" };
    let mut response = json!({"name": result.name, "response": {key: texts.join("\n")}});
    if let Some(id) = named.get(result.id.as_str()) {
        response["id"] = json!(id);
    }
    let mut parts = vec![json!({"functionResponse": response})];
    parts.extend(pictures);
    parts
}

fn picture(image: &Image, limits: &ModelLimits) -> Value {
    // The API accepts no GIF.
    if !limits.vision || image.media_type == "image/gif" {
        return json!({"text": image.placeholder_text()});
    }
    json!({"inlineData": {"mimeType": image.media_type, "data": image.base64()}})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_models_that_support_it_get_a_temperature() {
        let request = ModelRequest { temperature: Some(0.0), ..ModelRequest::default() };
        for (model, temperature) in [("gemini-2.5-pro", json!(0.0)), ("gemini-3.1-pro", Value::Null)] {
            let limits = crate::catalogue::limits(&format!("gemini/{model}"));
            let body = body(&request, model, &limits);
            assert_eq!(body["generationConfig"]["temperature"], temperature, "{model}");
        }
    }
}
