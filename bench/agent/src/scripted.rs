//! A model that gives prepared answers and counts each prompt that it gets.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use context::tokens;
use futures::StreamExt as _;
use model::{
    Answer, Message, Model, ModelError, ModelEvent, ModelLimits, ModelName, ModelRequest, ModelStream, Money,
    Part, ResultPart, Role, StopReason, ToolCall, Usage,
};
use serde_json::Value;

/// One answer: what the model says, and its calls.
#[derive(Debug, Clone)]
pub(crate) struct Turn {
    pub(crate) text: String,
    pub(crate) calls: Vec<(&'static str, Value)>,
}

/// The size of one prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Prompt {
    pub(crate) tokens: u64,
    /// How many of them stand at the beginning of the prompt before, too.
    pub(crate) cached: u64,
}

pub(crate) struct ScriptedModel {
    name: ModelName,
    window: u32,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    turns: VecDeque<Turn>,
    prompts: Vec<Prompt>,
    /// The pieces of the newest prompt.
    pieces: Vec<String>,
}

impl ScriptedModel {
    pub(crate) fn new(window: u32, turns: Vec<Turn>) -> Self {
        let state = State { turns: turns.into(), ..State::default() };
        Self { name: ModelName::new("bench/scripted"), window, state: Mutex::new(state) }
    }

    pub(crate) fn prompts(&self) -> Vec<Prompt> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).prompts.clone()
    }
}

#[async_trait]
impl Model for ScriptedModel {
    fn name(&self) -> &ModelName {
        &self.name
    }

    fn limits(&self) -> ModelLimits {
        ModelLimits {
            context_tokens: self.window,
            output_tokens: 8_000,
            vision: false,
            native_tools: true,
            reasoning: false,
        }
    }

    fn cost_at_most(&self, _: &Usage) -> Option<Money> {
        Some(Money::default())
    }

    async fn stream(&self, request: Arc<ModelRequest>) -> Result<ModelStream, ModelError> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let pieces = pieces_of(&request);
        let prompt = prompt_after(&state.pieces, &pieces);
        state.prompts.push(prompt);
        state.pieces = pieces;
        let turn = state.turns.pop_front().unwrap_or(Turn { text: "I am done.".into(), calls: Vec::new() });
        let usage = Usage {
            input: prompt.tokens - prompt.cached,
            cached_input: prompt.cached,
            output: 1,
            ..Usage::default()
        };
        let answer = answer_of(turn, self.name.clone(), usage);
        Ok(futures::stream::iter([Ok(ModelEvent::Answer(Box::new(answer)))]).boxed())
    }
}

fn answer_of(turn: Turn, model: ModelName, usage: Usage) -> Answer {
    let calls = turn.calls.into_iter().enumerate().map(|(index, (name, arguments))| {
        let id = format!("call-{index}");
        Part::ToolCall(ToolCall { id, name: name.to_owned(), arguments, opaque: None })
    });
    Answer {
        parts: std::iter::once(Part::Text(turn.text)).chain(calls).collect(),
        stop_reason: StopReason::ToolCalls,
        usage,
        lost: Usage::default(),
        model,
        cost: Some(Money::default()),
    }
}

/// A prompt in the order in which providers read it: tools, system prompt, messages.
fn pieces_of(request: &ModelRequest) -> Vec<String> {
    let tools = request.tools.iter().map(|tool| serde_json::to_string(tool).unwrap_or_default());
    let messages = request.messages.iter().map(|message| piece_of(message));
    tools.chain([request.system.to_string()]).chain(messages).collect()
}

fn piece_of(message: &Message) -> String {
    let mut text = String::from(if message.role == Role::User { "user\n" } else { "assistant\n" });
    for part in &message.parts {
        match part {
            Part::Text(words) => text += words,
            Part::ToolCall(call) => text += &format!("{} {} {}", call.id, call.name, call.arguments),
            Part::ToolResult(result) => {
                text += &result.id;
                for part in &result.parts {
                    if let ResultPart::Text(words) = part {
                        text += words;
                    }
                }
            }
            Part::Image(_) | Part::Reasoning(_) => {}
        }
        text.push('\n');
    }
    text
}

fn prompt_after(before: &[String], pieces: &[String]) -> Prompt {
    let count = |text: &str| u64::from(tokens::count(text));
    let same = before.iter().zip(pieces).take_while(|(old, new)| old == new).count();
    let mut cached: u64 = pieces[..same].iter().map(|piece| count(piece)).sum();
    if let (Some(old), Some(new)) = (before.get(same), pieces.get(same)) {
        cached += count(common_start(old, new));
    }
    let tokens: u64 = pieces.iter().map(|piece| count(piece)).sum();
    // A piece that is cut may count more than its share.
    Prompt { tokens, cached: cached.min(tokens) }
}

fn common_start<'a>(old: &str, new: &'a str) -> &'a str {
    let same = old.chars().zip(new.chars()).take_while(|(old, new)| old == new);
    let bytes: usize = same.map(|(letter, _)| letter.len_utf8()).sum();
    new.get(..bytes).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces(list: &[&str]) -> Vec<String> {
        list.iter().map(|text| (*text).to_owned()).collect()
    }

    #[test]
    fn only_the_common_beginning_counts_as_cached() {
        let first = pieces(&["tools", "system", "one two three"]);
        assert_eq!(prompt_after(&[], &first).cached, 0);
        let grown = pieces(&["tools", "system", "one two three", "four"]);
        let prompt = prompt_after(&first, &grown);
        assert_eq!(prompt.tokens - prompt.cached, u64::from(tokens::count("four")));
        let changed = pieces(&["other tools", "system", "one two three", "four"]);
        assert_eq!(prompt_after(&grown, &changed).cached, 0);
        assert_eq!(common_start("größe", "größer"), "größe");
    }
}
