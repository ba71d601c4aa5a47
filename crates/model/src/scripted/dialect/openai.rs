//! Chunks of chat completions.

use serde_json::{Value, json};

use super::{Event, id_of, pieces};
use crate::scripted::script::ScriptedAnswer;
use crate::usage::Usage;

pub(super) fn events(answer: &ScriptedAnswer, model: &str, usage: Usage) -> Vec<Event> {
    let chunk = |choices: Value, usage: Value| {
        Event::data(
            &json!({"id": "chatcmpl-scripted", "object": "chat.completion.chunk", "model": model, "choices": choices, "usage": usage}),
        )
    };
    let delta =
        |delta: Value| chunk(json!([{"index": 0, "delta": delta, "finish_reason": null}]), Value::Null);
    let mut events = vec![delta(json!({"role": "assistant", "content": ""}))];
    events.extend(
        pieces(&answer.reasoning, answer).into_iter().map(|text| delta(json!({"reasoning_content": text}))),
    );
    events.extend(pieces(&answer.text, answer).into_iter().map(|text| delta(json!({"content": text}))));
    for (index, call) in answer.calls.iter().enumerate() {
        let function = json!({"name": call.name, "arguments": ""});
        let id = id_of(call, index, "call_");
        events.push(delta(
            json!({"tool_calls": [{"index": index, "id": id, "type": "function", "function": function}]}),
        ));
        for text in pieces(&call.text(), answer) {
            events.push(delta(json!({"tool_calls": [{"index": index, "function": {"arguments": text}}]})));
        }
    }
    let reason = match (answer.is_cut_by_length, answer.calls.is_empty()) {
        (true, _) => "length",
        (false, true) => "stop",
        (false, false) => "tool_calls",
    };
    events.push(chunk(json!([{"index": 0, "delta": {}, "finish_reason": reason}]), Value::Null));
    let usage = json!({
        "prompt_tokens": usage.prompt(),
        "completion_tokens": usage.output,
        "total_tokens": usage.total(),
        "prompt_tokens_details": {"cached_tokens": usage.cached_input, "cache_write_tokens": usage.cache_write},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning},
    });
    events.push(chunk(json!([]), usage));
    events.push(Event { name: "", data: "[DONE]".into() });
    events
}
