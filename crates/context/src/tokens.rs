//! Counts tokens with the o200k vocabulary. Each text is counted once, when it enters the log.
//!
//! A provider's own vocabulary differs by a factor ([`crate::Factor`]) that is derived from its reported usage.

use serde_json::Value;

use crate::entry::{Call, EntryBody, Image};
use crate::view::Content;

/// What a provider charges for the frame of a message.
pub const MESSAGE_OVERHEAD: u32 = 5;
/// What a provider charges for the frame of a tool call, in addition to its name and arguments.
pub const CALL_OVERHEAD: u32 = 12;

/// The tokens of a text. Linear time for any input.
pub fn count(text: &str) -> u32 {
    if text.is_empty() {
        return 0;
    }
    u32::try_from(bpe_openai::o200k_base().count(text)).unwrap_or(u32::MAX)
}

/// Starts loading the vocabulary on a separate thread. Loading takes about as long as reading a large log, which can
/// happen in parallel.
pub fn prepare() {
    // Without a thread, the vocabulary is loaded on first use.
    let _ = std::thread::Builder::new().name("vocabulary".to_owned()).spawn(|| count("."));
}

/// The tokens of a value as providers serialize it.
pub fn count_json(value: &Value) -> u32 {
    match value {
        Value::Null => 0,
        other => count(&other.to_string()),
    }
}

/// The tokens of an entry including its message frames. Entries that a model never reads count as 0.
pub fn count_body(body: &EntryBody) -> u32 {
    match body {
        EntryBody::User { text, images } => message(&[text], images),
        EntryBody::Assistant { reasoning, text, calls } => answer(reasoning, text, calls),
        EntryBody::Result(result) => message(&[&result.text, &result.call], &result.images),
        EntryBody::Plan { text } | EntryBody::Map { text } => message(&[text], &[]),
        EntryBody::Note { name, text } => message(&[name, text], &[]),
        EntryBody::Summary(summary) => message(&[&summary.text], &[]),
        EntryBody::Correction { .. } | EntryBody::Tighten { .. } | EntryBody::Window(_) => 0,
    }
}

/// The tokens of a segment's content including its message frames.
pub fn count_content(content: &Content) -> u32 {
    match content {
        Content::Fixed => 0,
        Content::Text { text, images, .. } => message(&[text], images),
        Content::Assistant { reasoning, text, calls } => answer(reasoning, text, calls),
        Content::Result { call, text, images, .. } => message(&[text, call], images),
    }
}

fn message(texts: &[&str], images: &[Image]) -> u32 {
    let texts = texts.iter().fold(MESSAGE_OVERHEAD, |sum, text| sum.saturating_add(count(text)));
    images.iter().fold(texts, |sum, image| sum.saturating_add(image.tokens))
}

fn answer(reasoning: &[Value], text: &str, calls: &[Call]) -> u32 {
    let reasoning =
        reasoning.iter().fold(message(&[text], &[]), |sum, block| sum.saturating_add(count_json(block)));
    calls.iter().fold(reasoning, |sum, call| {
        sum.saturating_add(count(&call.name))
            .saturating_add(count(&call.id))
            .saturating_add(count_json(&call.arguments))
            .saturating_add(CALL_OVERHEAD)
    })
}
