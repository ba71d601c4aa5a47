//! Asks models in order: the first one, with retries where they may help, then the fallbacks.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use futures::StreamExt;
use tokio::time::Instant;

use crate::Model;
use crate::answer::{Answer, ModelEvent, ModelStream};
use crate::error::{ModelError, Retryable};
use crate::events::{self, Emitter};
use crate::name::ModelName;
use crate::price::{Money, Price};
use crate::request::ModelRequest;
use crate::retry::{Decision, decide};
use crate::settings::ModelLimits;
use crate::usage::Usage;

/// How long a model that failed is moved behind the others.
const STANDS_BACK: Duration = Duration::from_secs(120);

/// A model of the chain.
pub(crate) struct Link {
    pub(crate) model: Arc<dyn Model>,
    /// For the tokens of failed attempts.
    pub(crate) price: Option<Price>,
    given_up_at: Mutex<Option<Instant>>,
}

impl Link {
    pub(crate) fn new(model: Arc<dyn Model>, price: Option<Price>) -> Self {
        Self { model, price, given_up_at: Mutex::new(None) }
    }

    fn stands_back(&self) -> bool {
        let at = *self.given_up_at.lock().unwrap_or_else(PoisonError::into_inner);
        at.is_some_and(|at| at.elapsed() < STANDS_BACK)
    }

    fn remember(&self, given_up_at: Option<Instant>) {
        *self.given_up_at.lock().unwrap_or_else(PoisonError::into_inner) = given_up_at;
    }
}

/// A model with fallbacks. Its name and limits are those of the first model.
pub(crate) struct Chain {
    first: Arc<dyn Model>,
    links: Arc<[Link]>,
    retries: u32,
    is_recorded: bool,
}

impl Chain {
    /// Creates a chain with at least one model.
    pub(crate) fn new(first: Link, rest: Vec<Link>, retries: u32) -> Self {
        let model = Arc::clone(&first.model);
        Self {
            first: model,
            links: std::iter::once(first).chain(rest).collect(),
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
        self.links.iter().find(|link| link.price.is_none()).map(|link| link.model.name())
    }

    fn cost_at_most(&self, usage: &Usage) -> Option<Money> {
        let costs: Option<Vec<Money>> =
            self.links.iter().map(|link| link.price.map(|price| price.of(usage))).collect();
        costs?.into_iter().max()
    }

    fn is_recorded(&self) -> bool {
        self.is_recorded
    }

    async fn stream(&self, request: Arc<ModelRequest>) -> Result<ModelStream, ModelError> {
        let run = Run {
            links: Arc::clone(&self.links),
            retries: self.retries,
            request,
            lost: Usage::default(),
            lost_cost: Money::default(),
        };
        Ok(events::generate(move |emitter| run.answer(emitter)))
    }
}

/// One request on its way through the chain.
struct Run {
    links: Arc<[Link]>,
    retries: u32,
    request: Arc<ModelRequest>,
    lost: Usage,
    lost_cost: Money,
}

impl Run {
    /// Returns the answer of one of the models. If none answers, reports the lost tokens before the error.
    async fn answer(mut self, emitter: Emitter) -> Result<Answer, ModelError> {
        let answered = self.ask_all(&emitter).await;
        if answered.is_err() && self.lost != Usage::default() {
            let is_priced = self.links.iter().all(|link| link.price.is_some());
            let cost = is_priced.then_some(self.lost_cost);
            emitter.emit(ModelEvent::Lost { usage: self.lost, cost }).await;
        }
        answered
    }

