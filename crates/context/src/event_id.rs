//! The number of an event, and ranges of events.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The number of an event in its job's log. Displayed as `e123`; models cite events in that form.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct EventId(pub u64);

impl fmt::Display for EventId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "e{}", self.0)
    }
}

/// The text is not an event id.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not an event: write a number such as e123")]
pub struct ParseEventIdError {
    text: String,
}

impl std::str::FromStr for EventId {
    type Err = ParseEventIdError;

    /// Parses `e123` and `123`.
    fn from_str(text: &str) -> Result<Self, ParseEventIdError> {
        let number = text.trim().trim_start_matches(['e', 'E']);
        let parsed = number.parse().map_err(|_| ParseEventIdError { text: text.chars().take(40).collect() });
        parsed.map(EventId)
    }
}

/// An inclusive range of events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct EventRange {
    pub first: EventId,
    pub last: EventId,
}

impl EventRange {
    pub fn one(id: EventId) -> Self {
        Self { first: id, last: id }
    }

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
