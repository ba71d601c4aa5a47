//! Converts chunks of chat completions to an answer.

use serde_json::{Value, json};

use crate::draft::Draft;
use crate::error::ModelError;
use crate::event_parser::Reader;
use crate::http::Endpoint;
use crate::output::{ModelEvent, StopReason};
use crate::price::Money;
use crate::usage::Usage;

/// Bytes of English or code per token, for an estimate if the provider does not count tokens.
const BYTES_PER_TOKEN: usize = 4;

/// Parses one chunk after another.
pub(super) struct StreamReader<'a> {
    endpoint: &'a Endpoint,
    draft: Draft,
    /// Index and id as sent by the server, for each call of the draft.
    calls: Vec<(u64, String)>,
    cost: Option<Money>,
    has_usage: bool,
}

impl Reader for StreamReader<'_> {
    type Shown = Vec<ModelEvent>;

    fn read(&mut self, chunk: &Value) -> Result<Self::Shown, ModelError> {
        if chunk.get("error").is_some_and(|error| !error.is_null()) {
            return Err(self.endpoint.fault(chunk));
        }
        if let Some(usage) = chunk.get("usage").filter(|usage| usage.is_object()) {
            self.read_usage(usage);
        }
        let mut shown = Vec::new();
        let Some(choice) = chunk["choices"].get(0) else {
            let is_known = chunk.get("choices").is_some()
                || chunk.get("usage").is_some()
                || chunk.get("object").is_some();
            return if is_known {
                Ok(shown)
            } else {
                Err(self.endpoint.malformed(format!("no choices in {}", short(chunk))))
            };
        };
        // A server that does not stream sends the whole message at once.
        let delta = choice.get("delta").or_else(|| choice.get("message")).unwrap_or(&Value::Null);
        self.read_reasoning(delta, &mut shown);
        for key in ["content", "refusal"] {
            if let Some(text) = delta[key].as_str().filter(|text| !text.is_empty()) {
                self.draft.text(text);
                shown.push(ModelEvent::Text(text.to_owned()));
            }
        }
        for call in delta["tool_calls"].as_array().into_iter().flatten() {
            shown.push(self.read_call(call));
        }
        if let Some(reason) = choice["finish_reason"].as_str() {
            self.draft.stop_reason = Some(match reason {
                "stop" | "eos" => StopReason::End,
                "tool_calls" | "function_call" => StopReason::ToolCalls,
                "length" => StopReason::MaxTokens,
                "content_filter" => StopReason::Refused,
                "error" => {
                    return Err(self
                        .endpoint
                        .fault(&json!({"error": {"message": "the provider broke off"}})));
                }
                other => StopReason::Other(other.to_owned()),
            });
        }
        if delta["refusal"].is_string() {
            self.draft.stop_reason = Some(StopReason::Refused);
        }
        Ok(shown)
    }

    fn draft(&self) -> &Draft {
        &self.draft
    }
}

impl<'a> StreamReader<'a> {
    pub(super) fn new(endpoint: &'a Endpoint) -> Self {
        Self { endpoint, draft: Draft::default(), calls: Vec::new(), cost: None, has_usage: false }
    }

    fn read_reasoning(&mut self, delta: &Value, shown: &mut Vec<ModelEvent>) {
        for field in ["reasoning_content", "reasoning"] {
            if let Some(text) = delta[field].as_str().filter(|text| !text.is_empty()) {
                self.draft.reasoning(text);
                self.draft.change_reasoning(|data| data["field"] = json!(field));
                shown.push(ModelEvent::Reasoning(text.to_owned()));
                break;
            }
        }
        if let Some(details) = delta["reasoning_details"].as_array().filter(|details| !details.is_empty()) {
            self.draft.change_reasoning(|data| join_details(data, details));
        }
    }

    fn read_call(&mut self, call: &Value) -> ModelEvent {
        let index = call["index"].as_u64().unwrap_or(self.calls.len() as u64);
        let id = call["id"].as_str().unwrap_or_default();
        let function = &call["function"];
        let name = function["name"].as_str().unwrap_or_default();
        let known = self.calls.iter().rposition(|(known_index, known_id)| {
            // Some servers number every call 0: a different id with a name means another call.
            *known_index == index && (id.is_empty() || name.is_empty() || known_id == id)
        });
        let (at, name) = match known {
            Some(at) => (at, String::new()),
            None => {
                self.calls.push((index, id.to_owned()));
                (self.draft.begin_call(id, name, None), name.to_owned())
            }
        };
        let arguments = match &function["arguments"] {
            Value::String(text) => text.clone(),
            Value::Null => String::new(),
            other => other.to_string(),
        };
        self.draft.call_arguments(at, &arguments);
        ModelEvent::ToolCall { index: at, name, arguments }
    }

    fn read_usage(&mut self, usage: &Value) {
        self.has_usage = true;
        let number = |value: &Value| value.as_u64().unwrap_or(0);
        let cached = number(&usage["prompt_tokens_details"]["cached_tokens"])
            .max(number(&usage["prompt_cache_hit_tokens"]));
        let write = number(&usage["prompt_tokens_details"]["cache_write_tokens"]);
        self.draft.usage = Usage {
            input: number(&usage["prompt_tokens"]).saturating_sub(cached + write),
            cached_input: cached,
            cache_write: write,
            output: number(&usage["completion_tokens"]),
            reasoning: number(&usage["completion_tokens_details"]["reasoning_tokens"]),
        };
        self.cost = usage["cost"].as_f64().and_then(Money::from_dollars);
    }

    /// Returns the complete answer, with the price that the provider reported. Without a finish reason, the answer
    /// was cut off.
    pub(super) fn end(mut self, request_bytes: usize) -> Result<(Draft, Option<Money>), ModelError> {
        if self.draft.stop_reason.is_none() {
            return Err(self.endpoint.cut("the stream ended before the answer did", self.draft.usage));
        }
        if !self.has_usage {
            self.draft.usage.input = (request_bytes / BYTES_PER_TOKEN) as u64;
            self.draft.usage.output = (self.draft.output_bytes() / BYTES_PER_TOKEN) as u64;
        }
        Ok((self.draft, self.cost))
    }
}

/// Merges OpenRouter's reasoning details, which arrive in pieces: those with the same index belong together.
fn join_details(data: &mut Value, details: &[Value]) {
    if !data["reasoning_details"].is_array() {
        data["reasoning_details"] = json!([]);
    }
    let Some(known) = data["reasoning_details"].as_array_mut() else { return };
    for detail in details {
        let same = |other: &&mut Value| {
            detail["index"].is_u64() && other["index"] == detail["index"] && other["type"] == detail["type"]
        };
        let Some(block) = known.iter_mut().rev().find(same) else {
            known.push(detail.clone());
            continue;
        };
        for (key, value) in detail.as_object().into_iter().flatten() {
            let joined = match (key.as_str(), block[key].as_str(), value.as_str()) {
                ("text" | "summary" | "data", Some(old), Some(new)) => json!(format!("{old}{new}")),
                (_, _, _) if value.is_null() => continue,
                _ => value.clone(),
            };
            block[key] = joined;
        }
    }
}

fn short(value: &Value) -> String {
    value.to_string().chars().take(200).collect()
}
