//! Reads recorded trajectories: JSON lines with `role`, `content` and optional `tool_calls`, as in chat APIs.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use context::{Call, CallResult, EntryBody, output_cap};
use serde_json::Value;

/// Reads all trajectories of a folder in the order of their file names and joins them to one session. Each body comes
/// with the number of its message, counted from 1 over all messages, including those that are not history.
pub(crate) fn read_folder(folder: &Path) -> Result<Vec<(u64, EntryBody)>> {
    let mut files: Vec<PathBuf> = Vec::new();
    for file in std::fs::read_dir(folder).with_context(|| format!("list {}", folder.display()))? {
        let path = file?.path();
        if path.extension().is_some_and(|extension| extension == "jsonl" || extension == "json") {
            files.push(path);
        }
    }
    anyhow::ensure!(!files.is_empty(), "{} holds no .jsonl file", folder.display());
    files.sort();
    let mut bodies = Vec::new();
    let mut messages = 0;
    for path in files {
        let text = std::fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
        let mut waiting = Vec::new();
        for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
            let message: Value = serde_json::from_str(line)
                .with_context(|| format!("{} line {} is not JSON", path.display(), number + 1))?;
            messages += 1;
            bodies.extend(body(&message, &mut waiting, bodies.len()).map(|body| (messages, body)));
        }
    }
    Ok(bodies)
}

/// Converts one message. System prompts are supplied by the caller, so they are not history.
fn body(message: &Value, waiting: &mut Vec<String>, number: usize) -> Option<EntryBody> {
    let text = content(&message["content"]);
    match message["role"].as_str()? {
        "user" if !is_result(message) => Some(EntryBody::User { text, images: Vec::new() }),
        "assistant" => {
            let asked = message["tool_calls"].as_array().cloned().unwrap_or_default();
            let calls: Vec<Call> =
                asked.iter().enumerate().map(|(at, call)| to_call(call, number, at)).collect();
            *waiting = calls.iter().map(|call| call.id.clone()).collect();
            Some(EntryBody::Assistant { reasoning: Vec::new(), text, calls })
        }
        "tool" | "function" | "user" => {
            let named = call_of(message).map(str::to_owned);
            let call = named
                .unwrap_or_else(|| waiting.first().cloned().unwrap_or_else(|| format!("unknown-{number}")));
            let call =
                waiting.iter().find(|known| known.starts_with(&format!("{call}#"))).cloned().unwrap_or(call);
            waiting.retain(|known| *known != call);
            let capped = output_cap::cap(&text);
            Some(EntryBody::Result(CallResult {
                call,
                text: capped.text,
                blob: capped.blob,
                ..CallResult::default()
            }))
        }
        _ => None,
    }
}

/// Whether a message with the user's role is the result of a call. Users may also write messages while calls run.
fn is_result(message: &Value) -> bool {
    call_of(message).is_some() || parts(message).any(|part| part["type"] == "tool_result")
}

/// The id of the call that a result refers to.
fn call_of(message: &Value) -> Option<&str> {
    message["tool_call_id"].as_str().or_else(|| parts(message).find_map(|part| part["tool_use_id"].as_str()))
}

fn parts(message: &Value) -> impl Iterator<Item = &Value> {
    message["content"].as_array().into_iter().flatten()
}

/// Appends the message's number to call ids, because joined trajectories may have equal ids.
fn to_call(call: &Value, number: usize, at: usize) -> Call {
    let function = if call["function"].is_object() { &call["function"] } else { call };
    let arguments = match &function["arguments"] {
        Value::String(text) => serde_json::from_str(text).unwrap_or_else(|_| Value::String(text.clone())),
        other => other.clone(),
    };
    Call {
        id: format!("{}#{number}-{at}", call["id"].as_str().unwrap_or("call")),
        name: function["name"].as_str().unwrap_or("tool").to_owned(),
        arguments,
    }
}

fn content(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Array(parts) => {
            let texts = parts.iter().map(|part| match part["text"].as_str().or_else(|| part.as_str()) {
                Some(text) => text.to_owned(),
                None => content(&part["content"]),
            });
            texts.filter(|text| !text.is_empty()).collect::<Vec<_>>().join("\n")
        }
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn user_message_between_calls_is_not_a_result() {
        let call = json!([{"id": "a", "function": {"name": "bash", "arguments": "{}"}}]);
        let messages = [
            json!({"role": "assistant", "content": "", "tool_calls": call}),
            json!({"role": "user", "content": "hurry"}),
            json!({"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": "done"}]}),
        ];
        let mut waiting = Vec::new();
        let bodies: Vec<EntryBody> =
            messages.iter().filter_map(|message| body(message, &mut waiting, 0)).collect();
        assert!(matches!(&bodies[1], EntryBody::User { text, .. } if text == "hurry"), "{:?}", bodies[1]);
        let EntryBody::Result(result) = &bodies[2] else { panic!("{:?}", bodies[2]) };
        assert_eq!((result.call.as_str(), result.text.as_str()), ("a#0-0", "done"));
        assert!(waiting.is_empty());
    }
}
