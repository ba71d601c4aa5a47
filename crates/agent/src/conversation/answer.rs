//! A model's answer as a history record and as a prompt entry, and back to the parts that the provider gets.

use context::{Call, EntryBody};
use model::{Answer, Opaque, Part, Reasoning, ToolCall};
use serde_json::{Value, json};

use super::history::{Record, RecordKind, is_history_tool};
use crate::event::{ModelAnswered, SequencedEvent};

/// Renders an answer as a searchable record: reasoning, text and tool calls. Calls of the history tools come last,
/// outside the part that searches cover.
pub(super) fn answer_record(logged: &SequencedEvent, answered: &ModelAnswered, text: &str) -> Record {
    let mut rendered = String::new();
    for part in &answered.answer.parts {
        if let Part::Reasoning(reasoning) = part
            && !reasoning.text.is_empty()
        {
            rendered += &format!("[thought] {}\n", reasoning.text);
        }
    }
    rendered += text;
    let (history_calls, others): (Vec<&ToolCall>, Vec<&ToolCall>) =
        answered.calls().partition(|call| is_history_tool(&call.name));
    let line = |call: &ToolCall| format!("\n{}({}) as {}", call.name, call.arguments, call.id);
    rendered.extend(others.into_iter().map(line));
    let found_bytes = rendered.len();
    rendered.extend(history_calls.into_iter().map(line));
    let record = Record::new(logged.sequence, logged.time_ms, RecordKind::Answer, rendered);
    Record { found_bytes, ..record }
}

/// An answer as a prompt entry.
pub(crate) fn answer_body(answer: &Answer) -> EntryBody {
    let calls = answer.tool_calls().map(|call| Call {
        id: call.id.clone(),
        name: call.name.clone(),
        arguments: call.arguments.clone(),
    });
    EntryBody::Assistant {
        reasoning: provider_metadata(&answer.parts),
        text: answer.text(),
        calls: calls.collect(),
    }
}

/// The parts of an answer in their original order. [`provider_metadata`] recorded that order if it is not the
/// default: reasoning, text, calls.
pub(crate) fn assistant_parts(metadata: &[Value], text: &str, calls: &[Call]) -> Vec<Part> {
    let mut parts = Vec::new();
    let (mut rest, mut waiting) = (text, calls);
    let mut push_text = |parts: &mut Vec<Part>, bytes: usize| {
        // In a text that was shortened since, recorded positions may not be valid.
        let (piece, after) = rest.split_at(if rest.is_char_boundary(bytes) { bytes } else { rest.len() });
        if !piece.is_empty() {
            parts.push(Part::Text(piece.to_owned()));
        }
        rest = after;
    };
    let is_text_split = metadata.iter().any(|block| block.get(TEXT_BYTES).is_some());
    for block in metadata {
        if let Ok(reasoning) = serde_json::from_value::<Reasoning>(block["reasoning"].clone()) {
            parts.push(Part::Reasoning(reasoning));
        } else if let Some(bytes) = block[TEXT_BYTES].as_u64() {
            push_text(&mut parts, usize::try_from(bytes).unwrap_or(usize::MAX));
        } else if let Some(position) = waiting.iter().position(|call| block["call"] == call.id.as_str()) {
            if !is_text_split {
                push_text(&mut parts, usize::MAX);
            }
            let (before, after) = waiting.split_at(position);
            parts.extend(before.iter().map(|call| call_part(call, None)));
            let opaque = serde_json::from_value(block["opaque"].clone()).ok();
            parts.extend(after.first().map(|call| call_part(call, opaque)));
            waiting = after.get(1..).unwrap_or_default();
        }
    }
    push_text(&mut parts, usize::MAX);
    parts.extend(waiting.iter().map(|call| call_part(call, None)));
    if parts.is_empty() {
        // Providers reject a message without content.
        parts.push(Part::Text("(no answer)".into()));
    }
    parts
}

fn call_part(call: &Call, opaque: Option<Opaque>) -> Part {
    Part::ToolCall(ToolCall {
        id: call.id.clone(),
        name: call.name.clone(),
        arguments: call.arguments.clone(),
        opaque,
    })
}

/// JSON key: how many bytes of the text come next at this position of the answer.
const TEXT_BYTES: &str = "text_bytes";

/// What to keep of an answer besides its text and calls: the reasoning and the call metadata that the provider needs
/// back, and the order of all parts if it is not reasoning, text, calls.
fn provider_metadata(parts: &[Part]) -> Vec<Value> {
    let rank = |part: &Part| match part {
        Part::Reasoning(_) => 0,
        Part::Text(_) | Part::Image(_) | Part::ToolResult(_) => 1,
        Part::ToolCall(_) => 2,
    };
    let is_default_order = parts.is_sorted_by_key(rank);
    parts
        .iter()
        .filter_map(|part| match part {
            Part::Reasoning(reasoning) => Some(json!({ "reasoning": reasoning })),
            Part::ToolCall(call) => match &call.opaque {
                Some(opaque) => Some(json!({ "call": call.id, "opaque": opaque })),
                None => (!is_default_order).then(|| json!({ "call": call.id })),
            },
            Part::Text(text) => (!is_default_order).then(|| json!({ TEXT_BYTES: text.len() })),
            Part::Image(_) | Part::ToolResult(_) => None,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn thought(text: &str) -> Part {
        let opaque = Opaque { dialect: model::Dialect::Anthropic, data: json!({"signature": text}) };
        Part::Reasoning(Reasoning { text: text.into(), opaque })
    }

    fn called(id: &str, is_signed: bool) -> Part {
        let opaque = is_signed.then(|| Opaque { dialect: model::Dialect::Gemini, data: json!({"id": id}) });
        Part::ToolCall(ToolCall { id: id.into(), name: "ls".into(), arguments: json!({}), opaque })
    }

    #[test]
    fn answer_parts_keep_their_order() {
        let written = |text: &str| Part::Text(text.into());
        let answers = [
            vec![thought("a"), written("One."), called("1", false), called("2", false)],
            vec![thought("a"), called("1", true), called("2", true)],
            vec![thought("a"), called("1", false), thought("b"), called("2", false)],
            vec![
                thought("a"),
                written("Zwölf."),
                thought("b"),
                written("Two."),
                called("1", true),
                called("2", false),
            ],
            vec![written("One."), thought("a"), called("1", false), written("Two."), thought("b")],
            vec![called("1", false), written("after")],
        ];
        for parts in answers {
            let texts = parts
                .iter()
                .filter_map(|part| if let Part::Text(text) = part { Some(&**text) } else { None });
            let text: String = texts.collect();
            let calls: Vec<Call> = parts
                .iter()
                .filter_map(|part| if let Part::ToolCall(call) = part { Some(call) } else { None })
                .map(|call| Call { id: call.id.clone(), name: call.name.clone(), arguments: json!({}) })
                .collect();
            let metadata = provider_metadata(&parts);
            assert_eq!(assistant_parts(&metadata, &text, &calls), parts);
            // If the text was shortened since, nothing is lost or repeated.
            let cut: String = text.chars().take(3).collect();
            let again = assistant_parts(&metadata, &cut, &calls);
            let kept_text = again
                .iter()
                .filter_map(|part| if let Part::Text(text) = part { Some(&**text) } else { None });
            assert_eq!(kept_text.collect::<String>(), cut);
        }
    }
}
