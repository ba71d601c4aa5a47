//! The head of a view: the caller's part, then the task, pinned messages, notes, map and plan. Rebuilt only at
//! epochs.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::unit::{Item, ItemKind};
use crate::event_id::{EventId, EventRange};
use crate::policy::{Fixed, Policy};
use crate::tokens;
use crate::tokens::truncate;
use crate::view::{Content, Segment, SegmentKind};

/// A text that stays in view after its place in the history was folded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Pin {
    pub(super) id: EventId,
    pub(super) text: Arc<str>,
}

/// Everything before the summaries.
#[derive(Debug, Clone, Default)]
pub(super) struct Head {
    pub(super) fixed: Fixed,
    pub(super) task: Option<Pin>,
    /// Messages whose place in the history was folded, oldest first. The oldest are dropped when there is no room.
    messages: Vec<Pin>,
    notes: BTreeMap<String, Pin>,
    pub(super) map: Option<Pin>,
    pub(super) plan: Option<Pin>,
    segments: Vec<Segment>,
    tokens: u32,
}

impl Head {
    pub(super) fn new(fixed: Fixed, policy: &Policy) -> Self {
        let mut head = Self { fixed, ..Self::default() };
        head.refresh(policy);
        head
    }

    pub(super) fn segments(&self) -> &[Segment] {
        &self.segments
    }

    pub(super) fn tokens(&self) -> u32 {
        self.tokens
    }

    /// Whether the task is shown as a whole. Everything else comes into the head with an epoch.
    pub(super) fn shows_whole_task(&self) -> bool {
        let Some(task) = &self.task else { return true };
        self.segments.iter().any(|segment| match &segment.content {
            Content::Text { text, .. } => segment.kind == SegmentKind::Task && text.ends_with(&*task.text),
            _ => false,
        })
    }

    /// Keeps the part of an item that must stay in view when the item is folded.
    pub(super) fn keep(&mut self, item: &Item) {
        let Content::Text { text, .. } = &item.full else { return };
        let pin = Pin { id: item.id, text: Arc::clone(text) };
        match item.kind {
            ItemKind::User if self.task.is_none() => self.task = Some(pin),
            ItemKind::User => self.messages.push(pin),
            ItemKind::Plan => {
                self.plan = text.strip_prefix(PLAN).map(|plan| Pin { id: item.id, text: plan.into() });
            }
            ItemKind::Note => {
                let (name, body) = note_of(text);
                if body.trim().is_empty() {
                    self.notes.remove(name);
                } else {
                    self.notes.insert(name.to_owned(), Pin { id: item.id, text: body.into() });
                }
            }
            _ => {}
        }
    }

    /// Selects again what to show, within the policy's limits.
    pub(super) fn refresh(&mut self, policy: &Policy) {
        let pins = policy.pin_tokens;
        let caller = |kind, tokens| Segment { kind, covers: None, tokens, content: Content::Fixed };
        self.segments = vec![
            caller(SegmentKind::System, self.fixed.system_tokens),
            caller(SegmentKind::Tools, self.fixed.tools_tokens),
        ];
        let plan =
            self.plan.as_ref().and_then(|pin| pinned(SegmentKind::Plan, "Your open plan", pin, pins / 5));
        let notes = self.show_notes(pins / 5);
        let mut left = pins.saturating_sub(cost(&plan)).saturating_sub(cost(&notes));
        let task = self.task.as_ref().and_then(|pin| pinned(SegmentKind::Task, "Task", pin, left / 4 * 3));
        left = left.saturating_sub(cost(&task));
        let messages = self.choose_messages(left, pins / 4);
        let map = self.map.as_ref().and_then(|pin| pinned(SegmentKind::Map, MAP, pin, policy.map_tokens));
        self.segments.extend(task);
        self.segments.extend(messages);
        self.segments.extend(notes);
        self.segments.extend(map);
        self.segments.extend(plan);
        self.tokens = self.segments.iter().map(|segment| segment.tokens).sum();
    }

    /// The newest messages that fit, oldest first. The others are dropped here; a summary covers them.
    fn choose_messages(&mut self, mut left: u32, each: u32) -> Vec<Segment> {
        let mut chosen = Vec::new();
        for pin in self.messages.iter().rev() {
            let Some(segment) = pinned(SegmentKind::Pin, "Earlier message", pin, each.min(left)) else {
                break;
            };
            left -= segment.tokens;
            chosen.push(segment);
        }
        self.messages.drain(..self.messages.len() - chosen.len());
        chosen.reverse();
        chosen
    }

