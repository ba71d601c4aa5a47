//! The output of a model: events while it answers, and the complete answer at the end.

use std::time::Duration;

use futures::StreamExt;
use futures::stream::BoxStream;
use serde::{Deserialize, Serialize};

use crate::error::ModelError;
use crate::message::{Part, ToolCall};
use crate::name::ModelName;
use crate::price::Money;
use crate::usage::Usage;

/// A stream of model output. Ends after [`ModelEvent::Answer`] or an error.
pub type ModelStream = BoxStream<'static, Result<ModelEvent, ModelError>>;

/// An event while a model answers. All events except [`ModelEvent::Answer`] are for display only.
#[derive(Debug, Clone, PartialEq)]
pub enum ModelEvent {
    /// A piece of text.
    Text(String),
    /// A piece of reasoning.
    Reasoning(String),
    /// A tool call started or continues. `index` counts the calls of this answer.
    ToolCall {
        index: usize,
        /// The tool, in the first event of a call; empty afterwards.
        name: String,
        /// A piece of the arguments, as JSON text.
        arguments: String,
    },
    /// Everything received so far is invalid: the attempt failed, and another one follows after a delay.
    Restarted {
        /// The model of the next attempt.
        model: ModelName,
        /// The reason, for the user; contains no key.
        reason: String,
        /// Delay before the next attempt.
        wait: Duration,
        /// 2 for the second attempt, and so on.
        attempt: u32,
    },
    /// There is no answer; an error follows. Tokens used so far are still billed, as far as the provider reported
    /// them.
    Lost {
        /// Tokens of all attempts.
        usage: Usage,
        /// Their price, if known.
        cost: Option<Money>,
    },
    /// The complete answer; the last event.
    Answer(Box<Answer>),
}

/// A complete answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Answer {
    /// The parts of the answer, to be sent back unchanged. Empty if the model returned nothing.
    pub parts: Vec<Part>,
    pub stop_reason: StopReason,
    /// Tokens of this answer.
    pub usage: Usage,
    /// Tokens of earlier failed attempts, as far as the provider reported them.
    #[serde(default)]
    pub lost: Usage,
    /// The model that answered; with fallbacks, not necessarily the first.
    pub model: ModelName,
    /// Price of `usage` and `lost`; `None` if the price of this model is unknown.
    pub cost: Option<Money>,
}

impl Answer {
    /// All text, without the reasoning.
    pub fn text(&self) -> String {
        self.parts
            .iter()
            .filter_map(|part| if let Part::Text(text) = part { Some(text.as_str()) } else { None })
            .collect()
    }

    /// The tool calls, in order.
    pub fn tool_calls(&self) -> impl Iterator<Item = &ToolCall> {
        self.parts.iter().filter_map(|part| if let Part::ToolCall(call) = part { Some(call) } else { None })
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StopReason {
    /// The model finished.
    End,
    /// The model waits for tool results.
    ToolCalls,
    /// The answer reached the token limit; the last part may be truncated.
    MaxTokens,
    /// The model or its provider refused to continue.
    Refused,
    /// Any other reason, as the provider reported it.
    Other(String),
}

/// Reads a stream to its end and returns the answer.
pub async fn finish(stream: ModelStream) -> Result<Answer, ModelError> {
    read_stream(stream, |_| {}).await
}

/// Reads a stream to its end, calls `on_event` for every event, and returns the answer.
pub async fn read_stream(
    mut stream: ModelStream,
    mut on_event: impl FnMut(&ModelEvent),
) -> Result<Answer, ModelError> {
    while let Some(event) = stream.next().await {
        let event = event?;
        on_event(&event);
        if let ModelEvent::Answer(answer) = event {
            return Ok(*answer);
        }
    }
    Err(ModelError::Cut {
        model: "the model".into(),
        detail: "the stream ended without an answer".into(),
        lost: Usage::default(),
    })
}
