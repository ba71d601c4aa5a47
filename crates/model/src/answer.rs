//! What a model says: events while it speaks, and the whole answer at the end.

use std::time::Duration;

use futures::StreamExt;
use futures::stream::BoxStream;
use serde::{Deserialize, Serialize};

use crate::error::ModelError;
use crate::message::{Part, ToolCall};
use crate::name::ModelName;
use crate::price::Money;

/// What a model says, bit by bit. Ends after [`ModelEvent::Answer`] or an error.
pub type ModelStream = BoxStream<'static, Result<ModelEvent, ModelError>>;

/// Something that happens while a model answers. All but [`ModelEvent::Answer`] are for showing only.
#[derive(Debug, Clone, PartialEq)]
pub enum ModelEvent {
    /// More text.
    Text(String),
    /// More of what it thinks.
    Reasoning(String),
    /// A tool call began, or goes on. `index` counts the calls of this answer.
    ToolCall {
        /// Which call of this answer.
        index: usize,
        /// The tool, in the first event of a call; empty later.
        name: String,
        /// More of the arguments, as JSON text.
        arguments: String,
    },
    /// What came so far is void: it broke off or failed, and is asked again after a wait.
    Restarted {
        /// Who is asked next.
        model: ModelName,
        /// Why, for people; holds no key.
        reason: String,
        /// How long is waited first.
        wait: Duration,
        /// 2 for the second attempt, and so on.
        attempt: u32,
    },
    /// No answer comes; the error follows. What came before it is paid for all the same, as far as the provider told.
    Lost {
        /// Tokens of all attempts.
        usage: Usage,
        /// Their price, where it is known.
        cost: Option<Money>,
    },
    /// The end.
    Answer(Box<Answer>),
}

/// A whole answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Answer {
    /// What was said; to be sent back as it is. Empty when the model said nothing.
    pub parts: Vec<Part>,
    /// Why it ended.
    pub stop_reason: StopReason,
    /// Tokens of this answer.
    pub usage: Usage,
    /// Tokens of attempts that broke off before it, as far as the provider told.
    #[serde(default)]
    pub lost: Usage,
    /// Who answered: of a list with fallbacks, which one.
    pub model: ModelName,
    /// Price of `usage` and `lost`; unknown where the table has none for this model.
    pub cost: Option<Money>,
}

impl Answer {
    /// All text, without what was thought.
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

/// Why an answer ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StopReason {
    /// The model was done.
    End,
    /// It waits for results of tools.
    ToolCalls,
    /// It reached the most tokens allowed; the last part may be cut.
    MaxTokens,
    /// The model or its provider would not say more.
    Refused,
    /// Something else, in the provider's word.
    Other(String),
}

/// Tokens. The parts do not overlap: all that went in is `input + cached_input + cache_write`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Usage {
    /// Read by the model anew.
    pub input: u64,
    /// Read from the provider's cache.
    pub cached_input: u64,
    /// Read anew and put into the cache.
    pub cache_write: u64,
    /// Written by the model, with what it thought.
    pub output: u64,
    /// How many of `output` were thought, where the provider tells.
    pub reasoning: u64,
}

impl Usage {
    /// All that was read.
    pub fn prompt(&self) -> u64 {
        self.input + self.cached_input + self.cache_write
    }

    /// All that was read and written.
    pub fn total(&self) -> u64 {
        self.prompt() + self.output
    }
}

impl std::ops::Add for Usage {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            input: self.input + other.input,
            cached_input: self.cached_input + other.cached_input,
            cache_write: self.cache_write + other.cache_write,
            output: self.output + other.output,
            reasoning: self.reasoning + other.reasoning,
        }
    }
}

/// Reads a stream to its end and gives the answer alone.
pub async fn finish(stream: ModelStream) -> Result<Answer, ModelError> {
    listen(stream, |_| {}).await
}

/// Reads a stream to its answer, and tells of all that comes on the way.
pub async fn listen(
    mut stream: ModelStream,
    mut hear: impl FnMut(&ModelEvent),
) -> Result<Answer, ModelError> {
    while let Some(event) = stream.next().await {
        let event = event?;
        hear(&event);
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
