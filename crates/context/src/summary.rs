//! Summaries that a model makes ahead of time: what to ask for, and the check before one is used.

use crate::entry::{EventId, EventRange, Summary};

/// Names the prompt of [`SummaryTask::prompt`]. A summary made with another one is not used.
pub const PROMPT_VERSION: u32 = 1;

/// A summary that will be needed soon.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SummaryTask {
    /// The events it must stand for.
    pub range: EventRange,
    /// 1 for events, more for summaries of summaries.
    pub level: u8,
    /// What to send to a model, as one message of a person.
    pub prompt: String,
    /// Names the input.
    pub input_hash: String,
    /// The most it may cost, beside the heading that the engine puts before it.
    pub most_tokens: u32,
    /// Identifiers of the open plan that occur in the input and must be kept.
    pub keep: Vec<String>,
    /// The events that may be cited, sorted.
    pub events: Vec<EventId>,
}

/// Why a model's summary is not used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SummaryFault {
    /// Nothing was said.
    #[error("the summary is empty")]
    Empty,
    /// It does not save enough.
    #[error("the summary has {tokens} tokens, at most {most} are allowed")]
    TooLong {
        /// Its cost.
        tokens: u32,
        /// What is allowed.
        most: u32,
    },
    /// It cites what is not there.
    #[error("the summary cites {cited}, which is no event of {range} that it was given")]
    CitesUnknown {
        /// The citation.
        cited: String,
        /// The range it may cite.
        range: EventRange,
    },
    /// It cites nothing.
    #[error("the summary cites no event")]
    CitesNothing,
    /// It lost something that the plan names.
    #[error("the summary lost `{identifier}`, which the open plan names")]
    Lost {
        /// What.
        identifier: String,
    },
}

impl SummaryTask {
    /// Checks a model's answer and makes the entry to append of it.
    ///
    /// # Errors
    /// The fault, which may be told to the model for a second try.
    pub fn check(&self, text: &str) -> Result<Summary, SummaryFault> {
        let text = text.trim();
        if text.is_empty() {
            return Err(SummaryFault::Empty);
        }
        let tokens = crate::tokens::count(text);
        if tokens > self.most_tokens {
            return Err(SummaryFault::TooLong { tokens, most: self.most_tokens });
        }
        let citations = crate::cite::citations(text);
        if citations.is_empty() {
            return Err(SummaryFault::CitesNothing);
        }
        for cited in citations {
            let is_given = |id| self.range.contains(id) && self.events.binary_search(&id).is_ok();
            if !is_given(cited.first) || !is_given(cited.last) || cited.first > cited.last {
                return Err(SummaryFault::CitesUnknown { cited: cited.to_string(), range: self.range });
            }
        }
        if let Some(identifier) = self.keep.iter().find(|identifier| !text.contains(identifier.as_str())) {
            return Err(SummaryFault::Lost { identifier: identifier.clone() });
        }
        Ok(Summary {
            range: self.range,
            level: self.level,
            text: text.to_owned(),
            input_hash: self.input_hash.clone(),
            prompt_version: PROMPT_VERSION,
        })
    }
}