    fn show_notes(&self, most: u32) -> Option<Segment> {
        let mut newest: Vec<(&String, &Pin)> = self.notes.iter().collect();
        newest.sort_by_key(|(_, pin)| std::cmp::Reverse(pin.id));
        let range = newest.iter().fold(None, |range: Option<EventRange>, (_, pin)| match range {
            None => Some(EventRange::one(pin.id)),
            Some(range) => Some(EventRange { first: range.first.min(pin.id), last: range.last.max(pin.id) }),
        })?;
        let lines: Vec<String> =
            newest.iter().map(|(name, pin)| format!("{name} ({}): {}", pin.id, pin.text)).collect();
        let text =
            truncate::head(&format!("Your notes, newest first:\n{}", lines.join("\n")), most.checked_sub(8)?);
        (!text.is_empty()).then(|| segment(SegmentKind::Notes, range, text))
    }
}

/// The heading of a repository map. It shows that the map is not a person's message.
const MAP: &str = "Map of the repository, made by Caisson";
/// The heading of a plan at its place in the history.
const PLAN: &str = "Your plan:\n";
const NOTE: (&str, &str) = ("Your note `", "`:");

/// Formats a plan for the model. The heading shows that the plan is not a person's message. An empty plan has ended.
pub(super) fn plan_text(plan: &str) -> String {
    if plan.is_empty() { "Your plan has ended.".to_owned() } else { format!("{PLAN}{plan}") }
}

/// Formats a repository map for the model, at its place in the history.
pub(super) fn map_text(map: &str) -> String {
    format!("{MAP}:\n{map}")
}

/// Formats a note for the model.
pub(super) fn note_text(name: &str, text: &str) -> String {
    let name = name.replace('\n', " ");
    format!("{}{name}{}\n{text}", NOTE.0, NOTE.1)
}

/// Splits the output of [`note_text`] into name and text.
fn note_of(text: &str) -> (&str, &str) {
    let (first, body) = text.split_once('\n').unwrap_or((text, ""));
    (first.strip_prefix(NOTE.0).and_then(|name| name.strip_suffix(NOTE.1)).unwrap_or(first), body)
}

/// A pinned text in at most `most` tokens; `None` if there is not even room for its heading.
fn pinned(kind: SegmentKind, title: &str, pin: &Pin, most: u32) -> Option<Segment> {
    let id = pin.id;
    let heading = format!("{title} [{id}]:\n");
    let room = most.checked_sub(tokens::count(&heading) + tokens::MESSAGE_OVERHEAD + 1)?;
    if room < 8 {
        return None;
    }
    let gap =
        |bytes: usize, lines: usize| format!("[{bytes} bytes, {lines} lines not shown; history_read {id}]");
    let text = truncate::head_and_tail(&pin.text, room, gap);
    let shown = segment(kind, EventRange::one(id), heading + &text);
    (shown.tokens <= most).then_some(shown)
}

fn segment(kind: SegmentKind, covers: EventRange, text: String) -> Segment {
    let tokens = tokens::count(&text) + tokens::MESSAGE_OVERHEAD;
    Segment { kind, covers: Some(covers), tokens, content: Content::text(text) }
}

fn cost(segment: &Option<Segment>) -> u32 {
    segment.as_ref().map_or(0, |segment| segment.tokens)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event_facts::Facts;

    fn item(id: u64, kind: ItemKind, text: String) -> Item {
        Item::new(EventId(id), kind, Content::text(text), 1, Facts::default())
    }

    #[test]
    fn plans_and_notes_have_headings_only_in_the_history() {
        assert_eq!(plan_text("1. [ ] look\n"), "Your plan:\n1. [ ] look\n");
        assert_eq!(map_text("a.rs\n"), "Map of the repository, made by Caisson:\na.rs\n");
        assert_eq!(note_text("the\nport", "8080"), "Your note `the port`:\n8080");
        let mut head = Head::default();
        head.keep(&item(1, ItemKind::Plan, plan_text("1. [ ] look\n")));
        head.keep(&item(2, ItemKind::Note, note_text("port", "8080")));
        head.keep(&item(3, ItemKind::Note, note_text("gone", "x")));
        head.keep(&item(4, ItemKind::Note, note_text("gone", "")));
        assert_eq!(head.plan.as_ref().map(|pin| &*pin.text), Some("1. [ ] look\n"));
        let notes = head.show_notes(200).map(|segment| format!("{:?}", segment.content)).unwrap_or_default();
        assert!(notes.contains("port (e2): 8080") && !notes.contains("gone"), "{notes}");
        head.keep(&item(5, ItemKind::Plan, plan_text("")));
        assert_eq!(head.plan, None);
    }
}
