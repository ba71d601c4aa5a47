//! Converts a scripted answer to the events of each provider.

mod anthropic;
mod gemini;
mod openai;
mod responses;

use serde_json::{Value, json};

use super::script::{ScriptedAnswer, ScriptedCall};
use crate::name::Dialect;
use crate::usage::Usage;

const DEFAULT_LETTERS: usize = 24;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Event {
    pub(super) name: &'static str,
    pub(super) data: String,
}

impl Event {
    fn data(value: &Value) -> Self {
        Self { name: "", data: value.to_string() }
    }

    /// An event whose name is also its type.
    fn typed(name: &'static str, mut value: Value) -> Self {
        value["type"] = json!(name);
        Self { name, data: value.to_string() }
    }
}

/// All events of an answer.
pub(super) fn events(
    dialect: Dialect,
    answer: &ScriptedAnswer,
    model: &str,
    request_bytes: usize,
) -> Vec<Event> {
    let usage = answer.usage.unwrap_or_else(|| Usage {
        input: (request_bytes / 4) as u64,
        output: ((answer.text.len()
            + answer.reasoning.len()
            + answer.calls.iter().map(|call| call.text().len()).sum::<usize>())
            / 4) as u64,
        ..Usage::default()
    });
    match dialect {
        Dialect::OpenAi => openai::events(answer, model, usage),
        Dialect::Responses => responses::events(answer, model, usage),
        Dialect::Anthropic => anthropic::events(answer, model, usage),
        Dialect::Gemini => gemini::events(answer, model, usage),
    }
}

/// Splits a text into pieces.
fn pieces(text: &str, answer: &ScriptedAnswer) -> Vec<String> {
    let letters: Vec<char> = text.chars().collect();
    letters
        .chunks(answer.letters.unwrap_or(DEFAULT_LETTERS).max(1))
        .map(|piece| piece.iter().collect())
        .collect()
}

/// The id of a call, generated from its index if the script has none.
fn id_of(call: &ScriptedCall, place: usize, prefix: &str) -> String {
    call.id.clone().unwrap_or_else(|| format!("{prefix}{place}_{}", uuid::Uuid::now_v7().simple()))
}

/// An error in the provider's format.
pub(super) fn error(dialect: Dialect, status: u16, words: &str) -> Value {
    let words = if words.is_empty() { "something went wrong" } else { words };
    let kind = match status {
        401 => "authentication_error",
        404 => "not_found_error",
        429 => "rate_limit_error",
        529 => "overloaded_error",
        500.. => "api_error",
        _ => "invalid_request_error",
    };
    match dialect {
        Dialect::OpenAi | Dialect::Responses => {
            json!({"error": {"message": words, "type": kind, "code": null}})
        }
        Dialect::Anthropic => json!({"type": "error", "error": {"type": kind, "message": words}}),
        Dialect::Gemini => {
            json!({"error": {"code": status, "message": words, "status": kind.to_uppercase()}})
        }
    }
}

/// A context overflow error in the provider's format.
pub(super) fn overflow(dialect: Dialect) -> Value {
    match dialect {
        Dialect::OpenAi | Dialect::Responses => json!({"error": {
            "message": "This model's maximum context length is 8192 tokens. However, your messages resulted in 9000 tokens.",
            "type": "invalid_request_error",
            "code": "context_length_exceeded",
        }}),
        Dialect::Anthropic => error(dialect, 400, "prompt is too long: 9000 tokens > 8192 maximum"),
        Dialect::Gemini => error(
            dialect,
            400,
            "The input token count (9000) exceeds the maximum number of tokens allowed (8192).",
        ),
    }
}

/// An error inside a stream.
pub(super) fn error_event(dialect: Dialect) -> Event {
    let value = error(dialect, 529, "overloaded");
    match dialect {
        Dialect::Anthropic => Event { name: "error", data: value.to_string() },
        Dialect::Responses => Event::typed("error", value),
        Dialect::OpenAi | Dialect::Gemini => Event::data(&value),
    }
}
