//! Converts chunks of `generateContent` to an answer.

use serde_json::{Map, Value, json};

use crate::draft::Draft;
use crate::error::ModelError;
use crate::event_parser::Reader;
use crate::http::Endpoint;
use crate::output::{ModelEvent, StopReason};
use crate::usage::Usage;

/// Parses one chunk after another.
pub(super) struct StreamReader<'a> {
    endpoint: &'a Endpoint,
    draft: Draft,
}

impl Reader for StreamReader<'_> {
    type Shown = Vec<ModelEvent>;

    fn read(&mut self, chunk: &Value) -> Result<Self::Shown, ModelError> {
        // Without server-sent events, the chunks arrive as one array.
        if let Some(chunks) = chunk.as_array() {
            let mut shown = Vec::new();
            for chunk in chunks {
                shown.extend(self.read_one(chunk)?);
            }
            return Ok(shown);
        }
        self.read_one(chunk)
    }

    fn draft(&self) -> &Draft {
        &self.draft
    }
}

impl<'a> StreamReader<'a> {
    pub(super) fn new(endpoint: &'a Endpoint) -> Self {
        Self { endpoint, draft: Draft::default() }
    }

    fn read_one(&mut self, chunk: &Value) -> Result<Vec<ModelEvent>, ModelError> {
        if chunk.get("error").is_some() {
            return Err(self.endpoint.fault(chunk));
        }
        if let Some(usage) = chunk.get("usageMetadata") {
            self.read_usage(usage);
        }
        if let Some(reason) = chunk["promptFeedback"]["blockReason"].as_str() {
            let model = self.endpoint.name.to_string();
            return Err(ModelError::Refused { model, detail: format!("the prompt was blocked: {reason}") });
        }
        let mut shown = Vec::new();
        let Some(candidate) = chunk["candidates"].get(0) else {
            let is_known =
                ["candidates", "usageMetadata", "responseId"].iter().any(|key| chunk.get(*key).is_some());
            return if is_known {
                Ok(shown)
            } else {
                Err(self.endpoint.malformed("a chunk without candidates"))
            };
        };
        for part in candidate["content"]["parts"].as_array().into_iter().flatten() {
            shown.extend(self.read_part(part));
        }
        if let Some(reason) = candidate["finishReason"].as_str() {
            self.draft.stop_reason = Some(match reason {
                "STOP" => StopReason::End,
                "MAX_TOKENS" => StopReason::MaxTokens,
                "SAFETY" | "PROHIBITED_CONTENT" | "BLOCKLIST" | "SPII" | "RECITATION" => StopReason::Refused,
                "MALFORMED_FUNCTION_CALL" | "MALFORMED_RESPONSE" | "UNEXPECTED_TOOL_CALL" => {
                    let words = candidate["finishMessage"].as_str().unwrap_or_default();
                    return Err(self.endpoint.malformed(format!("{reason} {words}")));
                }
                other => StopReason::Other(other.to_owned()),
            });
        }
        Ok(shown)
    }

    fn read_part(&mut self, part: &Value) -> Option<ModelEvent> {
        let signature = part.get("thoughtSignature").filter(|signature| signature.is_string());
        if let Some(call) = part.get("functionCall") {
            let mut data = Map::new();
            data.extend(signature.map(|signature| ("thoughtSignature".to_owned(), signature.clone())));
            data.extend(call.get("id").filter(|id| id.is_string()).map(|id| ("id".to_owned(), id.clone())));
            let name = call["name"].as_str().unwrap_or_default().to_owned();
            let id = call["id"].as_str().unwrap_or_default();
            let index = self.draft.begin_call(id, &name, Some(Value::Object(data)));
            let arguments =
                call.get("args").filter(|args| args.is_object()).map_or_else(String::new, Value::to_string);
            self.draft.call_arguments(index, &arguments);
            return Some(ModelEvent::ToolCall { index, name, arguments });
        }
        let text = part["text"].as_str().unwrap_or_default();
        if part["thought"] == json!(true) {
            self.draft.reasoning(text);
            if let Some(signature) = signature {
                self.draft.change_reasoning(|data| data["thoughtSignature"] = signature.clone());
            }
            return Some(ModelEvent::Reasoning(text.to_owned()));
        }
        self.draft.text(text);
        if let Some(signature) = signature {
            self.draft.reasoning_block(String::new(), json!({"thoughtSignature": signature}));
        }
        (!text.is_empty()).then(|| ModelEvent::Text(text.to_owned()))
    }

    fn read_usage(&mut self, usage: &Value) {
        let number = |key: &str| usage[key].as_u64().unwrap_or(0);
        let (cached, thought) = (number("cachedContentTokenCount"), number("thoughtsTokenCount"));
        let prompt = number("promptTokenCount") + number("toolUsePromptTokenCount");
        self.draft.usage = Usage {
            input: prompt.saturating_sub(cached),
            cached_input: cached,
            cache_write: 0,
            output: number("candidatesTokenCount") + thought,
            reasoning: thought,
        };
    }

    /// Returns the complete answer. Without a finish reason, the answer was cut off.
    pub(super) fn end(self) -> Result<Draft, ModelError> {
        if self.draft.stop_reason.is_none() {
            return Err(self.endpoint.cut("the stream ended before the answer did", self.draft.usage));
        }
        Ok(self.draft)
    }
}
