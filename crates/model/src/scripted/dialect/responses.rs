//! Events of the responses API.

use serde_json::{Value, json};

use super::{Event, id_of, pieces};
use crate::scripted::script::ScriptedAnswer;
use crate::usage::Usage;

pub(super) fn events(answer: &ScriptedAnswer, model: &str, usage: Usage) -> Vec<Event> {
    let mut response =
        json!({"id": "resp_scripted", "object": "response", "model": model, "status": "in_progress"});
    let mut events = vec![Event::typed("response.created", json!({"response": response}))];
    let mut output: Vec<Value> = Vec::new();
    let mut item = |begun: Value, deltas: Vec<Event>, done: Value| {
        let index = output.len();
        events
            .push(Event::typed("response.output_item.added", json!({"output_index": index, "item": begun})));
        events.extend(deltas);
        events.push(Event::typed("response.output_item.done", json!({"output_index": index, "item": done})));
        output.push(done);
    };
    if !answer.reasoning.is_empty() {
        let texts = pieces(&answer.reasoning, answer).into_iter();
        let deltas = texts.map(|text| {
            Event::typed("response.reasoning_summary_text.delta", json!({"output_index": 0, "delta": text}))
        });
        let begun = json!({"type": "reasoning", "id": "rs_scripted", "summary": []});
        let mut done = begun.clone();
        done["summary"] = json!([{"type": "summary_text", "text": answer.reasoning}]);
        done["encrypted_content"] = json!("c2lnbmVkIGJ5IHRoZSBzY3JpcHQ=");
        item(begun, deltas.collect(), done);
    }
    if !answer.text.is_empty() {
        let texts = pieces(&answer.text, answer).into_iter();
        let deltas = texts.map(|text| {
            Event::typed("response.output_text.delta", json!({"output_index": 1, "delta": text}))
        });
        let begun = json!({"type": "message", "id": "msg_scripted", "role": "assistant", "content": []});
        let mut done = begun.clone();
        done["content"] = json!([{"type": "output_text", "text": answer.text, "annotations": []}]);
        item(begun, deltas.collect(), done);
    }
    let before = usize::from(!answer.reasoning.is_empty()) + usize::from(!answer.text.is_empty());
    for (place, call) in answer.calls.iter().enumerate() {
        let texts = pieces(&call.text(), answer).into_iter();
        let deltas = texts.map(|text| {
            Event::typed(
                "response.function_call_arguments.delta",
                json!({"output_index": before + place, "delta": text}),
            )
        });
        let begun = json!({"type": "function_call", "id": format!("fc_{place}"), "call_id": id_of(call, place, "call_"), "name": call.name, "arguments": ""});
        let mut done = begun.clone();
        done["arguments"] = json!(call.text());
        item(begun, deltas.collect(), done);
    }
    let name = if answer.is_cut_by_length { "response.incomplete" } else { "response.completed" };
    response["status"] = json!(name.trim_start_matches("response."));
    response["output"] = json!(output);
    if answer.is_cut_by_length {
        response["incomplete_details"] = json!({"reason": "max_output_tokens"});
    }
    response["usage"] = json!({
        "input_tokens": usage.prompt(),
        "input_tokens_details": {"cached_tokens": usage.cached_input, "cache_write_tokens": usage.cache_write},
        "output_tokens": usage.output,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning},
        "total_tokens": usage.total(),
    });
    events.push(Event::typed(name, json!({"response": response})));
    events
}
