//! The part of the log that is not folded: items, and units of items that must stay together.

use std::sync::Arc;

use sha2::{Digest as _, Sha256};

use crate::entry::{Blob, Call};
use crate::event_facts::{self, Facts};
use crate::event_id::{EventId, EventRange};
use crate::tokens;
use crate::tokens::truncate;
use crate::view::{Content, Segment, SegmentKind};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ItemKind {
    User,
    Assistant,
    /// The result of a call of the same unit.
    Result {
        exit_code: Option<i32>,
        is_error: bool,
    },
    Plan,
    Note,
    Map,
    /// A result whose call was closed or folded, or is unknown.
    Late,
    /// The placeholder for a result that never arrived.
    Missing,
}

/// How an item is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DisplayMode {
    Raw,
    Masked,
    Cut,
}

/// One event of the tail.
#[derive(Debug, Clone)]
pub(super) struct Item {
    pub(super) id: EventId,
    pub(super) kind: ItemKind,
    /// Tokens when shown in full.
    pub(super) raw_tokens: u32,
    /// Tokens as currently shown.
    pub(super) tokens: u32,
    pub(super) shown: DisplayMode,
    /// As in the log, or as a preview if the output exceeded the limit.
    pub(super) full: Content,
    /// As shown, if that differs from `full`.
    pub(super) short: Option<Content>,
    pub(super) facts: Facts,
    /// Where the complete output is stored, if `full` is a preview.
    pub(super) whole: Option<Blob>,
}

impl Item {
    pub(super) fn new(id: EventId, kind: ItemKind, content: Content, tokens: u32, facts: Facts) -> Self {
        let (raw_tokens, shown) = (tokens, DisplayMode::Raw);
        Self { id, kind, raw_tokens, tokens, shown, full: content, short: None, facts, whole: None }
    }

    pub(super) fn segment(&self) -> Segment {
        let kind = match (self.kind, self.shown) {
            (ItemKind::Missing, _) => SegmentKind::Missing,
            (_, DisplayMode::Raw) => SegmentKind::Raw,
            (_, DisplayMode::Masked) => SegmentKind::Masked,
            (_, DisplayMode::Cut) => SegmentKind::Cut,
        };
        // A missing result is not an event.
        let covers = (self.kind != ItemKind::Missing).then(|| EventRange::one(self.id));
        let content = self.short.as_ref().unwrap_or(&self.full).clone();
        Segment { kind, covers, tokens: self.tokens, content }
    }

    /// Whether the item is an observation, which may be masked.
    pub(super) fn is_observation(&self) -> bool {
        matches!(self.kind, ItemKind::Result { .. } | ItemKind::Late | ItemKind::Map)
    }

    /// Replaces the observation with a one-line stub. Returns the tokens saved; does nothing if the stub would cost more
    /// than it saves. A map is replaced anyway, because it moves to the head.
    pub(super) fn mask(&mut self) -> u32 {
        let exit = match self.kind {
            ItemKind::Result { exit_code: Some(code), .. } => format!(", exit {code}"),
            ItemKind::Result { is_error: true, .. } => ", failed".to_owned(),
            _ => String::new(),
        };
        let label = if self.facts.label.is_empty() { "output" } else { &self.facts.label };
        let stub = format!(
            "[obs {id}: {label}{exit}, {tokens} tokens, {lines} lines; history_read {id}]",
            id = self.id,
            tokens = self.raw_tokens,
            lines = self.facts.lines,
        );
        let content = match &self.full {
            Content::Result { call, is_error, .. } => Content::Result {
                call: Arc::clone(call),
                text: stub.into(),
                is_error: *is_error,
                images: Vec::new(),
            },
            _ => Content::text(stub),
        };
        if self.kind != ItemKind::Map && content.tokens().saturating_mul(2) > self.tokens {
            return 0;
        }
        self.show(DisplayMode::Masked, content)
    }

