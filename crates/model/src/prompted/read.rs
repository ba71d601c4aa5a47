//! Parses a model's text into calls or words. Accepts every form that models are known to write.

use serde_json::{Map, Value};

use crate::lenient;
use crate::message::{Part, ToolCall};
use crate::request::ModelRequest;

const TOOL_KEYS: [&str; 6] = ["tool", "tool_name", "name", "function", "action", "command_name"];
const INPUT_KEYS: [&str; 7] =
    ["tool_input", "arguments", "parameters", "input", "args", "action_input", "params"];
const THOUGHT_KEYS: [&str; 4] = ["thought", "thoughts", "reasoning", "explanation"];
const REPLY_KEYS: [&str; 6] = ["reply", "answer", "final_answer", "message", "response", "text"];

/// The meaning of a text.
#[derive(Debug, PartialEq)]
pub(super) enum ParsedText {
    /// Words and calls.
    Valid(Vec<Part>),
    /// The text looks like a call but is not usable; the reason, for the model.
    Invalid(&'static str),
}

/// Parses a text.
pub(super) fn read(text: &str, request: &ModelRequest) -> ParsedText {
    let text = without_thinking(text);
    let names: Vec<&str> = request.tools.iter().map(|tool| tool.name.as_str()).collect();
    let mut parts = Vec::new();
    for object in lenient::find_objects(text) {
        parts.extend(interpret(&object, &names));
    }
    if !parts.is_empty() {
        return ParsedText::Valid(parts);
    }
    if !text.contains('{') {
        let text = text.trim();
        return ParsedText::Valid(if text.is_empty() {
            Vec::new()
        } else {
            vec![Part::Text(text.to_owned())]
        });
    }
    ParsedText::Invalid(if lenient::find_objects(text).is_empty() {
        "it is not a complete JSON object"
    } else {
        "the JSON object has no \"tool\" and no \"reply\""
    })
}

/// What models put around a call that they write as text. A longer string precedes its own prefixes.
const AROUND_CALLS: [&str; 8] = [
    "```json",
    "```tool_call",
    "```",
    "<tool_call>",
    "</tool_call>",
    "<|tool_call|>",
    "<|python_tag|>",
    "TOOL_CALLS",
];

/// The first call of a text that contains only calls. A call among words is not executed: it may be quoted from
/// elsewhere.
pub(super) fn text_call(text: &str, request: &ModelRequest) -> Option<ToolCall> {
    let names: Vec<&str> = request.tools.iter().map(|tool| tool.name.as_str()).collect();
    let objects = lenient::only_objects(without_thinking(text), &AROUND_CALLS);
    let parts = objects.iter().flat_map(|object| interpret(object, &names));
    parts
        .filter_map(|part| if let Part::ToolCall(call) = part { Some(call) } else { None })
        .find(|call| names.contains(&call.name.as_str()))
}

/// The text after the model's visible thinking.
fn without_thinking(text: &str) -> &str {
    text.rsplit_once("</think>").map_or(text, |(_, rest)| rest)
}

fn interpret(object: &Map<String, Value>, names: &[&str]) -> Vec<Part> {
    if let Some(calls) = object.get("tool_calls").and_then(Value::as_array) {
        return calls.iter().filter_map(Value::as_object).flat_map(|call| interpret(call, names)).collect();
    }
    // `{"type": "function", "function": {"name": ..., "arguments": ...}}`
    if let Some(inner) = object.get("function").and_then(Value::as_object) {
        return interpret(inner, names);
    }
    let thought = THOUGHT_KEYS
        .iter()
        .find_map(|key| object.get(*key)?.as_str())
        .map(str::trim)
        .filter(|text| !text.is_empty());
    if let Some((name, input)) = call(object, names) {
        let id = format!("call_{}", uuid::Uuid::now_v7().simple());
        let call = Part::ToolCall(ToolCall { id, name, arguments: input, opaque: None });
        return thought.map(|text| Part::Text(text.to_owned())).into_iter().chain([call]).collect();
    }
    let reply = REPLY_KEYS.iter().find_map(|key| object.get(*key)?.as_str());
    reply.filter(|text| !text.trim().is_empty()).map(|text| Part::Text(text.to_owned())).into_iter().collect()
}

fn call(object: &Map<String, Value>, names: &[&str]) -> Option<(String, Value)> {
    // `{"read_file": {"path": "a"}}`
    if let Some((name, Value::Object(input))) =
        object.iter().find(|(key, value)| names.contains(&key.as_str()) && value.is_object())
    {
        return Some((name.clone(), Value::Object(input.clone())));
    }
    let key = TOOL_KEYS.iter().find(|key| object.get(**key).is_some_and(Value::is_string))?;
    let said = object.get(*key)?.as_str()?.trim();
    let known = names
        .iter()
        .find(|name| **name == said)
        .or_else(|| names.iter().find(|name| name.eq_ignore_ascii_case(said)));
    let input_key = INPUT_KEYS.iter().find(|key| object.contains_key(**key));
    // `name` alone may refer to anything; with an input, or if it is the name of a tool, it is a call.
    if known.is_none() && input_key.is_none() && *key != "tool" {
        return None;
    }
    if said.is_empty() || matches!(said, "none" | "null") {
        return None;
    }
    let input = match input_key.and_then(|key| object.get(*key)) {
        Some(Value::Object(input)) => Value::Object(input.clone()),
        Some(Value::String(text)) => lenient::parse(text).unwrap_or_else(|| Value::String(text.clone())),
        Some(Value::Null) => Value::Object(Map::new()),
        Some(other) => other.clone(),
        // The input fields are beside the name.
        None => {
            let is_input = |name: &&String| name != key && !THOUGHT_KEYS.contains(&name.as_str());
            object
                .keys()
                .filter(is_input)
                .filter_map(|name| Some((name.clone(), object.get(name)?.clone())))
                .collect()
        }
    };
    Some((known.map_or_else(|| said.to_owned(), |name| (*name).to_owned()), input))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::request::ToolSpec;

    fn request() -> ModelRequest {
        let tool = |name: &str| ToolSpec {
            name: name.into(),
            description: String::new(),
            input_schema: json!({"type": "object"}),
        };
        ModelRequest { tools: vec![tool("read_file"), tool("shell")].into(), ..ModelRequest::default() }
    }

    fn calls(text: &str) -> Vec<(String, Value)> {
        match read(text, &request()) {
            ParsedText::Valid(parts) => parts
                .into_iter()
                .filter_map(|part| {
                    if let Part::ToolCall(call) = part { Some((call.name, call.arguments)) } else { None }
                })
                .collect(),
            ParsedText::Invalid(why) => panic!("{text}: {why}"),
        }
    }

    #[test]
    fn every_known_form_of_a_call_is_parsed() {
        let expected = vec![("read_file".to_owned(), json!({"path": "a.rs"}))];
        for text in [
            r#"{"thought": "look", "tool": "read_file", "tool_input": {"path": "a.rs"}}"#,
            "I will look.\n```json\n{\"tool\": \"read_file\", \"tool_input\": {\"path\": \"a.rs\"},}\n```",
            "<think>{\"tool\": \"shell\"}</think>{'name': 'read_file', 'arguments': {'path': 'a.rs'}}",
            r#"<tool_call>{"name": "read_file", "arguments": "{\"path\": \"a.rs\"}"}</tool_call>"#,
            r#"{"type": "function", "function": {"name": "read_file", "parameters": {"path": "a.rs"}}}"#,
            r#"{"tool_calls": [{"function": {"name": "read_file", "arguments": {"path": "a.rs"}}}]}"#,
            r#"{"read_file": {"path": "a.rs"}}"#,
            r#"{"tool": "Read_File", "path": "a.rs", "thought": "x"}"#,
            r#"{action: "read_file", action_input: {path: "a.rs"}}"#,
        ] {
            assert_eq!(calls(text), expected, "{text}");
        }
    }

    #[test]
    fn several_calls_and_unknown_tools_are_kept() {
        let text = "{\"tool\": \"shell\", \"tool_input\": {\"command\": \"ls\"}}\n{\"tool\": \"fly\", \"tool_input\": {}}";
        assert_eq!(calls(text), [("shell".into(), json!({"command": "ls"})), ("fly".into(), json!({}))]);
    }

    #[test]
    fn plain_text_is_accepted_and_incomplete_calls_are_invalid() {
        let said = |text: &str| read(text, &request());
        assert_eq!(said("All done."), ParsedText::Valid(vec![Part::Text("All done.".into())]));
        assert_eq!(
            said(r#"{"reply": "All done."}"#),
            ParsedText::Valid(vec![Part::Text("All done.".into())])
        );
        assert_eq!(said("  "), ParsedText::Valid(vec![]));
        assert!(matches!(
            said(r#"{"tool": "shell", "tool_input": {"command": "echo"#),
            ParsedText::Invalid(_)
        ));
        assert!(matches!(said(r#"{"colour": "red"}"#), ParsedText::Invalid(_)));
        assert!(matches!(said(r#"{"name": "Ada"}"#), ParsedText::Invalid(_)));
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic(text in "[a-z{}\\[\\]:,\"'<>/ \n]{0,120}") {
            let _ = read(&text, &request());
        }
    }
}
