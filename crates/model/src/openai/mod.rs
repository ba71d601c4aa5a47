//! Client for OpenAI's chat completions API, which vLLM, llama.cpp, Ollama, LM Studio, OpenRouter and others
//! implement.

mod mistral;
mod request;
mod stream;
mod wire;

use std::sync::Arc;

use async_trait::async_trait;

use crate::error::ModelError;
use crate::event_parser::Reader as _;
use crate::events;
use crate::http::Endpoint;
use crate::name::{Dialect, ModelName};
use crate::output::ModelStream;
use crate::price::Price;
use crate::request::ModelRequest;
use crate::settings::ModelLimits;
use crate::{Answer, Model};

/// The variant of the API, where servers differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Flavour {
    /// OpenRouter, which reports the price and forwards cache breakpoints.
    OpenRouter,
    /// Mistral's own API.
    Mistral,
    /// All other servers.
    Compatible,
}

/// A model behind chat completions.
#[derive(Debug)]
pub(crate) struct OpenAi {
    pub(crate) endpoint: Endpoint,
    pub(crate) model: String,
    pub(crate) flavour: Flavour,
    pub(crate) limits: ModelLimits,
    pub(crate) price: Option<Price>,
}

#[async_trait]
impl Model for OpenAi {
    fn name(&self) -> &ModelName {
        &self.endpoint.name
    }

    fn limits(&self) -> ModelLimits {
        self.limits
    }

    async fn stream(&self, request: Arc<ModelRequest>) -> Result<ModelStream, ModelError> {
        let body = request::body(&request, &self.model, self.flavour, &self.limits);
        let mut events = self.endpoint.post("/chat/completions", &body).await?;
        let letters = events.request_size;
        let (endpoint, price) = (self.endpoint.clone(), self.price);
        Ok(events::generate(move |emitter| async move {
            let mut reader = stream::StreamReader::new(&endpoint);
            reader.read_all(&mut events, &emitter).await?;
            let (mut draft, cost) = reader.end(letters)?;
            draft.usage.output = draft.usage.output.max(draft.usage.reasoning);
            let answer = draft.finish(&endpoint.name, Dialect::OpenAi, price.as_ref());
            Ok(Answer { cost: answer.cost.or(cost), ..answer })
        }))
    }
}

/// Parses these events, for the fuzz targets.
#[cfg(feature = "fuzzing")]
pub(crate) fn fuzz(endpoint: &Endpoint, values: &[serde_json::Value]) -> Option<crate::draft::Draft> {
    stream::StreamReader::new(endpoint).after(values)?.end(values.len()).map(|(draft, _)| draft).ok()
}
