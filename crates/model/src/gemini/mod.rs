//! Client for Google's `generateContent` API.

mod request;
mod stream;

use std::sync::Arc;

use async_trait::async_trait;

use crate::Model;
use crate::error::ModelError;
use crate::event_parser::Reader as _;
use crate::events;
use crate::http::Endpoint;
use crate::name::{Dialect, ModelName};
use crate::output::ModelStream;
use crate::price::Price;
use crate::request::ModelRequest;
use crate::settings::ModelLimits;

/// A model behind `generateContent`.
#[derive(Debug)]
pub(crate) struct Gemini {
    pub(crate) endpoint: Endpoint,
    pub(crate) model: String,
    pub(crate) limits: ModelLimits,
    pub(crate) price: Option<Price>,
}

#[async_trait]
impl Model for Gemini {
    fn name(&self) -> &ModelName {
        &self.endpoint.name
    }

    fn limits(&self) -> ModelLimits {
        self.limits
    }

    async fn stream(&self, request: Arc<ModelRequest>) -> Result<ModelStream, ModelError> {
        let body = request::body(&request, &self.model, &self.limits);
        let path = format!("/models/{}:streamGenerateContent?alt=sse", self.model);
        let mut events = self.endpoint.post(&path, &body).await?;
        let (endpoint, price) = (self.endpoint.clone(), self.price);
        Ok(events::generate(move |emitter| async move {
            let mut reader = stream::StreamReader::new(&endpoint);
            reader.read_all(&mut events, &emitter).await?;
            let draft = reader.end()?;
            Ok(draft.finish(&endpoint.name, Dialect::Gemini, price.as_ref()))
        }))
    }
}

/// Parses these events, for the fuzz targets.
#[cfg(feature = "fuzzing")]
pub(crate) fn fuzz(endpoint: &Endpoint, values: &[serde_json::Value]) -> Option<crate::draft::Draft> {
    stream::StreamReader::new(endpoint).after(values)?.end().ok()
}
