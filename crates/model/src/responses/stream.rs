//! Converts events of the responses API to an answer. Only complete items become part of the answer; the pieces
//! before are for display.

use serde_json::Value;

use crate::draft::Draft;
use crate::error::ModelError;
use crate::event_parser::Reader;
use crate::http::Endpoint;
use crate::output::{ModelEvent, StopReason};
use crate::usage::Usage;

/// Parses one event after another.
pub(super) struct StreamReader<'a> {
    endpoint: &'a Endpoint,
    draft: Draft,
    /// Output indices of the calls that have started, for display.
    calls: Vec<u64>,
    /// Whether the last event has arrived.
    is_complete: bool,
}

impl Reader for StreamReader<'_> {
    type Shown = Option<ModelEvent>;

    fn read(&mut self, event: &Value) -> Result<Self::Shown, ModelError> {
        let delta = || event["delta"].as_str().unwrap_or_default().to_owned();
        let kind = event["type"].as_str();
        match kind {
            Some("response.output_text.delta" | "response.refusal.delta") => {
                return Ok(Some(ModelEvent::Text(delta())));
            }
            Some("response.reasoning_summary_text.delta" | "response.reasoning_text.delta") => {
                return Ok(Some(ModelEvent::Reasoning(delta())));
            }
            Some("response.output_item.added") if event["item"]["type"] == "function_call" => {
                self.calls.push(event["output_index"].as_u64().unwrap_or_default());
                let name = event["item"]["name"].as_str().unwrap_or_default().to_owned();
                return Ok(Some(ModelEvent::ToolCall {
                    index: self.calls.len() - 1,
                    name,
                    arguments: String::new(),
                }));
            }
            Some("response.function_call_arguments.delta") => {
                let output_index = event["output_index"].as_u64().unwrap_or_default();
                let index = self.calls.iter().position(|known| *known == output_index).unwrap_or_default();
                return Ok(Some(ModelEvent::ToolCall { index, name: String::new(), arguments: delta() }));
            }
            Some("response.output_item.done") => self.take_item(&event["item"]),
            Some("response.completed" | "response.incomplete") => self.finish_with(&event["response"]),
            Some("response.failed") => return Err(self.endpoint.fault(&event["response"])),
            Some("error") => return Err(self.endpoint.fault(event)),
            Some(_) => {}
            // The response of a server that does not stream.
            None if event["object"] == "response" => {
                for item in event["output"].as_array().into_iter().flatten() {
                    self.take_item(item);
                }
                self.finish_with(event);
            }
            None => return Err(self.endpoint.malformed("an event without a type")),
        }
        Ok(None)
    }

    fn draft(&self) -> &Draft {
        &self.draft
    }

    fn is_complete(&self) -> bool {
        self.is_complete
    }
}

impl<'a> StreamReader<'a> {
    pub(super) fn new(endpoint: &'a Endpoint) -> Self {
        Self { endpoint, draft: Draft::default(), calls: Vec::new(), is_complete: false }
    }

    fn take_item(&mut self, item: &Value) {
        match item["type"].as_str() {
            Some("message") => {
                for part in item["content"].as_array().into_iter().flatten() {
                    let text = part["text"].as_str().or_else(|| part["refusal"].as_str()).unwrap_or_default();
                    self.draft.text(text);
                    if part["type"] == "refusal" {
                        self.draft.stop_reason = Some(StopReason::Refused);
                    }
                }
            }
            Some("function_call") => {
                let text = |key: &str| item[key].as_str().unwrap_or_default();
                let index = self.draft.begin_call(text("call_id"), text("name"), None);
                self.draft.call_arguments(index, text("arguments"));
            }
            Some("reasoning") => {
                let summary = item["summary"].as_array().into_iter().flatten();
                let text = summary.filter_map(|part| part["text"].as_str()).collect::<Vec<_>>().join("\n");
                let mut data = item.clone();
                if let Some(object) = data.as_object_mut() {
                    object.shift_remove("status");
                }
                self.draft.reasoning_block(text, data);
            }
            _ => {}
        }
    }

    fn finish_with(&mut self, response: &Value) {
        self.is_complete = true;
        let usage = &response["usage"];
        let number = |value: &Value| value.as_u64().unwrap_or(0);
        let cached = number(&usage["input_tokens_details"]["cached_tokens"]);
        let write = number(&usage["input_tokens_details"]["cache_write_tokens"]);
        self.draft.usage = Usage {
            input: number(&usage["input_tokens"]).saturating_sub(cached + write),
            cached_input: cached,
            cache_write: write,
            output: number(&usage["output_tokens"]),
            reasoning: number(&usage["output_tokens_details"]["reasoning_tokens"]),
        };
        let reason = match response["incomplete_details"]["reason"].as_str() {
            Some("max_output_tokens") => StopReason::MaxTokens,
            Some("content_filter") => StopReason::Refused,
            Some(other) => StopReason::Other(other.to_owned()),
            None => StopReason::End,
        };
        self.draft.stop_reason.get_or_insert(reason);
    }

    /// Returns the complete answer. Without its last event, the answer was cut off.
    pub(super) fn end(self) -> Result<Draft, ModelError> {
        if !self.is_complete {
            return Err(self.endpoint.cut("the stream ended before the answer did", self.draft.usage));
        }
        Ok(self.draft)
    }
}
