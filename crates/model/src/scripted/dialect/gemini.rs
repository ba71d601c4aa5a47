//! Chunks of `generateContent`.

use serde_json::{Value, json};

use super::{Event, pieces};
use crate::scripted::script::ScriptedAnswer;
use crate::usage::Usage;

pub(super) fn events(answer: &ScriptedAnswer, model: &str, usage: Usage) -> Vec<Event> {
    let chunk = |parts: Value| {
        let candidate = json!({"content": {"role": "model", "parts": parts}, "index": 0});
        json!({"candidates": [candidate], "modelVersion": model, "responseId": "scripted"})
    };
    let mut chunks: Vec<Value> = Vec::new();
    chunks.extend(
        pieces(&answer.reasoning, answer)
            .into_iter()
            .map(|text| chunk(json!([{"text": text, "thought": true}]))),
    );
    chunks.extend(pieces(&answer.text, answer).into_iter().map(|text| chunk(json!([{"text": text}]))));
    for (place, call) in answer.calls.iter().enumerate() {
        // Arguments are never text in this API, so invalid JSON cannot be scripted.
        let mut part = json!({"functionCall": {"name": call.name, "args": call.arguments}});
        if let Some(id) = &call.id {
            part["functionCall"]["id"] = json!(id);
        }
        if place == 0 {
            part["thoughtSignature"] = json!("c2lnbmVkIGJ5IHRoZSBzY3JpcHQ=");
        }
        chunks.push(chunk(json!([part])));
    }
    let mut last = chunk(json!([{"text": ""}]));
    last["candidates"][0]["finishReason"] =
        json!(if answer.is_cut_by_length { "MAX_TOKENS" } else { "STOP" });
    last["usageMetadata"] = json!({
        "promptTokenCount": usage.prompt(),
        "cachedContentTokenCount": usage.cached_input,
        "candidatesTokenCount": usage.output.saturating_sub(usage.reasoning),
        "thoughtsTokenCount": usage.reasoning,
        "totalTokenCount": usage.total(),
    });
    chunks.push(last);
    chunks.iter().map(Event::data).collect()
}
