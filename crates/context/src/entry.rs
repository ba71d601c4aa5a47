//! The engine's input: the part of a job's log that a model may see, each entry with its token count.
//!
//! The orchestrator stores entries as payloads of its events and returns them in the same order. This crate does not
//! access a store.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::error::ContextError;
use crate::event_id::{EventId, EventRange};
use crate::tokens;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    /// The event's sequence number: larger than that of the previous entry. Gaps are allowed.
    pub id: EventId,
    /// Milliseconds since 1970.
    pub time_ms: i64,
    /// Token count by the o200k vocabulary, without a factor. Counted once, when the entry is created.
    pub tokens: u32,
    pub body: EntryBody,
}

impl Entry {
    /// Creates an entry and counts its tokens.
    pub fn new(id: EventId, time_ms: i64, body: EntryBody) -> Self {
        let tokens = body.tokens();
        Self { id, time_ms, tokens, body }
    }

    /// Creates an entry with a token count from the log.
    pub fn counted(id: EventId, time_ms: i64, tokens: u32, body: EntryBody) -> Self {
        Self { id, time_ms, tokens, body }
    }

    /// Encodes the entry as one line of JSON.
    ///
    /// # Errors
    /// The entry has a value that JSON cannot represent.
    pub fn encode(&self) -> Result<String, ContextError> {
        serde_json::to_string(self).map_err(|source| ContextError::Encode { id: self.id, source })
    }

    /// Decodes an entry.
    ///
    /// # Errors
    /// The line is not the output of [`Entry::encode`].
    pub fn decode(line: &str) -> Result<Self, ContextError> {
        serde_json::from_str(line).map_err(|source| ContextError::Decode { source })
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum EntryBody {
    /// The task (the first one) or a later message from a person. Stays in view while there is room for pins.
    User {
        text: String,
        /// Images attached to the message.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        images: Vec<Image>,
    },
    /// A model answer.
    Assistant {
        /// Blocks that the provider needs back unchanged (thinking, signatures). They are kept as a whole or dropped
        /// as a whole.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        reasoning: Vec<Value>,
        text: String,
        /// The tool calls; several form a parallel batch.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        calls: Vec<Call>,
    },
    /// The result of a call.
    Result(CallResult),
    /// The complete plan, which replaces the previous one. An empty text ends the plan.
    Plan {
        /// The plan as shown to the model.
        text: String,
    },
    /// A note of the agent. A note with the same name replaces it; an empty text removes it.
    Note { name: String, text: String },
    /// A summary written by a model in the background. Used when the engine folds exactly this range.
    Summary(Summary),
    /// The accuracy of our count according to the provider's usage: real tokens for 1,000 of ours.
    Correction {
        /// Thousandths; 1,000 means that our count is exact.
        factor: Factor,
    },
    /// The provider rejected a prompt as too long: the budget shrinks and the next epoch begins now.
    Tighten {
        /// The provider's limit by its own count, if it reported one.
        limit_tokens: Option<u32>,
    },
    /// What the following prompts are built for: the model's window and the caller's part.
    Window(Window),
    /// A fresh repository map. Shown from the next epoch on (the first one immediately).
    Map {
        /// As rendered by [`crate::map`].
        text: String,
    },
}

impl EntryBody {
    /// The tokens of the entry including its message frames. Entries that a model never reads count as 0.
    pub fn tokens(&self) -> u32 {
        match self {
            Self::User { text, images } => message_tokens(&[text], images),
            Self::Assistant { reasoning, text, calls } => answer_tokens(reasoning, text, calls),
            Self::Result(result) => message_tokens(&[&result.text, &result.call], &result.images),
            Self::Plan { text } | Self::Map { text } => message_tokens(&[text], &[]),
            Self::Note { name, text } => message_tokens(&[name, text], &[]),
            Self::Summary(summary) => message_tokens(&[&summary.text], &[]),
            Self::Correction { .. } | Self::Tighten { .. } | Self::Window(_) => 0,
        }
    }
}

/// The tokens of a message with these texts and images.
pub(crate) fn message_tokens(texts: &[&str], images: &[Image]) -> u32 {
    let texts =
        texts.iter().fold(tokens::MESSAGE_OVERHEAD, |sum, text| sum.saturating_add(tokens::count(text)));
    images.iter().fold(texts, |sum, image| sum.saturating_add(image.tokens))
}

/// The tokens of a model answer.
pub(crate) fn answer_tokens(reasoning: &[Value], text: &str, calls: &[Call]) -> u32 {
    let reasoning = reasoning
        .iter()
        .fold(message_tokens(&[text], &[]), |sum, block| sum.saturating_add(tokens::count_json(block)));
    calls.iter().fold(reasoning, |sum, call| {
        sum.saturating_add(tokens::count(&call.name))
            .saturating_add(tokens::count(&call.id))
            .saturating_add(tokens::count_json(&call.arguments))
            .saturating_add(tokens::CALL_OVERHEAD)
    })
}

/// What prompts are built for. It is in the log, so that a view needs no other input.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Window {
    pub model: String,
    /// The maximum size of a prompt, by the provider's count.
    pub budget_tokens: u32,
    /// The system prompt.
    pub system: String,
    /// Tokens of the system prompt, by our count.
    pub system_tokens: u32,
    /// The tool specifications that the model gets, one JSON object each.
    pub tools: Vec<Value>,
    /// Tokens of all tool specifications, by our count.
    pub tools_tokens: u32,
    /// The names of tools that are added as soon as a view leaves something out. Their tokens are counted from the start.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub held_tools: Vec<String>,
    /// Whether the model accepts images.
    #[serde(default)]
    pub sees_pictures: bool,
    /// The version of the rules for the following views ([`crate::POLICY_VERSION`]); 0 in logs without this field.
    #[serde(default)]
    pub policy_version: u32,
    /// What the provider counts for 1,000 of our tokens, before its usage has corrected the value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub factor: Option<Factor>,
}

/// A tool call.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Call {
    /// The provider's id of the call.
    pub id: String,
    pub name: String,
    pub arguments: Value,
}

