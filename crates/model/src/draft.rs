//! An answer under construction: collects the pieces of a stream into parts, in order of arrival.

use std::borrow::Cow;

use serde_json::Value;

use crate::lenient;
use crate::message::{Opaque, Part, Reasoning, ToolCall};
use crate::name::{Dialect, ModelName};
use crate::output::{Answer, StopReason};
use crate::price::Price;
use crate::usage::Usage;

/// The answer so far.
#[derive(Debug, Default)]
pub(crate) struct Draft {
    parts: Vec<DraftPart>,
    /// Tokens reported so far.
    pub(crate) usage: Usage,
    /// `None` until the answer ends.
    pub(crate) stop_reason: Option<StopReason>,
}

#[derive(Debug)]
enum DraftPart {
    Text(String),
    Reasoning { text: String, data: Value },
    Call(DraftCall),
}

#[derive(Debug, Default)]
struct DraftCall {
    id: String,
    name: String,
    arguments: String,
    data: Option<Value>,
}

impl Draft {
    /// Appends text.
    pub(crate) fn text(&mut self, more: &str) {
        if more.is_empty() {
            return;
        }
        match self.parts.last_mut() {
            Some(DraftPart::Text(text)) => text.push_str(more),
            _ => self.parts.push(DraftPart::Text(more.to_owned())),
        }
    }

    /// Appends reasoning that the provider does not need back.
    pub(crate) fn reasoning(&mut self, more: &str) {
        match self.parts.last_mut() {
            Some(DraftPart::Reasoning { text, .. }) => text.push_str(more),
            _ => self.parts.push(DraftPart::Reasoning { text: more.to_owned(), data: Value::Null }),
        }
    }

    /// Adds a separate block of reasoning, to be sent back as `data`.
    pub(crate) fn reasoning_block(&mut self, text: String, data: Value) {
        self.parts.push(DraftPart::Reasoning { text, data });
    }

    /// Changes the data to send back with the last block of reasoning; adds a block if there is none.
    pub(crate) fn change_reasoning(&mut self, change: impl FnOnce(&mut Value)) {
        let blocks = self.parts.iter_mut().rev();
        let mut data = blocks
            .filter_map(|part| if let DraftPart::Reasoning { data, .. } = part { Some(data) } else { None });
        if let Some(data) = data.next() {
            return change(data);
        }
        let mut data = Value::Null;
        change(&mut data);
        self.parts.push(DraftPart::Reasoning { text: String::new(), data });
    }

    /// Starts a tool call and returns its index in this answer.
    pub(crate) fn begin_call(&mut self, id: &str, name: &str, data: Option<Value>) -> usize {
        let call = DraftCall { id: id.to_owned(), name: name.to_owned(), arguments: String::new(), data };
        self.parts.push(DraftPart::Call(call));
        self.calls() - 1
    }

    /// Appends to a call's arguments.
    pub(crate) fn call_arguments(&mut self, index: usize, more: &str) {
        let calls = self
            .parts
            .iter_mut()
            .filter_map(|part| if let DraftPart::Call(call) = part { Some(call) } else { None });
        if let Some(call) = calls.into_iter().nth(index) {
            call.arguments.push_str(more);
        }
    }

    fn calls(&self) -> usize {
        self.parts.iter().filter(|part| matches!(part, DraftPart::Call(_))).count()
    }

    /// Bytes of output, for an estimate if the provider does not count tokens.
    pub(crate) fn output_bytes(&self) -> usize {
        let length = |part: &DraftPart| match part {
            DraftPart::Text(text) | DraftPart::Reasoning { text, .. } => text.len(),
            DraftPart::Call(call) => call.name.len() + call.arguments.len(),
        };
        self.parts.iter().map(length).sum()
    }

