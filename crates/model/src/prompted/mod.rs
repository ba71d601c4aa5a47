//! Tool calls for models without native ones: the prompt describes the tools, and calls come back as JSON in the
//! text. If the server supports it, a schema constrains the text. Otherwise the text is parsed leniently, and the
//! model is asked again if it cannot be parsed.

mod read;
mod render;
mod schema;

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use async_trait::async_trait;
use futures::StreamExt;

use crate::Model;
use crate::error::ModelError;
use crate::events::{self, Emitter};
use crate::message::{Message, Part};
use crate::name::ModelName;
use crate::output::{Answer, ModelEvent, ModelStream, StopReason};
use crate::request::ModelRequest;
use crate::settings::ModelLimits;
use read::ParsedText;

/// How often the model is asked again after an unusable answer.
const MAX_REPAIRS: u32 = 2;

/// The current form of tool calls. Only moves forward: a server that lacks a feature does not gain it later.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum CallMode {
    /// Native tool calls, until the server reports that it has none.
    Native = 0,
    /// In the text, constrained by a schema.
    Schema = 1,
    /// In the text.
    Plain = 2,
}

/// After this many calls written as text, and none made natively, the model is assumed not to support native calls.
const TEXT_CALLS_BEFORE_SWITCH: u8 = 3;
/// The model has made a native call, so it supports them.
const NATIVE_CALLS_SEEN: u8 = u8::MAX;

/// A model whose tool calls are in its text.
pub(crate) struct Prompted {
    inner: Arc<dyn Model>,
    way: Arc<AtomicU8>,
    /// How many calls the model wrote as text, or [`NATIVE_CALLS_SEEN`]. All jobs of a server share a model: what one job
    /// makes it write must not change how the others are served.
    written: Arc<AtomicU8>,
}

impl Prompted {
    pub(crate) fn new(inner: Arc<dyn Model>, way: CallMode) -> Self {
        Self { inner, way: Arc::new(AtomicU8::new(way as u8)), written: Arc::default() }
    }
}

fn call_mode_from(number: u8) -> CallMode {
    match number {
        0 => CallMode::Native,
        1 => CallMode::Schema,
        _ => CallMode::Plain,
    }
}

#[async_trait]
impl Model for Prompted {
    fn name(&self) -> &ModelName {
        self.inner.name()
    }

    fn limits(&self) -> ModelLimits {
        let native_tools = call_mode_from(self.way.load(Ordering::Relaxed)) == CallMode::Native;
        ModelLimits { native_tools, ..self.inner.limits() }
    }

    async fn stream(&self, request: Arc<ModelRequest>) -> Result<ModelStream, ModelError> {
        let (inner, way, written) =
            (Arc::clone(&self.inner), Arc::clone(&self.way), Arc::clone(&self.written));
        Ok(events::generate(move |emitter| async move {
            loop {
                let now = call_mode_from(way.load(Ordering::Relaxed));
                let error = match ask(inner.as_ref(), &request, now, &emitter).await {
                    Err(error @ ModelError::Rejected { .. }) => error,
                    Ok(answer) if now == CallMode::Native => {
                        let answer = accept_text_call(answer, &request, &written);
                        if (TEXT_CALLS_BEFORE_SWITCH..NATIVE_CALLS_SEEN)
                            .contains(&written.load(Ordering::Relaxed))
                        {
                            way.fetch_max(CallMode::Schema as u8, Ordering::Relaxed);
                        }
                        return Ok(answer);
                    }
                    other => return other,
                };
                let Some(next) = next_call_mode(now, &request, &error) else { return Err(error) };
                tracing::info!(model = %inner.name(), ?next, "calls are made in another way from now on: {error}");
                way.fetch_max(next as u8, Ordering::Relaxed);
            }
        }))
    }
}

/// Recognizes a call that a model with native calls wrote as text, if the answer contains nothing else. A model that
/// does this repeatedly is switched to prompted calls. Only the first call counts: the model wrote the following ones
/// without seeing its result.
fn accept_text_call(answer: Answer, request: &ModelRequest, written: &AtomicU8) -> Answer {
    if answer.tool_calls().next().is_some() {
        written.store(NATIVE_CALLS_SEEN, Ordering::Relaxed);
        return answer;
    }
    let Some(call) = read::text_call(&answer.text(), request) else { return answer };
    let more = |count: u8| (count < NATIVE_CALLS_SEEN - 1).then(|| count + 1);
    let _ = written.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
    let thought = answer.parts.into_iter().filter(|part| matches!(part, Part::Reasoning(_)));
    let parts = thought.chain([Part::ToolCall(call)]).collect();
    Answer { parts, stop_reason: StopReason::ToolCalls, ..answer }
}

