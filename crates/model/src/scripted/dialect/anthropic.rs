//! Events of the messages API.

use serde_json::{Value, json};

use super::{Event, id_of, pieces};
use crate::scripted::script::ScriptedAnswer;
use crate::usage::Usage;

pub(super) fn events(answer: &ScriptedAnswer, model: &str, usage: Usage) -> Vec<Event> {
    let started = json!({
        "input_tokens": usage.input,
        "cache_read_input_tokens": usage.cached_input,
        "cache_creation_input_tokens": usage.cache_write,
        "output_tokens": 1,
    });
    let message = json!({"id": "msg_scripted", "type": "message", "role": "assistant", "model": model, "content": [], "usage": started});
    let mut events =
        vec![Event::typed("message_start", json!({"message": message})), Event::typed("ping", json!({}))];
    let mut index = 0;
    let mut block = |block: Value, deltas: Vec<Value>| {
        events.push(Event::typed("content_block_start", json!({"index": index, "content_block": block})));
        for delta in deltas {
            events.push(Event::typed("content_block_delta", json!({"index": index, "delta": delta})));
        }
        events.push(Event::typed("content_block_stop", json!({"index": index})));
        index += 1;
    };
    if !answer.reasoning.is_empty() {
        let texts = pieces(&answer.reasoning, answer)
            .into_iter()
            .map(|text| json!({"type": "thinking_delta", "thinking": text}));
        let signature = json!({"type": "signature_delta", "signature": "c2lnbmVkIGJ5IHRoZSBzY3JpcHQ="});
        block(
            json!({"type": "thinking", "thinking": "", "signature": ""}),
            texts.chain([signature]).collect(),
        );
    }
    if !answer.text.is_empty() {
        let texts =
            pieces(&answer.text, answer).into_iter().map(|text| json!({"type": "text_delta", "text": text}));
        block(json!({"type": "text", "text": ""}), texts.collect());
    }
    for (place, call) in answer.calls.iter().enumerate() {
        let texts = pieces(&call.text(), answer).into_iter();
        let deltas = texts.map(|text| json!({"type": "input_json_delta", "partial_json": text}));
        let id = id_of(call, place, "toolu_");
        block(json!({"type": "tool_use", "id": id, "name": call.name, "input": {}}), deltas.collect());
    }
    let reason = match (answer.is_cut_by_length, answer.calls.is_empty()) {
        (true, _) => "max_tokens",
        (false, true) => "end_turn",
        (false, false) => "tool_use",
    };
    let ended =
        json!({"output_tokens": usage.output, "output_tokens_details": {"thinking_tokens": usage.reasoning}});
    events.push(Event::typed(
        "message_delta",
        json!({"delta": {"stop_reason": reason, "stop_sequence": null}, "usage": ended}),
    ));
    events.push(Event::typed("message_stop", json!({})));
    events
}
