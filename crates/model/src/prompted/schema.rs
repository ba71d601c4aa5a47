//! A schema that allows exactly the permitted calls. Servers convert it to a grammar and support few JSON Schema
//! keywords, so only those are kept.

use serde_json::{Map, Value, json};

use crate::request::{ModelRequest, OutputSchema, ToolChoice};

/// Keywords that every server supports.
const KEPT: [&str; 8] =
    ["type", "enum", "const", "required", "minItems", "maxItems", "additionalProperties", "items"];
/// Nested schemas deeper than this, such as recursive references, are replaced by `{}`.
const MAX_DEPTH: usize = 12;

/// The schema of an answer.
pub(super) fn output(request: &ModelRequest) -> OutputSchema {
    let reply = json!({
        "type": "object",
        "properties": {"reply": {"type": "string"}},
        "required": ["reply"],
        "additionalProperties": false,
    });
    let mut choices = Vec::new();
    for tool in &*request.tools {
        let may = match &request.tool_choice {
            ToolChoice::Never => false,
            ToolChoice::Tool(name) => *name == tool.name,
            ToolChoice::Auto | ToolChoice::Required => true,
        };
        if may {
            choices.push(json!({
                "type": "object",
                "properties": {
                    "thought": {"type": "string"},
                    "tool": {"const": tool.name},
                    "tool_input": object(&tool.input_schema),
                },
                "required": ["thought", "tool", "tool_input"],
                "additionalProperties": false,
            }));
        }
    }
    if matches!(request.tool_choice, ToolChoice::Auto | ToolChoice::Never) || choices.is_empty() {
        choices.push(reply);
    }
    let schema = if choices.len() == 1 { choices.swap_remove(0) } else { json!({ "anyOf": choices }) };
    OutputSchema { name: "answer".into(), schema }
}

/// The schema of a tool's input, always a closed object.
fn object(schema: &Value) -> Value {
    let mut plain = plain(schema, schema, 0);
    if plain["type"] != "object" {
        plain = json!({"type": "object"});
    }
    if plain["properties"].is_object() {
        plain["additionalProperties"] = json!(false);
    }
    plain
}

/// The schema with references resolved and unsupported keywords removed.
fn plain(schema: &Value, root: &Value, depth: usize) -> Value {
    if depth > MAX_DEPTH {
        return json!({});
    }
    if let Some(pointer) = schema["$ref"].as_str().and_then(|text| text.strip_prefix('#')) {
        return root.pointer(pointer).map_or_else(|| json!({}), |found| plain(found, root, depth + 1));
    }
    let Some(object) = schema.as_object() else { return json!({}) };
    let mut kept = Map::new();
    for (key, value) in object {
        match (key.as_str(), value) {
            ("properties", Value::Object(properties)) => {
                let properties =
                    properties.iter().map(|(name, value)| (name.clone(), plain(value, root, depth + 1)));
                kept.insert(key.clone(), Value::Object(properties.collect()));
            }
            ("anyOf" | "oneOf", Value::Array(choices)) => {
                let choices = choices.iter().map(|choice| plain(choice, root, depth + 1));
                kept.insert("anyOf".into(), choices.collect());
            }
            ("allOf", Value::Array(parts)) if parts.len() == 1 => {
                if let Value::Object(only) = plain(&parts[0], root, depth + 1) {
                    kept.extend(only);
                }
            }
            ("items" | "additionalProperties", Value::Object(_)) => {
                kept.insert(key.clone(), plain(value, root, depth + 1));
            }
            (key, _) if KEPT.contains(&key) => {
                kept.insert(key.to_owned(), value.clone());
            }
            _ => {}
        }
    }
    Value::Object(kept)
}
