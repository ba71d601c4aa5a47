//! Builds the messages of a model request from the context engine's view.
//!
//! Most messages stay the same from one turn to the next, so the unchanged prefix of the last request is reused
//! instead of being built again.

use std::collections::HashMap;
use std::sync::Arc;

use context::{Content, Segment};
use model::{Image, Message, Part, ResultPart, Role, ToolResult};

use crate::conversation::assistant_parts;

#[derive(Default)]
pub(crate) struct Messages {
    /// The segments that the messages were built from.
    segments: Vec<Segment>,
    /// Index of the segment in which each message begins.
    starts: Vec<usize>,
    messages: Vec<Arc<Message>>,
}

impl Messages {
    /// Builds the messages for these segments and reuses those of the unchanged prefix.
    pub(crate) fn rebuild_messages(&mut self, segments: Vec<Segment>, pictures: &HashMap<String, Image>) {
        let same = self.segments.iter().zip(&segments).take_while(|(old, new)| is_same(old, new)).count();
        // The last message that begins in the unchanged prefix may continue differently.
        let reused = self.starts.partition_point(|start| *start < same).saturating_sub(1);
        let from = self.starts.get(reused).copied().unwrap_or(0);
        self.starts.truncate(reused);
        self.messages.truncate(reused);
        self.segments = segments;
        let mut fresh: Vec<Message> = Vec::new();
        for (index, segment) in self.segments.iter().enumerate().skip(from) {
            let message = match &segment.content {
                Content::Fixed => continue,
                Content::Text { text, images, .. } => {
                    let mut parts = vec![Part::Text(text.to_string())];
                    parts.extend(known_images(images, pictures).map(Part::Image));
                    add_user_parts(&mut fresh, parts, segment.is_volatile())
                }
                Content::Assistant { reasoning, text, calls } => {
                    Some(Message::assistant(assistant_parts(reasoning, text, calls)))
                }
                Content::Result { call, text, is_error, images } => {
                    let mut parts = vec![ResultPart::Text(text.to_string())];
                    parts.extend(known_images(images, pictures).map(ResultPart::Image));
                    let name = tool_of(call, &fresh, &self.messages).unwrap_or_default().to_owned();
                    let result = ToolResult { id: call.to_string(), name, parts, is_error: *is_error };
                    add_result(&mut fresh, result)
                }
            };
            if let Some(message) = message {
                fresh.push(message);
                self.starts.push(index);
            }
        }
        self.messages.extend(fresh.into_iter().map(Arc::new));
    }

    /// The messages, shared with the next request.
    pub(crate) fn shared(&self) -> Vec<Arc<Message>> {
        self.messages.clone()
    }

    /// Whether the last message is volatile, so that the next request will not contain it.
    pub(crate) fn end_with_status(&self) -> bool {
        self.segments.last().is_some_and(Segment::is_volatile)
    }

    /// The last message that the next request will contain too.
    pub(crate) fn last_stable(&self) -> Option<usize> {
        let is_stable =
            |segment: &Segment| !segment.is_volatile() && !matches!(segment.content, Content::Fixed);
        let last = self.segments.iter().rposition(is_stable)?;
        self.starts.partition_point(|start| *start <= last).checked_sub(1)
    }
}

/// Whether both segments are the same object, not merely equal: views share the segments that stay.
fn is_same(old: &Segment, new: &Segment) -> bool {
    old.is_volatile() == new.is_volatile()
        && match (&old.content, &new.content) {
            (Content::Fixed, Content::Fixed) => true,
            (
                Content::Text { role, text, images },
                Content::Text { role: new_role, text: new_text, images: new_images },
            ) => role == new_role && Arc::ptr_eq(text, new_text) && images == new_images,
            (
                Content::Assistant { reasoning, text, calls },
                Content::Assistant { reasoning: new_reasoning, text: new_text, calls: new_calls },
            ) => {
                Arc::ptr_eq(reasoning, new_reasoning)
                    && Arc::ptr_eq(text, new_text)
                    && Arc::ptr_eq(calls, new_calls)
            }
            (
                Content::Result { call, text, is_error, images },
                Content::Result { call: new_call, text: new_text, is_error: new_error, images: new_images },
            ) => {
                call == new_call
                    && Arc::ptr_eq(text, new_text)
                    && is_error == new_error
                    && images == new_images
            }
            _ => false,
        }
}

/// The tool that a call of the newest answer names.
fn tool_of<'a>(call: &str, fresh: &'a [Message], reused: &'a [Arc<Message>]) -> Option<&'a str> {
    let newest_first = fresh.iter().rev().chain(reused.iter().rev().map(|message| &**message));
    let answer = newest_first.into_iter().find(|message| message.role == Role::Assistant)?;
    answer.parts.iter().find_map(|part| match part {
        Part::ToolCall(known) if known.id == call => Some(known.name.as_str()),
        _ => None,
    })
}

