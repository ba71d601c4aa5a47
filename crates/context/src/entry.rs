//! What the engine reads: the part of a job's log that a model may see, each entry with its token count.
//!
//! Entries are stored by the orchestrator as the payload of its events and handed back in the same order; nothing here
//! reads or writes a store.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::error::ContextError;
use crate::policy::POLICY_VERSION;
use crate::tokens;

/// The number of an event in its job's log. Printed as `e123`; a model cites it in that form.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct EventId(pub u64);

impl fmt::Display for EventId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "e{}", self.0)
    }
}

impl std::str::FromStr for EventId {
    type Err = ContextError;

    /// Reads `e123` and `123`.
    fn from_str(text: &str) -> Result<Self, ContextError> {
        let number = text.trim().trim_start_matches(['e', 'E']);
        let parsed =
            number.parse().map_err(|_| ContextError::EventName { text: text.chars().take(40).collect() });
        parsed.map(EventId)
    }
}

/// Events from the first to the last, both counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct EventRange {
    /// The oldest.
    pub first: EventId,
    /// The newest.
    pub last: EventId,
}

impl EventRange {
    /// The range of one event.
    pub fn one(id: EventId) -> Self {
        Self { first: id, last: id }
    }

    /// Whether the event lies in the range.
    pub fn contains(&self, id: EventId) -> bool {
        self.first <= id && id <= self.last
    }
}

impl fmt::Display for EventRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.first == self.last {
            write!(f, "{}", self.first)
        } else {
            write!(f, "{}-{}", self.first, self.last)
        }
    }
}

/// One entry of the log.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    /// The event's sequence number: larger than that of the entry before; gaps are fine.
    pub id: EventId,
    /// When it happened, in milliseconds since 1970.
    pub time_ms: i64,
    /// What it costs, by the o200k vocabulary, without any factor. Counted once, when it is made.
    pub tokens: u32,
    /// What it says.
    pub body: EntryBody,
}

impl Entry {
    /// Makes an entry and counts it.
    pub fn new(id: EventId, time_ms: i64, body: EntryBody) -> Self {
        let tokens = tokens::count_body(&body);
        Self { id, time_ms, tokens, body }
    }

    /// Makes an entry that was counted when it was written down.
    pub fn counted(id: EventId, time_ms: i64, tokens: u32, body: EntryBody) -> Self {
        Self { id, time_ms, tokens, body }
    }

    /// The stored form, one line of JSON.
    ///
    /// # Errors
    /// A value that JSON cannot hold.
    pub fn encode(&self) -> Result<String, ContextError> {
        serde_json::to_string(self).map_err(|source| ContextError::Encode { id: self.id, source })
    }

    /// Reads the stored form.
    ///
    /// # Errors
    /// Anything that [`Entry::encode`] would not have written.
    pub fn decode(line: &str) -> Result<Self, ContextError> {
        serde_json::from_str(line).map_err(|source| ContextError::Decode { source })
    }
}

/// What an entry says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum EntryBody {
    /// The task (the first one) or a later message of a person. Stays in view as long as there is room for pins.
    User {
        /// What the person wrote.
        text: String,
        /// Pictures that came with it.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        images: Vec<Image>,
    },
    /// One answer of the model.
    Assistant {
        /// Blocks that the provider wants back unchanged (thinking, signatures). Kept whole or left out whole.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        reasoning: Vec<Value>,
        /// What it said.
        text: String,
        /// The calls it asked for; more than one is a parallel batch.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        calls: Vec<Call>,
    },
    /// The outcome of a call.
    Result(CallResult),
    /// The plan as a whole; replaces the one before. An empty text ends it.
    Plan {
        /// The plan as the model should read it.
        text: String,
    },
    /// A note that the agent keeps for itself. The same name replaces it, an empty text removes it.
    Note {
        /// Its name.
        name: String,
        /// What it says.
        text: String,
    },
    /// A summary that a model made ahead of time; used when the engine folds exactly this range.
    Summary(Summary),
    /// What the provider's usage says about our counting: real tokens for 1,000 of ours.
    Correction {
        /// Thousandths; 1,000 means that our count is right.
        factor: Factor,
    },
    /// The provider refused a prompt as too long: the budget shrinks and the next epoch begins now.
    Tighten {
        /// The most that the provider takes, by its own count, if it told us.
        limit_tokens: Option<u32>,
    },
    /// What the prompts are made for from here on: the model's window and the caller's own part.
    Window(Window),
    /// A fresh repository map. Shown from the next epoch on (the first one at once).
    Map {
        /// As [`crate::map`] renders it.
        text: String,
    },
}

