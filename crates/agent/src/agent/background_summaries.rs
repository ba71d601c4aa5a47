//! Background summaries: while the agent works, a model summarizes what the next epoch will fold. The result and its
//! cost are logged as an event. Without a summary, the context engine uses its own extract.

use std::sync::Arc;
use std::time::{Duration, Instant};

use context::SummaryTask;
use model::{Effort, Message, Model, ModelError, ModelEvent, ModelRequest, Money, Usage};
use tokio::task::JoinSet;

use crate::budget;
use crate::conversation::Conversation;
use crate::event::{AgentEvent, SummaryCreated};

/// Time limit for one summary request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(300);
/// Output token limit, including the model's reasoning.
const MAX_OUTPUT_TOKENS: u32 = 4_000;
/// A summary is requested only while the remaining budget is at least this many times its cost.
const RESERVE: u32 = 4;
/// After this many consecutive unusable summaries, the model is not asked again: it is not capable of it.
const MAX_FAILURES: u32 = 3;
/// If nothing was due, look again only after the view has grown by this many tokens.
const RECHECK_TOKENS: u32 = 500;

/// Requests summaries, one at a time.
#[derive(Default)]
pub(super) struct Summaries {
    running: JoinSet<SummaryCreated>,
    /// What to record as the minimum cost if the running request does not finish.
    pending: Option<SummaryCreated>,
    /// The epoch and the size of the view when nothing was due.
    nothing_due: Option<(u32, u32)>,
}

impl Summaries {
    /// Requests the next due summary unless one is already in progress.
    pub(super) fn begin(&mut self, model: &Arc<dyn Model>, conversation: &Conversation, cache_key: &str) {
        if !self.running.is_empty() || conversation.failed_summaries() >= MAX_FAILURES {
            return;
        }
        let engine = conversation.engine();
        let size = (engine.epochs(), engine.tokens());
        if self.nothing_due.is_some_and(|(epoch, tokens)| epoch == size.0 && size.1 < tokens + RECHECK_TOKENS)
        {
            return;
        }
        let Some(task) = engine.next_summary(|input_hash| conversation.was_summarized(input_hash)) else {
            self.nothing_due = Some(size);
            return;
        };
        self.nothing_due = None;
        let prompt_tokens = engine.factor().real(context::tokens::count(&task.prompt));
        let usage = Usage {
            input: u64::from(prompt_tokens),
            output: u64::from(MAX_OUTPUT_TOKENS),
            ..Usage::default()
        };
        let (budget, spent) = (conversation.budget(), conversation.spent());
        if !budget::covers_requests(budget, spent, &usage, model.cost_at_most(&usage), RESERVE) {
            return;
        }
        let usage = Usage { input: u64::from(prompt_tokens), ..Usage::default() };
        self.pending = Some(SummaryCreated { usage, ..pending_summary(&**model, &task) });
        self.running.spawn(request_summary(Arc::clone(model), task, format!("{cache_key}-summary")));
    }

    /// Aborts the running request and returns the events that record its cost.
    pub(super) fn abandon(&mut self) -> Vec<AgentEvent> {
        let mut events = self.finished();
        if let Some(pending) = self.pending.take() {
            self.running.abort_all();
            let problem = Some("the work stopped before it came".to_owned());
            let lost = SummaryCreated { problem, abandoned: true, ..pending };
            events.push(AgentEvent::SummaryCreated(Box::new(lost)));
        }
        events
    }

    /// Returns the events of the requests that have finished since the last call.
    pub(super) fn finished(&mut self) -> Vec<AgentEvent> {
        let mut events = Vec::new();
        while let Some(joined) = self.running.try_join_next() {
            self.pending = None;
            if let Ok(made) = joined {
                events.push(AgentEvent::SummaryCreated(Box::new(made)));
            }
        }
        events
    }
}

/// Requests one summary. If it fails the checks, asks once more and includes the problems.
async fn request_summary(model: Arc<dyn Model>, task: SummaryTask, cache_key: String) -> SummaryCreated {
    let since = Instant::now();
    let mut made = pending_summary(&*model, &task);
    let answer = request_with_retry(&*model, &task, cache_key, &mut made);
    if tokio::time::timeout(REQUEST_TIMEOUT, answer).await.is_err() {
        made.problem = Some(format!("no answer within {} s", REQUEST_TIMEOUT.as_secs()));
    }
    made.duration_ms = u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX);
    made
}

/// The event before any answer has arrived.
fn pending_summary(model: &dyn Model, task: &SummaryTask) -> SummaryCreated {
    SummaryCreated {
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

async fn request_with_retry(
    model: &dyn Model,
    task: &SummaryTask,
    cache_key: String,
    made: &mut SummaryCreated,
) {
    let mut request = ModelRequest {
        messages: vec![Message::user(task.prompt.clone()).into()],
        max_output_tokens: Some(MAX_OUTPUT_TOKENS.min(model.limits().output_tokens)),
        effort: Some(Effort::Low),
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
    made: &mut SummaryCreated,
) -> Result<model::Answer, ModelError> {
    let stream = model.stream(Arc::new(request)).await?;
    let on_event = |event: &ModelEvent| {
        if let ModelEvent::Lost { usage, cost } = event {
            made.usage = made.usage + *usage;
            made.cost = sum(made.cost, *cost);
        }
    };
    model::read_stream(stream, on_event).await
}

fn sum(one: Option<Money>, other: Option<Money>) -> Option<Money> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one + other),
        (one, other) => one.or(other),
    }
}
