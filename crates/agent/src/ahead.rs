//! Background summaries: while the agent works, a model summarizes what the next epoch will fold. The result and its
//! cost are logged as an event. Without a summary, the context engine uses its own extract.

use std::sync::Arc;
use std::time::{Duration, Instant};

use context::SummaryTask;
use model::{Effort, Message, Model, ModelError, ModelEvent, ModelRequest, Money, Usage};
use tokio::task::JoinSet;

use crate::allowance;
use crate::conversation::Conversation;
use crate::event::{AgentEvent, SummaryMade};

/// Time limit for one summary request.
const PATIENCE: Duration = Duration::from_secs(300);
/// Output token limit, including the model's reasoning.
const MOST_OUTPUT_TOKENS: u32 = 4_000;
/// A summary is requested only while the remaining budget is at least this many times its cost.
const RESERVE: u32 = 4;
/// After this many consecutive unusable summaries, the model is not asked again: it is not capable of it.
const MOST_FAILURES: u32 = 3;
/// If nothing was due, look again only after the view has grown by this many tokens.
const LOOK_AGAIN_TOKENS: u32 = 500;

/// Requests summaries, one at a time.
#[derive(Default)]
pub(crate) struct Summaries {
    running: JoinSet<SummaryMade>,
    /// What to record as the minimum cost if the running request does not finish.
    asked: Option<SummaryMade>,
    /// The epoch and the size of the view when nothing was due.
    nothing_due: Option<(u32, u32)>,
}

impl Summaries {
    /// Requests the next due summary unless one is already in progress.
    pub(crate) fn begin(&mut self, model: &Arc<dyn Model>, conversation: &Conversation, cache_key: &str) {
        if !self.running.is_empty() || conversation.failed_summaries() >= MOST_FAILURES {
            return;
        }
        let engine = conversation.engine();
        let size = (engine.epochs(), engine.tokens());
        if self
            .nothing_due
            .is_some_and(|(epoch, tokens)| epoch == size.0 && size.1 < tokens + LOOK_AGAIN_TOKENS)
        {
            return;
        }
        let Some(task) = engine.next_summary(|input_hash| conversation.was_summed_up(input_hash)) else {
            self.nothing_due = Some(size);
            return;
        };
        self.nothing_due = None;
        let prompt_tokens = engine.factor().real(context::tokens::count(&task.prompt));
        let usage = Usage {
            input: u64::from(prompt_tokens),
            output: u64::from(MOST_OUTPUT_TOKENS),
            ..Usage::default()
        };
        let (budget, spent) = (conversation.budget(), conversation.spent());
        if !allowance::affords(budget, spent, &usage, model.cost_at_most(&usage), RESERVE) {
            return;
        }
        let usage = Usage { input: u64::from(prompt_tokens), ..Usage::default() };
        self.asked = Some(SummaryMade { usage, ..asked_of(&**model, &task) });
        self.running.spawn(make(Arc::clone(model), task, format!("{cache_key}-summary")));
    }

    /// Aborts the running request and returns the events that record its cost.
    pub(crate) fn abandon(&mut self) -> Vec<AgentEvent> {
        let mut events = self.finished();
        if let Some(asked) = self.asked.take() {
            self.running.abort_all();
            let problem = Some("the work stopped before it came".to_owned());
            let lost = SummaryMade { problem, abandoned: true, ..asked };
            events.push(AgentEvent::SummaryMade(Box::new(lost)));
        }
        events
    }

    /// Returns the events of the requests that have finished since the last call.
    pub(crate) fn finished(&mut self) -> Vec<AgentEvent> {
        let mut events = Vec::new();
        while let Some(joined) = self.running.try_join_next() {
            self.asked = None;
            if let Ok(made) = joined {
                events.push(AgentEvent::SummaryMade(Box::new(made)));
            }
        }
        events
    }
}

/// Requests one summary. If it fails the checks, asks once more and includes the problems.
async fn make(model: Arc<dyn Model>, task: SummaryTask, cache_key: String) -> SummaryMade {
    let since = Instant::now();
    let mut made = asked_of(&*model, &task);
    let asking = ask_twice(&*model, &task, cache_key, &mut made);
    if tokio::time::timeout(PATIENCE, asking).await.is_err() {
        made.problem = Some(format!("no answer within {} s", PATIENCE.as_secs()));
    }
    made.duration_ms = u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX);
    made
}

/// The event before any answer has arrived.
fn asked_of(model: &dyn Model, task: &SummaryTask) -> SummaryMade {
    SummaryMade {
        range: task.range,
        input_hash: task.input_hash.clone(),
        model: model.name().to_string(),
        usage: Usage::default(),
        cost: None,
        duration_ms: 0,
        summary: None,
        problem: None,
        abandoned: false,
    }
}

async fn ask_twice(model: &dyn Model, task: &SummaryTask, cache_key: String, made: &mut SummaryMade) {
    let mut request = ModelRequest {
        messages: vec![Message::user(task.prompt.clone()).into()],
        max_output_tokens: Some(MOST_OUTPUT_TOKENS.min(model.limits().output_tokens)),
        effort: Effort::Low,
        cache_key: Some(cache_key),
        ..ModelRequest::default()
    };
    for _ in 0..2 {
        let answer = match ask(model, request.clone(), made).await {
            Ok(answer) => answer,
            Err(error) => {
                made.problem = Some(error.to_string());
                return;
            }
        };
        made.usage = made.usage + answer.usage + answer.lost;
        made.cost = sum(made.cost, answer.cost);
        made.model = answer.model.to_string();
        match task.check(&answer.text()) {
            Ok(summary) => {
                (made.summary, made.problem) = (Some(summary), None);
                return;
            }
            Err(fault) => {
                request.say(Message::assistant(answer.parts));
                request.say(Message::user(format!("That cannot be used: {fault}. Write it again.")));
                made.problem = Some(fault.to_string());
            }
        }
    }
}

/// Asks the model. Usage lost on a failed attempt is added to the cost.
async fn ask(
    model: &dyn Model,
    request: ModelRequest,
    made: &mut SummaryMade,
) -> Result<model::Answer, ModelError> {
    let stream = model.stream(Arc::new(request)).await?;
    let hear = |event: &ModelEvent| {
        if let ModelEvent::Lost { usage, cost } = event {
            made.usage = made.usage + *usage;
            made.cost = sum(made.cost, *cost);
        }
    };
    model::listen(stream, hear).await
}

fn sum(one: Option<Money>, other: Option<Money>) -> Option<Money> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one + other),
        (one, other) => one.or(other),
    }
}