    /// Reduces the item to head and tail in about `most` tokens. Returns the tokens saved; does nothing if that
    /// saves none.
    pub(super) fn cut(&mut self, most: u32) -> u32 {
        let content = cut_content(&self.full, self.id, most, self.whole.as_ref());
        self.show(DisplayMode::Cut, content)
    }

    /// Removes the reasoning blocks, which cannot be cut. Returns the tokens saved.
    pub(super) fn drop_reasoning(&mut self) -> u32 {
        match self.short.as_ref().unwrap_or(&self.full) {
            Content::Assistant { reasoning, text, calls } if !reasoning.is_empty() => {
                let content = Content::Assistant {
                    reasoning: Arc::from([]),
                    text: Arc::clone(text),
                    calls: Arc::clone(calls),
                };
                self.show(DisplayMode::Cut, content)
            }
            _ => 0,
        }
    }

    fn show(&mut self, shown: DisplayMode, content: Content) -> u32 {
        let tokens = content.tokens();
        if tokens >= self.tokens {
            return 0;
        }
        let saved = self.tokens - tokens;
        (self.tokens, self.shown, self.short) = (tokens, shown, Some(content));
        saved
    }
}

/// Cuts a content to about `most` tokens. The frame and ids are kept.
fn cut_content(content: &Content, id: EventId, most: u32, whole: Option<&Blob>) -> Content {
    let gap = |bytes: usize, lines: usize| match whole {
        None => format!("[{bytes} bytes, {lines} lines not shown; history_read {id}]"),
        // The text is a preview, so the size of the cut part alone would be misleading.
        Some(Blob { bytes, lines, .. }) => {
            format!("[head and tail of {bytes} bytes, {lines} lines; history_read {id}]")
        }
    };
    let shorten =
        |text: &Arc<str>, most: u32| -> Arc<str> { truncate::head_and_tail(text, most, gap).into() };
    match content {
        Content::Fixed => Content::Fixed,
        Content::Text { role, text, .. } => {
            Content::Text { role: *role, text: shorten(text, most), images: Vec::new() }
        }
        Content::Result { call, text, is_error, .. } => Content::Result {
            call: Arc::clone(call),
            text: shorten(text, most),
            is_error: *is_error,
            images: Vec::new(),
        },
        Content::Assistant { reasoning, text, calls } => {
            // Reasoning is small or opaque. A large part is nearly always an argument.
            let share = most / (u32::try_from(calls.len()).unwrap_or(u32::MAX).saturating_add(1));
            let fits = reasoning.iter().map(tokens::count_json).sum::<u32>() <= most;
            Content::Assistant {
                reasoning: if fits { Arc::clone(reasoning) } else { Arc::from([]) },
                text: shorten(text, share.max(8)),
                calls: calls.iter().map(|call| cut_call(call, share.max(8), gap)).collect(),
            }
        }
    }
}

/// Cuts the arguments of a call to about `most` tokens, keeping an object with the same keys if possible.
fn cut_call(call: &Call, most: u32, gap: impl Fn(usize, usize) -> String + Copy) -> Call {
    let mut arguments = call.arguments.clone();
    if tokens::count_json(&arguments) > most {
        let strings = count_strings(&arguments).max(1);
        shorten_strings(&mut arguments, most / strings, gap);
        if tokens::count_json(&arguments) > most.saturating_mul(2) {
            let text = truncate::head(&call.arguments.to_string(), most);
            arguments = serde_json::json!({ "cut": text });
        }
    }
    Call { id: call.id.clone(), name: call.name.clone(), arguments }
}

fn count_strings(value: &serde_json::Value) -> u32 {
    match value {
        serde_json::Value::String(text) => u32::from(text.len() > 64),
        serde_json::Value::Array(values) => values.iter().map(count_strings).sum(),
        serde_json::Value::Object(values) => values.values().map(count_strings).sum(),
        _ => 0,
    }
}