/// The result of a call.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CallResult {
    pub call: String,
    /// What the model reads: the complete output, or the part that [`crate::output_cap::cap`] keeps.
    pub text: String,
    #[serde(default)]
    pub is_error: bool,
    /// The exit code, if a program ran.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub images: Vec<Image>,
    /// Where the complete output is stored, if `text` is only part of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blob: Option<Blob>,
}

/// An image, by reference.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Image {
    /// Such as `image/png`.
    pub media_type: String,
    /// The blob with its content.
    pub digest: String,
    /// Tokens; providers charge images by size.
    pub tokens: u32,
}

/// A stored text that is too large for the log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Blob {
    /// SHA-256 in hexadecimal.
    pub digest: String,
    pub bytes: u64,
    pub lines: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Summary {
    /// The events that it covers.
    pub range: EventRange,
    /// 1 for a summary of events, k + 1 for a summary of summaries of level k.
    pub level: u8,
    pub text: String,
    /// Hash of the summarized input ([`crate::SummaryTask::input_hash`]).
    pub input_hash: String,
    /// Version of the prompt that it was written with.
    pub prompt_version: u32,
}

/// How many real tokens 1,000 of ours are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Factor(u32);

impl Factor {
    /// Our count is exact.
    pub const ONE: Factor = Factor(1000);
    /// The range of plausible values.
    pub const RANGE: std::ops::RangeInclusive<u32> = 250..=4000;

    /// A factor in thousandths, clamped to [`Factor::RANGE`].
    pub fn from_thousandths(thousandths: u32) -> Self {
        Self(thousandths.clamp(*Self::RANGE.start(), *Self::RANGE.end()))
    }

    /// Computes the factor from a provider's usage: its count divided by ours. `None` if the prompt was too small
    /// for a reliable value.
    pub fn from_usage(provider_tokens: u64, our_tokens: u64) -> Option<Self> {
        if our_tokens < 500 || provider_tokens == 0 {
            return None;
        }
        let thousandths = (provider_tokens.saturating_mul(1000)).div_ceil(our_tokens);
        Some(Self::from_thousandths(u32::try_from(thousandths).unwrap_or(u32::MAX)))
    }

    /// Thousandths, clamped to [`Factor::RANGE`] even if the stored value is not.
    pub fn thousandths(self) -> u32 {
        self.0.clamp(*Self::RANGE.start(), *Self::RANGE.end())
    }

    /// How many of our tokens fit into `real` tokens of the provider.
    pub fn ours(self, real: u32) -> u32 {
        u32::try_from(u64::from(real) * 1000 / u64::from(self.thousandths())).unwrap_or(u32::MAX)
    }

    /// How many tokens of the provider `ours` of our tokens are.
    pub fn real(self, ours: u32) -> u32 {
        u32::try_from((u64::from(ours) * u64::from(self.thousandths())).div_ceil(1000)).unwrap_or(u32::MAX)
    }
}
