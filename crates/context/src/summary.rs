//! Summaries that a model writes in the background: the request, and the check of the answer.

use crate::entry::Summary;
use crate::event_id::{EventId, EventRange};

/// The version of the prompt of [`SummaryTask::prompt`]. A summary made with another version is not used.
pub const PROMPT_VERSION: u32 = 2;

/// A summary that will be needed soon.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SummaryTask {
    /// The events to summarize.
    pub range: EventRange,
    /// 1 for a summary of events, higher for summaries of summaries.
    pub level: u8,
    /// The prompt to send to a model, as one user message.
    pub prompt: String,
    /// Hash of the summarized input.
    pub input_hash: String,
    /// The token limit, without the heading that the engine adds.
    pub max_tokens: u32,
    /// Identifiers of the open plan that occur in the input and must be kept.
    pub keep: Vec<String>,
    /// The events that may be cited, sorted.
    pub events: Vec<EventId>,
}

/// Why a model's summary is rejected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SummaryFault {
    #[error("the summary is empty")]
    Empty,
    #[error("the summary has {tokens} tokens, at most {most} are allowed")]
    TooLong { tokens: u32, most: u32 },
    /// The summary cites an event that is not in its input.
    #[error("the summary cites {cited}, which is no event of {range} that it was given")]
    CitesUnknown {
        cited: String,
        /// The range that it may cite.
        range: EventRange,
    },
    #[error("the summary cites no event")]
    CitesNothing,
    /// The summary dropped an identifier that the plan mentions.
    #[error("the summary lost `{identifier}`, which the open plan names")]
    Lost { identifier: String },
}

impl SummaryTask {
    /// Checks a model's answer and converts it to the summary to append.
    ///
    /// # Errors
    /// The fault, whose text can be sent to the model for a second attempt.
    pub fn check(&self, text: &str) -> Result<Summary, SummaryFault> {
        let text = text.trim();
        if text.is_empty() {
            return Err(SummaryFault::Empty);
        }
        let tokens = crate::tokens::count(text);
        if tokens > self.max_tokens {
            return Err(SummaryFault::TooLong { tokens, most: self.max_tokens });
        }
        let citations = crate::citations::citations(text);
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
