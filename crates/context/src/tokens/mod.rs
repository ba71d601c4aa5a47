//! Counts tokens with the o200k vocabulary. Each text is counted once, when it enters the log.
//!
//! A provider's own vocabulary differs by a factor ([`crate::Factor`]) that is derived from its reported usage.

pub mod truncate;

use serde_json::Value;

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