/// What to try next if a server rejects the request.
fn next_call_mode(now: CallMode, request: &ModelRequest, error: &ModelError) -> Option<CallMode> {
    let words = error.to_string().to_lowercase();
    match now {
        CallMode::Native
            if !request.tools.is_empty() && (words.contains("tool") || words.contains("jinja")) =>
        {
            Some(CallMode::Schema)
        }
        CallMode::Schema
            if ["response_format", "schema", "grammar", "json"].iter().any(|word| words.contains(word)) =>
        {
            Some(CallMode::Plain)
        }
        _ => None,
    }
}

async fn ask(
    inner: &dyn Model,
    request: &Arc<ModelRequest>,
    way: CallMode,
    emitter: &Emitter,
) -> Result<Answer, ModelError> {
    if way == CallMode::Native || request.tools.is_empty() {
        let request = match way {
            CallMode::Plain => Arc::new(ModelRequest { output_schema: None, ..ModelRequest::clone(request) }),
            CallMode::Native | CallMode::Schema => Arc::clone(request),
        };
        return pass_on(inner.stream(request).await?, emitter, ForwardEvents::All).await;
    }
    let mut asked = render::request(request, inner.limits().vision);
    if way == CallMode::Schema {
        asked.output_schema = Some(schema::output(request));
    }
    let mut before: Option<Answer> = None;
    for repair in 0..=MAX_REPAIRS {
        let answer =
            pass_on(inner.stream(Arc::new(asked.clone())).await?, emitter, ForwardEvents::Reasoning).await?;
        let (text, is_cut) = (answer.text(), answer.stop_reason == StopReason::MaxTokens);
        let answer = add_earlier_usage(before.take(), answer);
        if answer.tool_calls().next().is_some() {
            // The model supports native calls after all: they count, not the text beside them.
            let said =
                answer.parts.iter().filter(|part| !matches!(part, Part::Reasoning(_))).cloned().collect();
            return Ok(finished(answer, said, emitter).await);
        }
        match read::read(&text, request) {
            ParsedText::Valid(parts) => return Ok(finished(answer, parts, emitter).await),
            ParsedText::Invalid(why) if repair < MAX_REPAIRS && answer.stop_reason != StopReason::Refused => {
                let why = if is_cut { "it was cut off because it was too long" } else { why };
                asked.say(Message::assistant(vec![Part::Text(text)]));
                asked.say(Message::user(render::repair(why)));
                before = Some(answer);
            }
            ParsedText::Invalid(_) => return Ok(finished(answer, vec![Part::Text(text)], emitter).await),
        }
    }
    Err(ModelError::Malformed { model: inner.name().to_string(), detail: "no answer could be read".into() })
}

/// Adds usage and cost of the earlier attempts to the last one.
fn add_earlier_usage(before: Option<Answer>, answer: Answer) -> Answer {
    let Some(before) = before else { return answer };
    let cost = answer.cost.zip(before.cost).map(|(one, other)| one + other);
    Answer { usage: answer.usage + before.usage, cost, ..answer }
}

/// Replaces the text by the parsed parts, and emits them.
async fn finished(answer: Answer, said: Vec<Part>, emitter: &Emitter) -> Answer {
    let mut index = 0;
    let mut has_calls = false;
    for part in &said {
        match part {
            Part::Text(text) => emitter.emit(ModelEvent::Text(text.clone())).await,
            Part::ToolCall(call) => {
                let (name, arguments) = (call.name.clone(), call.arguments.to_string());
                emitter.emit(ModelEvent::ToolCall { index, name, arguments }).await;
                index += 1;
                has_calls = true;
            }
            Part::Image(_) | Part::Reasoning(_) | Part::ToolResult(_) => {}
        }
    }
    let thought = answer.parts.into_iter().filter(|part| matches!(part, Part::Reasoning(_)));
    let stop_reason = if has_calls { StopReason::ToolCalls } else { answer.stop_reason };
    Answer { parts: thought.chain(said).collect(), stop_reason, ..answer }
}

#[derive(PartialEq)]
enum ForwardEvents {
    All,
    Reasoning,
}

async fn pass_on(
    mut stream: ModelStream,
    emitter: &Emitter,
    show: ForwardEvents,
) -> Result<Answer, ModelError> {
    while let Some(event) = stream.next().await {
        match event? {
            ModelEvent::Answer(answer) => return Ok(*answer),
            event @ ModelEvent::Reasoning(_) => emitter.emit(event).await,
            event if show == ForwardEvents::All => emitter.emit(event).await,
            _ => {}
        }
    }
    let lost = crate::usage::Usage::default();
    Err(ModelError::Cut {
        model: "the model".into(),
        detail: "the stream ended without an answer".into(),
        lost,
    })
}