/// What prompts are made for. In the log, so that a view needs nothing else.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Window {
    /// Who is asked.
    pub model: String,
    /// The most that a prompt may be, by the provider's count.
    pub budget_tokens: u32,
    /// The system prompt.
    pub system: String,
    /// What it costs, by our count.
    pub system_tokens: u32,
    /// The tools as the model is told of them, a JSON object each.
    pub tools: Vec<Value>,
    /// What all of them cost, by our count.
    pub tools_tokens: u32,
    /// Whether the model sees pictures.
    #[serde(default)]
    pub sees_pictures: bool,
    /// The rules by which views are made from here on ([`crate::POLICY_VERSION`]); 0 in logs that are older than this.
    #[serde(default)]
    pub policy_version: u32,
    /// What the provider counts for 1,000 of our tokens, before its usage has taught anything.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub factor: Option<Factor>,
}

impl Window {
    /// Refuses a log that was written by rules which this program does not know. Older logs are read by today's rules.
    ///
    /// # Errors
    /// A version from the future.
    pub fn check_version(&self) -> Result<(), ContextError> {
        if self.policy_version > POLICY_VERSION {
            return Err(ContextError::PolicyVersion { version: self.policy_version, known: POLICY_VERSION });
        }
        Ok(())
    }
}

/// A call that the model asked for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Call {
    /// The provider's id of the call.
    pub id: String,
    /// The tool.
    pub name: String,
    /// Its input.
    pub arguments: Value,
}

/// The outcome of a call.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CallResult {
    /// The id of the call.
    pub call: String,
    /// What the model reads: the whole output, or what [`crate::output::cap`] leaves of it.
    pub text: String,
    /// Whether the call failed.
    #[serde(default)]
    pub is_error: bool,
    /// The exit code, where a program ran.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// Pictures.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub images: Vec<Image>,
    /// Where the whole output is, if `text` is not the whole.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blob: Option<Blob>,
}

/// A picture, by reference.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Image {
    /// Such as `image/png`.
    pub media_type: String,
    /// The blob that holds it.
    pub digest: String,
    /// What it costs; providers count pictures by their size.
    pub tokens: u32,
}

/// A text that is too large for the log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Blob {
    /// SHA-256 in hexadecimal.
    pub digest: String,
    /// Its size.
    pub bytes: u64,
    /// Its lines.
    pub lines: u64,
}

/// A summary of a range of events.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Summary {
    /// The events it stands for.
    pub range: EventRange,
    /// 1 for a summary of events, k + 1 for one of summaries of level k.
    pub level: u8,
    /// What it says.
    pub text: String,
    /// Names the input that it was made from ([`crate::SummaryTask::input_hash`]).
    pub input_hash: String,
    /// The prompt that it was made with.
    pub prompt_version: u32,
}

/// Real tokens for 1,000 of ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Factor(u32);

impl Factor {
    /// Our count is right.
    pub const ONE: Factor = Factor(1000);
    /// The smallest and the largest that make sense.
    pub const RANGE: std::ops::RangeInclusive<u32> = 250..=4000;

    /// A factor in thousandths, brought into [`Factor::RANGE`].
    pub fn from_thousandths(thousandths: u32) -> Self {
        Self(thousandths.clamp(*Self::RANGE.start(), *Self::RANGE.end()))
    }

    /// The factor that a provider's usage shows: what it counted against what we counted. `None` when the prompt was
    /// too small to tell.
    pub fn from_usage(provider_tokens: u64, our_tokens: u64) -> Option<Self> {
        if our_tokens < 500 || provider_tokens == 0 {
            return None;
        }
        let thousandths = (provider_tokens.saturating_mul(1000)).div_ceil(our_tokens);
        Some(Self::from_thousandths(u32::try_from(thousandths).unwrap_or(u32::MAX)))
    }

    /// Thousandths, in [`Factor::RANGE`] whatever was stored.
    pub fn thousandths(self) -> u32 {
        self.0.clamp(*Self::RANGE.start(), *Self::RANGE.end())
    }

    /// How many of our tokens fit into so many real ones.
    pub fn ours(self, real: u32) -> u32 {
        u32::try_from(u64::from(real) * 1000 / u64::from(self.thousandths())).unwrap_or(u32::MAX)
    }

    /// How many real tokens so many of ours are.
    pub fn real(self, ours: u32) -> u32 {
        u32::try_from((u64::from(ours) * u64::from(self.thousandths())).div_ceil(1000)).unwrap_or(u32::MAX)
    }
}
