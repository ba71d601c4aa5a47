//! What the model is shown: an ordered list of segments, each with its cost and the events it stands for.

use std::sync::Arc;

use serde::Serialize;
use serde_json::Value;

use crate::entry::{Call, EventId, EventRange, Image};

/// What the model is shown at one point of the log.
///
/// Everything but the segments for which [`Segment::is_volatile`] holds is stable: until the next epoch, the same
/// segments stand at the start of the next view, byte for byte.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct View {
    /// Most stable first. Those of [`SegmentKind::System`] and [`SegmentKind::Tools`] have no content of ours.
    pub segments: Vec<Segment>,
    /// The sum of the segments' tokens, by our count.
    pub tokens: u32,
    /// The most that `tokens` may be, by our count.
    pub budget: u32,
    /// How many epochs there were before this view: when it grows, the stable part has changed.
    pub epoch: u32,
    /// The newest entry that this view knows.
    pub newest: Option<EventId>,
}

/// One piece of a view.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Segment {
    /// What it is.
    pub kind: SegmentKind,
    /// The events it stands for; none for what is in no log.
    pub covers: Option<EventRange>,
    /// What it costs, by our count.
    pub tokens: u32,
    /// What the model reads.
    pub content: Content,
}

impl Segment {
    /// Whether it may differ in the next view although no epoch has begun.
    pub fn is_volatile(&self) -> bool {
        matches!(self.kind, SegmentKind::Pending | SegmentKind::Volatile)
    }
}

/// What a segment is, in the order in which they stand.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SegmentKind {
    /// The system prompt (the caller's).
    System,
    /// The tool specifications (the caller's).
    Tools,
    /// The task.
    Task,
    /// A message of a person whose place in the history is folded.
    Pin,
    /// The agent's notes.
    Notes,
    /// The repository map.
    Map,
    /// The open plan.
    Plan,
    /// A summary of events or of summaries.
    Summary {
        /// 1 for events, more for summaries of summaries.
        level: u8,
        /// Who wrote it.
        author: Author,
    },
    /// An observation that is named but not shown.
    Masked,
    /// Shown in part: head and tail.
    Cut,
    /// Shown as it is in the log.
    Raw,
    /// Stands for a result that never came.
    Missing,
    /// Belongs behind results that have not come yet; stands at the end until they have.
    Pending,
    /// Recall results, the clock, what is left of the budget: not in the log, never cached.
    Volatile,
}

/// Who wrote a summary.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Author {
    /// Taken from the events by rules.
    Extract,
    /// A model, checked.
    Model,
}

/// Who speaks in a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// A person, or what the engine tells the model.
    User,
}

/// What the model reads of a segment.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Content {
    /// The caller puts in what it has counted for [`crate::Fixed`].
    Fixed,
    /// A message that is only text and pictures.
    Text {
        /// Who speaks.
        role: Role,
        /// What.
        text: Arc<str>,
        /// Pictures with it.
        images: Vec<Image>,
    },
    /// An answer of the model. All results of its calls follow before the next message, one segment each.
    Assistant {
        /// Blocks that go back to the provider unchanged.
        reasoning: Arc<[Value]>,
        /// What it said.
        text: Arc<str>,
        /// The calls, with arguments that may have been cut.
        calls: Arc<[Call]>,
    },
    /// The result of a call of the assistant segment before it.
    Result {
        /// The id of the call.
        call: Arc<str>,
        /// The output, or what stands for it.
        text: Arc<str>,
        /// Whether the call failed.
        is_error: bool,
        /// Pictures.
        images: Vec<Image>,
    },
}

impl Content {
    /// A message that is only text.
    pub fn text(text: impl Into<Arc<str>>) -> Self {
        Content::Text { role: Role::User, text: text.into(), images: Vec::new() }
    }
}

impl View {
    /// The segments that stay as they are until the next epoch.
    pub fn stable(&self) -> impl Iterator<Item = &Segment> {
        self.segments.iter().filter(|segment| !segment.is_volatile())
    }

    /// Puts something at the very end that is in no log. What does not fit into the room that is kept for it
    /// ([`crate::Policy::volatile_tokens`]) and is free otherwise is cut off at the end.
    #[must_use]
    pub fn with_volatile(mut self, text: &str) -> Self {
        let room = self.budget.saturating_sub(self.tokens);
        let text = crate::cut::head(text, room.saturating_sub(crate::tokens::MESSAGE_OVERHEAD));
        if text.is_empty() {
            return self;
        }
        let tokens = crate::tokens::count(&text) + crate::tokens::MESSAGE_OVERHEAD;
        self.tokens += tokens;
        let content = Content::text(text);
        self.segments.push(Segment { kind: SegmentKind::Volatile, covers: None, tokens, content });
        self
    }

    /// The bytes that two equal views share, one line of JSON for each segment.
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