    /// Builds the complete answer.
    pub(crate) fn finish(self, model: &ModelName, dialect: Dialect, price: Option<&Price>) -> Answer {
        let mut ids: Vec<String> = Vec::new();
        let mut parts = Vec::new();
        for part in self.parts {
            match part {
                DraftPart::Text(text) if text.trim().is_empty() => {}
                DraftPart::Text(text) => parts.push(Part::Text(text)),
                DraftPart::Reasoning { text, data } => {
                    if !text.is_empty() || !data.is_null() {
                        parts.push(Part::Reasoning(Reasoning { text, opaque: Opaque { dialect, data } }));
                    }
                }
                DraftPart::Call(call) => {
                    let id = unique_id(&call.id, &ids);
                    ids.push(id.clone());
                    parts.push(Part::ToolCall(ToolCall {
                        id,
                        name: call.name,
                        arguments: arguments(&call.arguments),
                        opaque: call.data.map(|data| Opaque { dialect, data }),
                    }));
                }
            }
        }
        let stop_reason = match self.stop_reason {
            // Several servers report `stop` although they called tools.
            None | Some(StopReason::End) if !ids.is_empty() => StopReason::ToolCalls,
            // And some report tool calls although there are none.
            None | Some(StopReason::ToolCalls) if ids.is_empty() => StopReason::End,
            other => other.unwrap_or(StopReason::End),
        };
        let cost = price.map(|price| price.of(&self.usage));
        Answer { parts, stop_reason, usage: self.usage, lost: Usage::default(), model: model.clone(), cost }
    }
}

/// Makes an id that no earlier call of the answer has.
fn unique_id(id: &str, taken: &[String]) -> String {
    if id.is_empty() {
        return format!("call_{}", uuid::Uuid::now_v7().simple());
    }
    let mut candidate = id.to_owned();
    let mut number = 2;
    while taken.contains(&candidate) {
        candidate = format!("{id}_{number}");
        number += 1;
    }
    candidate
}

/// Parses arguments to an object. Empty text becomes an empty object; text that cannot be parsed stays a string.
fn arguments(text: &str) -> Value {
    if text.trim().is_empty() {
        return Value::Object(serde_json::Map::new());
    }
    match lenient::parse(text) {
        Some(value @ Value::Object(_)) => value,
        // A string that contains the object.
        Some(Value::String(inner)) => match lenient::parse(&inner) {
            Some(value @ Value::Object(_)) => value,
            _ => Value::String(text.to_owned()),
        },
        Some(Value::Null) => Value::Object(serde_json::Map::new()),
        _ => Value::String(text.to_owned()),
    }
}

/// Arguments in the form that providers accept: always an object.
pub(crate) fn arguments_object(arguments: &Value) -> Cow<'_, Value> {
    match arguments {
        Value::Object(_) => Cow::Borrowed(arguments),
        other => Cow::Owned(serde_json::json!({ "invalid_json": other })),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn finish(draft: Draft) -> Answer {
        draft.finish(&ModelName::new("m"), Dialect::OpenAi, None)
    }

    #[test]
    fn missing_and_duplicate_call_ids_are_replaced() {
        let mut draft = Draft::default();
        for id in ["a", "a", "", "", "a_2"] {
            draft.begin_call(id, "tool", None);
        }
        let answer = finish(draft);
        let mut ids: Vec<&str> = answer.tool_calls().map(|call| call.id.as_str()).collect();
        assert_eq!(&ids[..2], ["a", "a_2"]);
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), 5);
        assert_eq!(answer.stop_reason, StopReason::ToolCalls);
    }

    #[test]
    fn unparsable_arguments_stay_text_and_are_sent_back_as_an_object() {
        assert_eq!(arguments(""), json!({}));
        assert_eq!(arguments("{'a': 1,}"), json!({"a": 1}));
        assert_eq!(arguments("\"{\\\"a\\\": 1}\""), json!({"a": 1}));
        let broken = arguments("{\"a\": \"half");
        assert_eq!(broken, json!("{\"a\": \"half"));
        assert_eq!(*arguments_object(&broken), json!({"invalid_json": "{\"a\": \"half"}));
    }

    #[test]
    fn a_blank_draft_has_no_parts() {
        let mut draft = Draft::default();
        draft.text("\n ");
        assert!(finish(draft).parts.is_empty());
    }
}
