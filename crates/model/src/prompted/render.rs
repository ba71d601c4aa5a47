//! Describes tools and their use as text.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::message::{Message, Part, ResultPart, Role, ToolCall, ToolResult};
use crate::request::{ModelRequest, ToolChoice, ToolSpec};

/// The form of a call, with the keys in the order in which the schema makes the model write them: the name of the tool
/// must come before its input. The example contains nothing that resembles a real answer, because small models copy it.
const CALL_FORMAT: &str = r#"{"thought": "...", "tool": "...", "tool_input": {...}}"#;
const REPLY_FORMAT: &str = r#"{"reply": "..."}"#;

/// Converts a request to one without tools, for a model that does not support them.
pub(super) fn request(request: &ModelRequest, vision: bool) -> ModelRequest {
    let system = match &*request.system {
        "" => tools(request),
        system => format!("{system}\n\n{}", tools(request)),
    };
    let mut messages: Vec<Message> = Vec::new();
    for message in &request.messages {
        let parts = match message.role {
            Role::Assistant => assistant(message),
            Role::User => user(message, vision),
        };
        match messages.last_mut() {
            Some(last) if last.role == message.role => last.parts.extend(parts),
            _ => messages.push(Message { role: message.role, parts }),
        }
    }
    ModelRequest {
        system: system.into(),
        messages: messages.into_iter().map(Arc::new).collect(),
        tools: Arc::default(),
        tool_choice: ToolChoice::Auto,
        ..request.clone()
    }
}

/// The message to the model after an unusable answer.
pub(super) fn repair(why: &str) -> String {
    format!(
        "Your answer could not be used: {why}. Answer again with one JSON object of this form and nothing else:\n{CALL_FORMAT}"
    )
}

fn tools(request: &ModelRequest) -> String {
    let mut text =
        format!("# Tools\n\nAnswer with exactly one JSON object and nothing else:\n{CALL_FORMAT}\n");
    match &request.tool_choice {
        ToolChoice::Auto => text += &format!("or, only when no tool is needed:\n{REPLY_FORMAT}\n"),
        ToolChoice::Never => text += &format!("but do not use a tool now; answer:\n{REPLY_FORMAT}\n"),
        ToolChoice::Required => {}
        ToolChoice::Tool(name) => text += &format!("and use the tool {name} now.\n"),
    }
    text += "`thought` says in a sentence of your own what is to be done now; `tool` is the name of one of the tools below. ";
    text += "Do the next thing yourself, with a tool, instead of writing down that it must be done.\n";
    text += "The result comes in the next message. These are the tools; ? marks what may be left out:\n";
    for tool in &*request.tools {
        text.push('\n');
        text += &describe(tool);
    }
    text
}

/// `- name(path: string, start?: integer): What it does.` and a line for each argument with a description.
fn describe(tool: &ToolSpec) -> String {
    let schema = &tool.input_schema;
    let required =
        |name: &str| schema["required"].as_array().is_some_and(|list| list.iter().any(|item| item == name));
    let mut arguments = Vec::new();
    let mut lines = String::new();
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        let mark = if required(name) { "" } else { "?" };
        arguments.push(format!("{name}{mark}: {}", kind_of(property, schema)));
        if let Some(about) = property["description"].as_str() {
            lines += &format!("    {name}: {}\n", about.split_whitespace().collect::<Vec<_>>().join(" "));
        }
    }
    format!("- {}({}): {}\n{lines}", tool.name, arguments.join(", "), tool.description.trim())
}

/// A type in a few words.
fn kind_of(property: &Value, root: &Value) -> String {
    if let Some(values) = property["enum"].as_array() {
        return values.iter().map(Value::to_string).collect::<Vec<_>>().join(" | ");
    }
    if let Some(pointer) = property["$ref"].as_str().and_then(|text| text.strip_prefix('#')) {
        return root.pointer(pointer).map_or_else(|| "object".into(), |found| kind_of(found, &Value::Null));
    }
    for key in ["anyOf", "oneOf"] {
        if let Some(choices) = property[key].as_array() {
            let choices = choices.iter().filter(|choice| choice["type"] != "null");
            return choices.map(|choice| kind_of(choice, root)).collect::<Vec<_>>().join(" | ");
        }
    }
    match &property["type"] {
        Value::String(kind) if kind == "array" => format!("list of {}", kind_of(&property["items"], root)),
        Value::String(kind) => kind.clone(),
        Value::Array(kinds) => kinds
            .iter()
            .filter_map(Value::as_str)
            .filter(|kind| *kind != "null")
            .collect::<Vec<_>>()
            .join(" | "),
        _ => String::from("any"),
    }
}

/// The model's earlier answer, in the form in which it must continue.
fn assistant(message: &Message) -> Vec<Part> {
    let thought = message
        .parts
        .iter()
        .filter_map(|part| if let Part::Text(text) = part { Some(text.as_str()) } else { None });
    let mut thought = thought.collect::<Vec<_>>().join("\n");
    let calls: Vec<&ToolCall> = message
        .parts
        .iter()
        .filter_map(|part| if let Part::ToolCall(call) = part { Some(call) } else { None })
        .collect();
    if calls.is_empty() {
        return vec![Part::Text(json!({"reply": thought}).to_string())];
    }
    let lines = calls.iter().map(|call| {
        let value =
            json!({"thought": std::mem::take(&mut thought), "tool": call.name, "tool_input": call.arguments});
        value.to_string()
    });
    vec![Part::Text(lines.collect::<Vec<_>>().join("\n"))]
}

fn user(message: &Message, vision: bool) -> Vec<Part> {
    let mut parts = Vec::new();
    for part in &message.parts {
        match part {
            Part::ToolResult(result) => parts.extend(tool_result(result, vision)),
            Part::Text(_) | Part::Image(_) => parts.push(part.clone()),
            Part::Reasoning(_) | Part::ToolCall(_) => {}
        }
    }
    parts
}

fn tool_result(result: &ToolResult, vision: bool) -> Vec<Part> {
    let mut texts = Vec::new();
    let mut pictures = Vec::new();
    for part in &result.parts {
        match part {
            ResultPart::Text(text) => texts.push(text.clone()),
            ResultPart::Image(image) if vision => pictures.push(Part::Image(image.clone())),
            ResultPart::Image(image) => texts.push(image.placeholder_text()),
        }
    }
    let word = if result.is_error { "Error" } else { "Result" };
    let text = if texts.is_empty() { String::from("(no output)") } else { texts.join("\n") };
    let mut parts = vec![Part::Text(format!("{word} of {}:\n{text}", result.name))];
    parts.extend(pictures);
    parts
}
