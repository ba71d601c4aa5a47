//! Converts events of the messages API to an answer.

use serde_json::{Value, json};

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
    block: Block,
    /// Whether the last event has arrived.
    is_complete: bool,
}

/// The current block. Blocks do not overlap.
enum Block {
    None,
    Text,
    Thinking { text: String, signature: String },
    Call { index: usize, has_arguments: bool, input: Value },
}

impl Reader for StreamReader<'_> {
    type Shown = Option<ModelEvent>;

    fn read(&mut self, event: &Value) -> Result<Self::Shown, ModelError> {
        match event["type"].as_str() {
            Some("message_start") => self.read_usage(&event["message"]["usage"]),
            Some("content_block_start") => return Ok(self.begin_block(&event["content_block"])),
            Some("content_block_delta") => return Ok(self.continue_block(&event["delta"])),
            Some("content_block_stop") => self.end_block(),
            Some("message_delta") => {
                self.read_usage(&event["usage"]);
                if let Some(reason) = event["delta"]["stop_reason"].as_str() {
                    self.draft.stop_reason = Some(stop_reason(reason));
                }
            }
            Some("message_stop") => self.is_complete = true,
            // The response of a server that does not stream.
            Some("message") => {
                for block in event["content"].as_array().into_iter().flatten() {
                    self.begin_block(block);
                    self.end_block();
                }
                self.read_usage(&event["usage"]);
                self.draft.stop_reason = event["stop_reason"].as_str().map(stop_reason);
                self.is_complete = true;
            }
            Some("error") => return Err(self.endpoint.fault(event)),
            Some("ping") => {}
            // The API documentation says that new event types may be added.
            Some(_) => {}
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
        Self { endpoint, draft: Draft::default(), block: Block::None, is_complete: false }
    }

    fn begin_block(&mut self, block: &Value) -> Option<ModelEvent> {
        let text = |key: &str| block[key].as_str().unwrap_or_default().to_owned();
        match block["type"].as_str() {
            Some("text") => {
                self.block = Block::Text;
                self.draft.text(&text("text"));
                Some(ModelEvent::Text(text("text")))
            }
            Some("thinking") => {
                self.block = Block::Thinking { text: text("thinking"), signature: text("signature") };
                None
            }
            Some("redacted_thinking") => {
                self.draft.reasoning_block(String::new(), block.clone());
                self.block = Block::None;
                None
            }
            Some("tool_use") => {
                let index = self.draft.begin_call(&text("id"), &text("name"), None);
                self.block = Block::Call { index, has_arguments: false, input: block["input"].clone() };
                Some(ModelEvent::ToolCall { index, name: text("name"), arguments: String::new() })
            }
            _ => {
                self.block = Block::None;
                None
            }
        }
    }

    fn continue_block(&mut self, delta: &Value) -> Option<ModelEvent> {
        let piece = |key: &str| delta[key].as_str().unwrap_or_default().to_owned();
        match (delta["type"].as_str()?, &mut self.block) {
            ("text_delta", Block::Text) => {
                self.draft.text(&piece("text"));
                Some(ModelEvent::Text(piece("text")))
            }
            ("thinking_delta", Block::Thinking { text, .. }) => {
                text.push_str(&piece("thinking"));
                Some(ModelEvent::Reasoning(piece("thinking")))
            }
            ("signature_delta", Block::Thinking { signature, .. }) => {
                signature.push_str(&piece("signature"));
                None
            }
            ("input_json_delta", Block::Call { index, has_arguments, .. }) => {
                let (index, arguments) = (*index, piece("partial_json"));
                *has_arguments |= !arguments.is_empty();
                self.draft.call_arguments(index, &arguments);
                Some(ModelEvent::ToolCall { index, name: String::new(), arguments })
            }
            _ => None,
        }
    }

    fn end_block(&mut self) {
        match std::mem::replace(&mut self.block, Block::None) {
            Block::Thinking { text, signature } => {
                let data = json!({"type": "thinking", "thinking": text, "signature": signature});
                self.draft.reasoning_block(text, data);
            }
            Block::Call { index, has_arguments: false, input } if input.is_object() => {
                self.draft.call_arguments(index, &input.to_string());
            }
            Block::Call { .. } | Block::Text | Block::None => {}
        }
    }

    /// Later counts replace earlier ones; missing counts keep their value.
    fn read_usage(&mut self, usage: &Value) {
        let known = self.draft.usage;
        let number = |key: &str, known: u64| usage[key].as_u64().unwrap_or(known);
        self.draft.usage = Usage {
            input: number("input_tokens", known.input),
            cached_input: number("cache_read_input_tokens", known.cached_input),
            cache_write: number("cache_creation_input_tokens", known.cache_write),
            output: number("output_tokens", known.output),
            reasoning: usage["output_tokens_details"]["thinking_tokens"].as_u64().unwrap_or(known.reasoning),
        };
    }

    /// Returns the complete answer. Without its last event, the answer was cut off.
    pub(super) fn end(mut self) -> Result<Draft, ModelError> {
        if !self.is_complete {
            return Err(self.endpoint.cut("the stream ended before the answer did", self.draft.usage));
        }
        self.end_block();
        Ok(self.draft)
    }
}

fn stop_reason(reason: &str) -> StopReason {
    match reason {
        "end_turn" | "stop_sequence" => StopReason::End,
        "tool_use" => StopReason::ToolCalls,
        "max_tokens" => StopReason::MaxTokens,
        "refusal" => StopReason::Refused,
        other => StopReason::Other(other.to_owned()),
    }
}
