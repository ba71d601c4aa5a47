//! Asks models in order: the first one, with retries where they may help, then the fallbacks.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use futures::StreamExt;
use tokio::time::Instant;

use crate::Model;
use crate::error::{ModelError, Retryable};
use crate::events::{self, Emitter};
use crate::name::ModelName;
use crate::output::{Answer, ModelEvent, ModelStream};
use crate::price::{Money, Price};
use crate::request::{Effort, ModelRequest};
use crate::retry::{Decision, decide};
use crate::settings::ModelLimits;
use crate::usage::Usage;

/// How long a model that failed is moved behind the others.
const FAILURE_COOLDOWN: Duration = Duration::from_secs(120);

/// A model of the chain.
pub(crate) struct ChainEntry {
    pub(crate) model: Arc<dyn Model>,
    /// For the tokens of failed attempts.
    pub(crate) price: Option<Price>,
    /// How much it thinks if a request does not say.
    effort: Option<Effort>,
    failed_at: Mutex<Option<Instant>>,
}

impl ChainEntry {
    pub(crate) fn new(model: Arc<dyn Model>, price: Option<Price>) -> Self {
        Self { model, price, effort: None, failed_at: Mutex::new(None) }
    }

    pub(crate) fn with_effort(self, effort: Option<Effort>) -> Self {
        Self { effort, ..self }
    }

    fn is_cooling_down(&self) -> bool {
        let at = *self.failed_at.lock().unwrap_or_else(PoisonError::into_inner);
        at.is_some_and(|at| at.elapsed() < FAILURE_COOLDOWN)
    }

    fn set_failed_at(&self, failed_at: Option<Instant>) {
        *self.failed_at.lock().unwrap_or_else(PoisonError::into_inner) = failed_at;
    }
}

/// A model with fallbacks. Its name and limits are those of the first model.
pub(crate) struct Chain {
    first: Arc<dyn Model>,
    entries: Arc<[ChainEntry]>,
    retries: u32,
    is_recorded: bool,
}

impl Chain {
    /// Creates a chain with at least one model.
    pub(crate) fn new(first: ChainEntry, rest: Vec<ChainEntry>, retries: u32) -> Self {
        let model = Arc::clone(&first.model);
        Self {
            first: model,
            entries: std::iter::once(first).chain(rest).collect(),
            retries,
            is_recorded: false,
        }
    }

    /// Sets whether the answers are scripted.
    pub(crate) fn recorded(self, is_recorded: bool) -> Self {
        Self { is_recorded, ..self }
    }
}

#[async_trait]
impl Model for Chain {
    fn name(&self) -> &ModelName {
        self.first.name()
    }

    fn limits(&self) -> ModelLimits {
        self.first.limits()
    }

    fn unpriced(&self) -> Option<&ModelName> {
        self.entries.iter().find(|entry| entry.price.is_none()).map(|entry| entry.model.name())
    }

    fn cost_at_most(&self, usage: &Usage) -> Option<Money> {
        let costs: Option<Vec<Money>> =
            self.entries.iter().map(|entry| entry.price.map(|price| price.of(usage))).collect();
        costs?.into_iter().max()
    }

    fn default_effort(&self) -> Option<Effort> {
        self.entries.first()?.effort
    }

    fn is_recorded(&self) -> bool {
        self.is_recorded
    }

    async fn stream(&self, request: Arc<ModelRequest>) -> Result<ModelStream, ModelError> {
        let run = ChainRequest {
            entries: Arc::clone(&self.entries),
            retries: self.retries,
            request,
            lost: Usage::default(),
            lost_cost: Money::default(),
        };
        Ok(events::generate(move |emitter| run.answer(emitter)))
    }
}

/// One request on its way through the chain.
struct ChainRequest {
    entries: Arc<[ChainEntry]>,
    retries: u32,
    request: Arc<ModelRequest>,
    lost: Usage,
    lost_cost: Money,
}