    async fn ask_all(&mut self, emitter: &Emitter) -> Result<Answer, ModelError> {
        let links = Arc::clone(&self.links);
        // Models that failed recently come last, but are still asked.
        let (back, front): (Vec<&Link>, Vec<&Link>) = links.iter().partition(|link| link.stands_back());
        let order: Vec<&Link> = front.into_iter().chain(back).collect();
        let mut attempt = 1;
        let mut told: Option<ModelError> = None;
        for (position, link) in order.iter().enumerate() {
            let mut failures = 0;
            loop {
                let error = match self.ask(link, emitter).await {
                    Ok(answer) => {
                        link.remember(None);
                        return Ok(answer);
                    }
                    Err(error) => error,
                };
                failures += 1;
                attempt += 1;
                let is_smaller = position > 0 && matches!(error, ModelError::Overflow { .. });
                let decision = decide(&error, failures, self.retries, fastrand::f64());
                tracing::warn!(model = %link.model.name(), code = error.code(), ?decision, "a model did not answer: {error}");
                let (next, wait) = match decision {
                    Decision::Again(wait) => (Some(*link), wait),
                    Decision::Stop if !is_smaller => return Err(told.unwrap_or(error)),
                    Decision::Next | Decision::Stop => {
                        link.remember(Some(Instant::now()));
                        (order.get(position + 1).copied(), Duration::ZERO)
                    }
                };
                let is_again = matches!(decision, Decision::Again(_));
                let Some(next) = next else {
                    return Err(worth_telling(told, error));
                };
                let (model, reason) = (next.model.name().clone(), error.to_string());
                emitter.emit(ModelEvent::Restarted { model, reason, wait, attempt }).await;
                if !is_again {
                    told = Some(worth_telling(told, error));
                    break;
                }
                tokio::time::sleep(wait).await;
            }
        }
        Err(told.unwrap_or(ModelError::NoModel { advice: "name one in the configuration".into() }))
    }

    /// Asks once; adds the tokens of a failed attempt to `lost`.
    async fn ask(&mut self, link: &Link, emitter: &Emitter) -> Result<Answer, ModelError> {
        let result = match link.model.stream(Arc::clone(&self.request)).await {
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
                    self.lost_cost + link.price.map(|price| price.of(&error.lost())).unwrap_or_default();
                Err(error)
            }
        }
    }
}

/// Picks the error that may go away on retry, otherwise the first.
fn worth_telling(told: Option<ModelError>, error: ModelError) -> ModelError {
    match told {
        Some(told) if told.retryable() == Retryable::Later || error.retryable() != Retryable::Later => told,
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
    use crate::answer::{StopReason, finish};

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
        let chain = Chain::new(Link::new(inner, None), Vec::new(), retries);
        let result = finish(chain.stream(Arc::default()).await.unwrap()).await;
        let times = model.asked_at.lock().unwrap();
        (times.windows(2).map(|pair| pair[1] - pair[0]).collect(), result)
    }

    #[tokio::test(start_paused = true)]
    async fn waits_grow_with_jitter_until_the_answer_comes() {
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
    async fn the_wait_that_a_provider_asks_for_is_kept() {
        let retry_after = Some(Duration::from_secs(30));
        let error = ModelError::RateLimited { model: "m".into(), retry_after, detail: String::new() };
        let (waits, result) = waits(2, error, 5).await;
        assert!(result.is_ok());
        assert!(waits.iter().all(|wait| (30.0..=31.01).contains(&wait.as_secs_f64())), "{waits:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_lost_is_told_where_no_answer_comes() {
        let lost = Usage { input: 10, output: 5, ..Usage::default() };
        let error = ModelError::Cut { model: "m".into(), detail: String::new(), lost };
        let asked_at = Mutex::default();
        let model = Arc::new(Faulty { name: ModelName::new("m"), failures: 9, error, asked_at });
        let price = Price { input: 1.0, cached_input: None, cache_write: None, output: 2.0, above: None };
        let chain = Chain::new(Link::new(model, Some(price)), Vec::new(), 2);
        let events: Vec<_> = chain.stream(Arc::default()).await.unwrap().collect().await;
        let usage = Usage { input: 30, output: 15, ..Usage::default() };
        let cost = Some(Money::from_nanodollars(60_000));
        assert_eq!(events[events.len() - 2], Ok(ModelEvent::Lost { usage, cost }));
        assert!(events[events.len() - 1].is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn a_model_that_never_answers_is_given_up() {
        let error = ModelError::Silent {
            model: "m".into(),
            silence: Duration::from_secs(30),
            lost: Usage::default(),
        };
        let (waits, result) = waits(1000, error.clone(), 3).await;
        assert_eq!((waits.len(), result), (3, Err(error)));
    }
}
