//! One request to the model: what is sent, what comes back and what is logged.

use std::sync::Arc;
use std::time::Instant;

use context::{Content, EntryBody, View};
use model::{Answer, Image, ModelError, ModelEvent, ModelLimits, Money, Part, Usage};
use protocol::CallKey;

use super::{Agent, RunOutcome, out_of_budget};
use crate::budget;
use crate::conversation::{PROCESS_TOOL, answer_body};
use crate::event::{AgentEvent, ModelAnswerLost, ModelAnswered, TurnStarted, call_id};
use crate::host::{Host, Stopped};
use crate::prompt::{self, StatusInputs};

/// How many times in a row an overlong prompt is shortened before the job waits for a person.
const MAX_OVERFLOWS: u32 = 4;

impl Agent {
    /// Asks the model and logs its answer. Returns `Some` if the job must wait.
    pub(super) async fn ask(&mut self, host: &dyn Host) -> Result<Option<RunOutcome>, Stopped> {
        let processes = self.process_lines(host).await?;
        let status = prompt::status_text(&StatusInputs {
            conversation: &self.conversation,
            settings: &self.settings,
            worked_s: host.worked().as_secs(),
            time: &prompt::clock_text(host.now_ms()),
            toolbox: &self.toolbox,
            is_weak: prompt::is_weak(&self.limits),
            missing_tools: &self.external_notes,
            processes: &processes,
        });
        let view = self.conversation.engine().view().with_volatile(&status);
        self.load_pictures(&view, host).await?;
        let (prompt_tokens, segments) = (view.tokens, view.segments);
        let max_output_tokens = match self.answer_tokens(prompt_tokens) {
            Ok(most) => most,
            Err(reason) => return Ok(Some(out_of_budget(reason))),
        };
        self.messages.rebuild_messages(segments, &self.pictures);
        let mut request = prompt::request_of(&self.messages, &self.system, &self.specs);
        request.cache_key = Some(self.cache_key.clone());
        request.max_output_tokens = Some(max_output_tokens);
        request.effort = self.settings.effort.or_else(|| self.model.default_effort());
        let request = Arc::new(request);
        host.show(Arc::clone(&request), &self.conversation);
        let turn = self.conversation.turn() + 1;
        let model = self.model.name().to_string();
        let started = TurnStarted { turn, model: model.clone(), prompt_tokens, status };
        let read = self.conversation.engine().newest();
        host.record(vec![AgentEvent::TurnStarted(started)]).await?;
        self.apply_new_events(host).await?;
        if self.conversation.engine().newest() != read {
            // Something came since the prompt was built. The log says that this turn has read it, so build it again.
            return Ok(None);
        }
        let since = Instant::now();
        let time_left = self.time_left(host);
        let mut lost = None;
        let answered = tokio::select! {
            answered = self.stream(turn, request, host, &mut lost) => answered,
            stopped = host.must_stop() => return Err(stopped),
            () = tokio::time::sleep(time_left.unwrap_or_default()), if time_left.is_some() => {
                return Ok(Some(self.time_is_over(host)));
            }
        };
        if let (Err(error), Some((usage, cost))) = (&answered, lost) {
            let lost =
                ModelAnswerLost { turn, model: model.clone(), usage, cost, problem: error.to_string() };
            host.record(vec![AgentEvent::ModelAnswerLost(Box::new(lost))]).await?;
            self.apply_new_events(host).await?;
            if let Some(ending) = self.budget_ending(host) {
                return Ok(Some(ending));
            }
        }
        match answered {
            Ok(answer) => {
                self.overflows = 0;
                self.told_ends.extend(self.ends_in_prompt.drain(..));
                let recorded = self.model.is_recorded();
                let mut events = self.summaries().finished();
                events.extend(self.correction(&answer, prompt_tokens));
                let answer = with_own_ids(answer, turn);
                let answered = ModelAnswered {
                    turn,
                    tokens: Some(answer_body(&answer).tokens()),
                    answer,
                    prompt_tokens,
                    duration_ms: u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX),
                    recorded,
                };
                events.push(AgentEvent::ModelAnswered(Box::new(answered)));
                host.record(events).await?;
                Ok(None)
            }
            Err(ModelError::Overflow { limit, .. }) if self.overflows < MAX_OVERFLOWS => {
                self.overflows += 1;
                let limit_tokens = limit.and_then(|limit| u32::try_from(limit).ok());
                host.record(vec![AgentEvent::ContextChanged(EntryBody::Tighten { limit_tokens })]).await?;
                Ok(None)
            }
            Err(error) => Ok(Some(RunOutcome::Paused {
                code: error.code().to_owned(),
                reason: error.to_string(),
                retry_after: error.is_retryable().then(|| error.retry_after().unwrap_or_default()),
            })),
        }
    }

    /// The lines of the status about background processes. A process that has ended is listed until the model has asked
    /// for its output; without the tool for that, it is listed once.
    async fn process_lines(&mut self, host: &dyn Host) -> Result<Vec<String>, Stopped> {
        let can_ask = self.toolbox.find(PROCESS_TOOL).is_some();
        let mut lines = Vec::new();
        self.ends_in_prompt.clear();
        for process in self.conversation.processes().values() {
            let end = host.process_end(CallKey::new(process.handle.clone(), 1)).await?;
            if end.is_some() && !can_ask {
                if self.told_ends.contains(&process.handle) {
                    continue;
                }
                self.ends_in_prompt.push(process.handle.clone());
            }
            lines.push(prompt::process_line(process, end.as_deref(), can_ask));
        }
        Ok(lines)
    }

    /// The output token limit of the next request, or an error text if the budget does not cover the request.
    fn answer_tokens(&self, prompt_tokens: u32) -> Result<u32, String> {
        let (budget, spent) = (self.conversation.budget(), self.conversation.spent());
        let cost = |usage: &Usage| self.model.cost_at_most(usage);
        let most = budget::answer_tokens(budget, spent, prompt_tokens, cost)
            .map_err(|problem| format!("{problem}. Resume the job with a larger budget; nothing is lost"))?;
        let engine = self.conversation.engine();
        // A rejected prompt has shown that the window is smaller than it was said to be.
        let missing = self.window.budget_tokens.saturating_sub(engine.budget_tokens());
        let context_tokens = self.limits.context_tokens.saturating_sub(missing);
        let limits = ModelLimits { context_tokens, ..self.limits };
        Ok(budget::output_limit(&limits, engine.factor().real(prompt_tokens), most))
    }

    /// Loads the images that this view shows and drops all others.
    async fn load_pictures(&mut self, view: &View, host: &dyn Host) -> Result<(), Stopped> {
        let mut held = std::mem::take(&mut self.pictures);
        for image in view.segments.iter().flat_map(|segment| images_of(&segment.content)) {
            let kept = match held.remove(&image.digest) {
                Some(kept) => Some(kept),
                None if self.pictures.contains_key(&image.digest) => None,
                None => host
                    .picture(&image.digest)
                    .await?
                    .map(|bytes| Image { media_type: image.media_type.clone(), bytes }),
            };
            if let Some(kept) = kept {
                self.pictures.insert(image.digest.clone(), kept);
            }
        }
        Ok(())
    }

    /// Streams the answer to live viewers and returns it as a whole. If no answer arrives, `lost` holds the usage
    /// that must be paid anyway.
    async fn stream(
        &self,
        turn: u64,
        request: Arc<model::ModelRequest>,
        host: &dyn Host,
        lost: &mut Option<(Usage, Option<Money>)>,
    ) -> Result<Answer, ModelError> {
        let stream = self.model.stream(request).await?;
        let on_event = |event: &ModelEvent| {
            if let ModelEvent::Lost { usage, cost } = event {
                *lost = Some((*usage, *cost));
            }
            host.hear(turn, event);
        };
        model::read_stream(stream, on_event).await
    }

    /// Derives a correction of our token count from the provider's reported usage, if it is new. Overcounting is
    /// harmless, so only undercounting is corrected.
    fn correction(&self, answer: &Answer, our_tokens: u32) -> Vec<AgentEvent> {
        let ours = u64::from(our_tokens);
        let body = self.conversation.engine().correction(answer.usage.prompt().max(ours), ours);
        body.map(AgentEvent::ContextChanged).into_iter().collect()
    }
}

fn images_of(content: &Content) -> &[context::Image] {
    match content {
        Content::Text { images, .. } | Content::Result { images, .. } => images,
        Content::Fixed | Content::Assistant { .. } => &[],
    }
}

/// Assigns call ids that are unique within the job: models reuse ids or omit them.
fn with_own_ids(mut answer: Answer, turn: u64) -> Answer {
    let mut number = 0;
    for part in &mut answer.parts {
        if let Part::ToolCall(call) = part {
            number += 1;
            call.id = call_id(turn, number);
        }
    }
    answer
}