impl ChainRequest {
    /// Returns the answer of one of the models. If none answers, reports the lost tokens before the error.
    async fn answer(mut self, emitter: Emitter) -> Result<Answer, ModelError> {
        let answered = self.try_all(&emitter).await;
        if answered.is_err() && self.lost != Usage::default() {
            let is_priced = self.entries.iter().all(|entry| entry.price.is_some());
            let cost = is_priced.then_some(self.lost_cost);
            emitter.emit(ModelEvent::Lost { usage: self.lost, cost }).await;
        }
        answered
    }

    async fn try_all(&mut self, emitter: &Emitter) -> Result<Answer, ModelError> {
        let entries = Arc::clone(&self.entries);
        // Models that failed recently come last, but are still asked.
        let (back, front): (Vec<&ChainEntry>, Vec<&ChainEntry>) =
            entries.iter().partition(|entry| entry.is_cooling_down());
        let order: Vec<&ChainEntry> = front.into_iter().chain(back).collect();
        let mut attempt = 1;
        let mut first_error: Option<ModelError> = None;
        for (position, entry) in order.iter().enumerate() {
            let mut failures = 0;
            loop {
                let error = match self.ask(entry, emitter).await {
                    Ok(answer) => {
                        entry.set_failed_at(None);
                        return Ok(answer);
                    }
                    Err(error) => error,
                };
                failures += 1;
                attempt += 1;
                let is_smaller = position > 0 && matches!(error, ModelError::Overflow { .. });
                let decision = decide(&error, failures, self.retries, fastrand::f64());
                tracing::warn!(model = %entry.model.name(), code = error.code(), ?decision, "a model did not answer: {error}");
                let (next, wait) = match decision {
                    Decision::Retry(wait) => (Some(*entry), wait),
                    Decision::Fail if !is_smaller => return Err(first_error.unwrap_or(error)),
                    Decision::NextModel | Decision::Fail => {
                        entry.set_failed_at(Some(Instant::now()));
                        (order.get(position + 1).copied(), Duration::ZERO)
                    }
                };
                let is_retry = matches!(decision, Decision::Retry(_));
                let Some(next) = next else {
                    return Err(prefer_retryable(first_error, error));
                };
                let (model, reason) = (next.model.name().clone(), error.to_string());
                emitter.emit(ModelEvent::Restarted { model, reason, wait, attempt }).await;
                if !is_retry {
                    first_error = Some(prefer_retryable(first_error, error));
                    break;
                }
                tokio::time::sleep(wait).await;
            }
        }
        Err(first_error.unwrap_or(ModelError::NoModel { advice: "name one in the configuration".into() }))
    }

    /// Asks once; adds the tokens of a failed attempt to `lost`.
    async fn ask(&mut self, entry: &ChainEntry, emitter: &Emitter) -> Result<Answer, ModelError> {
        let result = match entry.model.stream(Arc::clone(&self.request)).await {
            Ok(stream) => pass_on(stream, emitter).await,
            Err(error) => Err(error),
        };
        match result {
            Ok(answer) => {
                let cost = answer.cost.map(|cost| cost + self.lost_cost);
                Ok(Answer { lost: self.lost + answer.lost, cost, ..answer })
            }
            Err(error) => {
                self.lost = self.lost + error.lost();
                self.lost_cost =
                    self.lost_cost + entry.price.map(|price| price.of(&error.lost())).unwrap_or_default();
                Err(error)
            }
        }
    }
}

/// Picks the error that may go away on retry, otherwise the first.
fn prefer_retryable(first_error: Option<ModelError>, error: ModelError) -> ModelError {
    match first_error {
        Some(first_error)
            if first_error.retryable() == Retryable::Later || error.retryable() != Retryable::Later =>
        {
            first_error
        }
        _ => error,
    }
}

