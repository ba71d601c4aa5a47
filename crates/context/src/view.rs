//! What the model is shown: an ordered list of segments, each with its token count and the events it covers.

use std::sync::Arc;

use serde::Serialize;
use serde_json::Value;

use crate::entry::{Call, Image, answer_tokens, message_tokens};
use crate::event_id::{EventId, EventRange};
use crate::tokens::{self, truncate};

/// What the model is shown at one point of the log.
///
/// All segments except those with [`Segment::is_volatile`] are stable: until the next epoch, the next view begins
/// with the same segments, byte for byte.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct View {
    /// Most stable first. Segments of kind [`SegmentKind::System`] and [`SegmentKind::Tools`] have no content here.
    pub segments: Vec<Segment>,
    /// The sum of the segments' tokens, by our count.
    pub tokens: u32,
    /// The limit of `tokens`, by our count.
    pub budget: u32,
    /// The number of epochs so far. If it has increased, the stable part has changed.
    pub epoch: u32,
    /// The newest entry included.
    pub newest: Option<EventId>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Segment {
    pub kind: SegmentKind,
    /// The events that it covers; `None` for content that is not in the log.
    pub covers: Option<EventRange>,
    /// Token count by our count.
    pub tokens: u32,
    pub content: Content,
}

impl Segment {
    /// Whether it may differ in the next view even without a new epoch.
    pub fn is_volatile(&self) -> bool {
        matches!(self.kind, SegmentKind::Pending | SegmentKind::Volatile)
    }
}

/// The kinds of segments, in display order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SegmentKind {
    /// The system prompt (the caller's).
    System,
    /// The tool specifications (the caller's).
    Tools,
    Task,
    /// A person's message whose place in the history was folded.
    Pin,
    Notes,
    Map,
    Plan,
    /// A summary of events or of summaries.
    Summary {
        /// 1 for events, more for summaries of summaries.
        level: u8,
        author: Author,
    },
    /// An observation reduced to a one-line stub.
    Masked,
    /// Shown in part: head and tail.
    Cut,
    /// Shown as it is in the log.
    Raw,
    /// A placeholder for a result that never arrived.
    Missing,
    /// Belongs after results that have not arrived yet; shown at the end until they have.
    Pending,
    /// Recall results, the clock, the remaining budget: not in the log, never cached.
    Volatile,
}

/// Who wrote a summary.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Author {
    /// Derived from the events by rules.
    Extract,
    /// A model; the text passed the checks.
    Model,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// A person, or a message from the engine.
    User,
}

/// The content of a segment.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Content {
    /// The caller inserts the part that it counted for [`crate::Fixed`].
    Fixed,
    /// A message with only text and images.
    Text { role: Role, text: Arc<str>, images: Vec<Image> },
    /// A model answer. The results of all its calls follow before the next message, one segment each.
    Assistant {
        /// Blocks that go back to the provider unchanged.
        reasoning: Arc<[Value]>,
        text: Arc<str>,
        /// The calls, with arguments that may have been cut.
        calls: Arc<[Call]>,
    },
    /// The result of a call of the preceding assistant segment.
    Result {
        call: Arc<str>,
        /// The output, or its replacement.
        text: Arc<str>,
        is_error: bool,
        images: Vec<Image>,
    },
}

impl Content {
    /// A message with only text.
    pub fn text(text: impl Into<Arc<str>>) -> Self {
        Content::Text { role: Role::User, text: text.into(), images: Vec::new() }
    }

    /// The tokens of the content including its message frames; 0 for the caller's part.
    pub fn tokens(&self) -> u32 {
        match self {
            Self::Fixed => 0,
            Self::Text { text, images, .. } => message_tokens(&[text], images),
            Self::Assistant { reasoning, text, calls } => answer_tokens(reasoning, text, calls),
            Self::Result { call, text, images, .. } => message_tokens(&[text, call], images),
        }
    }
}

impl View {
    /// The segments that do not change until the next epoch.
    pub fn stable(&self) -> impl Iterator<Item = &Segment> {
        self.segments.iter().filter(|segment| !segment.is_volatile())
    }

    /// Appends text that is not in the log. Text that exceeds both the room reserved for it
    /// ([`crate::Policy::volatile_tokens`]) and the unused room is cut off at the end.
    #[must_use]
    pub fn with_volatile(mut self, text: &str) -> Self {
        let room = self.budget.saturating_sub(self.tokens);
        let text = truncate::head(text, room.saturating_sub(tokens::MESSAGE_OVERHEAD));
        if text.is_empty() {
            return self;
        }
        let tokens = tokens::count(&text) + tokens::MESSAGE_OVERHEAD;
        self.tokens += tokens;
        let content = Content::text(text);
        self.segments.push(Segment { kind: SegmentKind::Volatile, covers: None, tokens, content });
        self
    }

    /// A serialized form for comparing views: one line of JSON per segment.
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        for segment in &self.segments {
            // Every part of a segment has a JSON form: maps have string keys, numbers are finite.
            if serde_json::to_writer(&mut bytes, segment).is_ok() {
                bytes.push(b'\n');
            }
        }
        bytes
    }
}