fn shorten_strings(value: &mut serde_json::Value, most: u32, gap: impl Fn(usize, usize) -> String + Copy) {
    match value {
        serde_json::Value::String(text) if text.len() > 64 => {
            *text = truncate::head_and_tail(text, most, gap)
        }
        serde_json::Value::Array(values) => {
            values.iter_mut().for_each(|value| shorten_strings(value, most, gap));
        }
        serde_json::Value::Object(values) => {
            values.values_mut().for_each(|value| shorten_strings(value, most, gap));
        }
        _ => {}
    }
}

/// Items that are shown or folded together: an answer with the results of its calls, or a single other item.
#[derive(Debug, Clone)]
pub(super) struct Unit {
    pub(super) items: Vec<Item>,
    /// Calls without a result, with what is known about them.
    pub(super) waiting: Vec<(Arc<str>, Facts)>,
    /// Whether it must be folded together with the previous unit.
    pub(super) is_glued: bool,
}

impl Unit {
    pub(super) fn one(item: Item) -> Self {
        Self { items: vec![item], waiting: Vec::new(), is_glued: false }
    }

    pub(super) fn tokens(&self) -> u32 {
        self.items.iter().map(|item| item.tokens).sum()
    }

    pub(super) fn raw_tokens(&self) -> u32 {
        self.items.iter().map(|item| item.raw_tokens).sum()
    }

    pub(super) fn oldest(&self) -> Option<EventId> {
        self.items.iter().map(|item| item.id).min()
    }

    pub(super) fn newest(&self) -> Option<EventId> {
        self.items.iter().map(|item| item.id).max()
    }

    /// Whether a call belongs to this unit.
    pub(super) fn has_call(&self, call: &str) -> bool {
        self.items.iter().any(|item| match &item.full {
            Content::Assistant { calls, .. } => calls.iter().any(|known| known.id == call),
            _ => false,
        })
    }

    /// Adds a placeholder for each missing result, so that every call has one.
    pub(super) fn close(&mut self, id: EventId) {
        for (call, facts) in std::mem::take(&mut self.waiting) {
            let (content, tokens) =
                missing(&call, "[no result: the call was interrupted or its result was lost]");
            let facts = Facts { written: Vec::new(), ..facts };
            self.items.push(Item::new(id, ItemKind::Missing, content, tokens, facts));
        }
    }
}

/// The placeholder for a missing result.
pub(super) fn missing(call: &Arc<str>, text: &str) -> (Content, u32) {
    let content =
        Content::Result { call: Arc::clone(call), text: text.into(), is_error: true, images: Vec::new() };
    let tokens = content.tokens();
    (content, tokens)
}

/// The ids of an answer's calls and what is known about them, in order.
pub(super) fn waiting(calls: &[Call]) -> Vec<(Arc<str>, Facts)> {
    calls.iter().map(|call| (Arc::from(call.id.as_str()), event_facts::of_call(call))).collect()
}

/// The range from the oldest to the newest event of the units.
pub(super) fn range_of<'a>(units: impl Iterator<Item = &'a Unit>) -> Option<EventRange> {
    let ids =
        units.flat_map(|unit| &unit.items).filter(|item| item.kind != ItemKind::Missing).map(|item| item.id);
    ids.fold(None, |range: Option<EventRange>, id| match range {
        None => Some(EventRange::one(id)),
        Some(range) => Some(EventRange { first: range.first.min(id), last: range.last.max(id) }),
    })
}

/// Hash of the content of the units' events.
pub(super) fn hash_of<'a>(units: impl Iterator<Item = &'a Unit>) -> String {
    let mut hash = Sha256::new();
    for item in units.flat_map(|unit| &unit.items) {
        hash.update(item.id.0.to_le_bytes());
        // Every content has a JSON form; an empty one would only make the hash less specific.
        hash.update(serde_json::to_vec(&item.full).unwrap_or_default());
    }
    crate::output_cap::hexadecimal(&hash.finalize())
}