/// The images that are loaded; a missing one is left out.
fn known_images<'a>(
    images: &'a [context::Image],
    pictures: &'a HashMap<String, Image>,
) -> impl Iterator<Item = Image> + use<'a> {
    images.iter().filter_map(|image| pictures.get(&image.digest)).cloned()
}

/// Adds user text. Consecutive user segments share one message. The volatile end gets its own message, so that
/// everything before it can be cached. Returns the message if it is a new one.
fn add_user_parts(messages: &mut [Message], parts: Vec<Part>, is_volatile: bool) -> Option<Message> {
    match messages.last_mut() {
        Some(last) if last.role == Role::User && !is_volatile && !is_of_results(last) => {
            last.parts.extend(parts);
            None
        }
        _ => Some(Message { role: Role::User, parts }),
    }
}

/// Adds a tool result. The results of one answer share one message. Returns the message if it is a new one.
fn add_result(messages: &mut [Message], result: ToolResult) -> Option<Message> {
    match messages.last_mut() {
        Some(last) if is_of_results(last) => {
            last.parts.push(Part::ToolResult(result));
            None
        }
        _ => Some(Message::results(vec![result])),
    }
}

fn is_of_results(message: &Message) -> bool {
    matches!(message.parts.first(), Some(Part::ToolResult(_)))
}

#[cfg(test)]
mod tests {
    use context::{Call, CallResult, Engine, Entry, EntryBody, EventId, Factor, Fixed, Settings};
    use proptest::prelude::*;

    use super::*;

    fn body(kind: u8, number: u64) -> EntryBody {
        let call = |part: u64| Call {
            id: format!("call-{number}-{part}"),
            name: format!("tool-{part}"),
            arguments: serde_json::json!({"text": "some words ".repeat(number as usize % 40)}),
        };
        match kind % 5 {
            0 => EntryBody::User { text: format!("message {number}"), images: Vec::new() },
            1 => EntryBody::Assistant {
                reasoning: Vec::new(),
                text: format!("answer {number}"),
                calls: vec![],
            },
            2 => EntryBody::Assistant {
                reasoning: Vec::new(),
                text: String::new(),
                calls: vec![call(0), call(1)],
            },
            3 => EntryBody::Note { name: "note".into(), text: format!("text {number}") },
            _ => EntryBody::Plan { text: format!("plan {number}") },
        }
    }

    /// Log entries: an answer with calls is followed by its results, sometimes late, sometimes never.
    fn entries(kinds: &[(u8, u8)]) -> Vec<EntryBody> {
        let mut bodies = vec![EntryBody::User { text: "the task".into(), images: Vec::new() }];
        for (number, (kind, results)) in kinds.iter().enumerate() {
            let body = body(*kind, number as u64);
            let calls = match &body {
                EntryBody::Assistant { calls, .. } => calls.clone(),
                _ => Vec::new(),
            };
            bodies.push(body);
            for call in calls.into_iter().take(usize::from(*results % 3)) {
                let text = "output ".repeat(number % 90);
                bodies.push(EntryBody::Result(CallResult { call: call.id, text, ..CallResult::default() }));
            }
        }
        bodies
    }

    proptest! {
        #[test]
        fn reused_messages_equal_rebuilt_messages(kinds in prop::collection::vec((0_u8..5, 0_u8..3), 1..120)) {
            let settings = Settings { budget_tokens: 6_000, factor: Factor::ONE, fixed: Fixed::default() };
            let mut engine = Engine::new(settings).unwrap();
            let mut reused = Messages::default();
            for (number, body) in entries(&kinds).into_iter().enumerate() {
                engine.append(Entry::new(EventId(number as u64 + 1), 0, body)).unwrap();
                let view = engine.view().with_volatile(&format!("status {number}"));
                let mut rebuilt = Messages::default();
                rebuilt.rebuild_messages(view.segments.clone(), &HashMap::new());
                reused.rebuild_messages(view.segments, &HashMap::new());
                prop_assert_eq!(&reused.messages, &rebuilt.messages);
                prop_assert_eq!(&reused.starts, &rebuilt.starts);
                prop_assert_eq!(reused.last_stable(), rebuilt.last_stable());
            }
        }
    }

    #[test]
    fn most_messages_are_shared_with_the_previous_request() {
        let settings = Settings { budget_tokens: 100_000, factor: Factor::ONE, fixed: Fixed::default() };
        let mut engine = Engine::new(settings).unwrap();
        let mut messages = Messages::default();
        for (number, body) in entries(&[(2, 2); 50]).into_iter().enumerate() {
            engine.append(Entry::new(EventId(number as u64 + 1), 0, body)).unwrap();
        }
        messages.rebuild_messages(engine.view().with_volatile("one").segments, &HashMap::new());
        let before = messages.shared();
        messages.rebuild_messages(engine.view().with_volatile("two").segments, &HashMap::new());
        let shared = before.iter().zip(messages.shared()).filter(|(old, new)| Arc::ptr_eq(old, new)).count();
        assert!(shared + 2 >= before.len() && before.len() > 100, "{shared} of {}", before.len());
    }
}