async fn pass_on(mut stream: ModelStream, emitter: &Emitter) -> Result<Answer, ModelError> {
    while let Some(event) = stream.next().await {
        match event? {
            ModelEvent::Answer(answer) => return Ok(*answer),
            shown => emitter.emit(shown).await,
        }
    }
    Err(ModelError::Cut {
        model: "the model".into(),
        detail: "the stream ended without an answer".into(),
        lost: Usage::default(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::{StopReason, finish};

    /// Fails a number of times in the same way, then answers; records when it was asked.
    struct Faulty {
        name: ModelName,
        failures: usize,
        error: ModelError,
        asked_at: Mutex<Vec<Instant>>,
    }

    #[async_trait]
    impl Model for Faulty {
        fn name(&self) -> &ModelName {
            &self.name
        }

        fn limits(&self) -> ModelLimits {
            crate::catalogue::limits("")
        }

        async fn stream(&self, _: Arc<ModelRequest>) -> Result<ModelStream, ModelError> {
            let mut asked_at = self.asked_at.lock().unwrap();
            asked_at.push(Instant::now());
            if asked_at.len() <= self.failures {
                return Err(self.error.clone());
            }
            let answer = Answer {
                parts: Vec::new(),
                stop_reason: StopReason::End,
                usage: Usage::default(),
                lost: Usage::default(),
                model: self.name.clone(),
                cost: None,
            };
            Ok(events::generate(|_| async move { Ok(answer) }))
        }
    }

    async fn waits(
        failures: usize,
        error: ModelError,
        retries: u32,
    ) -> (Vec<Duration>, Result<Answer, ModelError>) {
        let asked_at = Mutex::default();
        let model = Arc::new(Faulty { name: ModelName::new("m"), failures, error, asked_at });
        let inner: Arc<dyn Model> = Arc::clone(&model) as Arc<dyn Model>;
        let chain = Chain::new(ChainEntry::new(inner, None), Vec::new(), retries);
        let result = finish(chain.stream(Arc::default()).await.unwrap()).await;
        let times = model.asked_at.lock().unwrap();
        (times.windows(2).map(|pair| pair[1] - pair[0]).collect(), result)
    }

    #[tokio::test(start_paused = true)]
    async fn delays_grow_with_jitter_until_an_answer() {
        let error =
            ModelError::Server { model: "m".into(), status: 500, retry_after: None, detail: String::new() };
        let (waits, result) = waits(4, error, 5).await;
        assert!(result.is_ok());
        for (wait, most) in waits.iter().zip([1.0, 2.0, 4.0, 8.0]) {
            assert!((most / 2.0..=most + 0.01).contains(&wait.as_secs_f64()), "{waits:?}");
        }
        assert_eq!(waits.len(), 4);
    }

    #[tokio::test(start_paused = true)]
    async fn retry_after_of_a_provider_is_respected() {
        let retry_after = Some(Duration::from_secs(30));
        let error = ModelError::RateLimited { model: "m".into(), retry_after, detail: String::new() };
        let (waits, result) = waits(2, error, 5).await;
        assert!(result.is_ok());
        assert!(waits.iter().all(|wait| (30.0..=31.01).contains(&wait.as_secs_f64())), "{waits:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn lost_tokens_are_reported_if_no_model_answers() {
        let lost = Usage { input: 10, output: 5, ..Usage::default() };
        let error = ModelError::Cut { model: "m".into(), detail: String::new(), lost };
        let asked_at = Mutex::default();
        let model = Arc::new(Faulty { name: ModelName::new("m"), failures: 9, error, asked_at });
        let price = Price { input: 1.0, cached_input: None, cache_write: None, output: 2.0, above: None };
        let chain = Chain::new(ChainEntry::new(model, Some(price)), Vec::new(), 2);
        let events: Vec<_> = chain.stream(Arc::default()).await.unwrap().collect().await;
        let usage = Usage { input: 30, output: 15, ..Usage::default() };
        let cost = Some(Money::from_nanodollars(60_000));
        assert_eq!(events[events.len() - 2], Ok(ModelEvent::Lost { usage, cost }));
        assert!(events[events.len() - 1].is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_model_fails_after_its_retries() {
        let error = ModelError::Silent {
            model: "m".into(),
            silence: Duration::from_secs(30),
            lost: Usage::default(),
        };
        let (waits, result) = waits(1000, error.clone(), 3).await;
        assert_eq!((waits.len(), result), (3, Err(error)));
    }
}
