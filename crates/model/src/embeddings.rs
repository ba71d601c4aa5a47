//! Client for the OpenAI-compatible embeddings endpoint (Ollama, llama.cpp, vLLM, LM Studio and most providers).

use std::time::Duration;

use serde::Deserialize;
use serde_json::json;

use crate::endpoint::{ModelPosition, endpoint};
use crate::error::ModelError;
use crate::http::Endpoint;
use crate::name::Dialect;
use crate::provider::Target;
use crate::settings::Settings;

/// The maximum number of texts per request.
pub const MAX_TEXTS: usize = 64;
/// The maximum length of a vector.
const MAX_DIMENSIONS: usize = 16_384;

/// An embedding model.
#[derive(Debug, Clone)]
pub struct Embeddings {
    endpoint: Endpoint,
    model: String,
}

#[derive(Deserialize)]
struct Reply {
    data: Vec<Item>,
}

#[derive(Deserialize)]
struct Item {
    index: usize,
    embedding: Vec<f32>,
}

impl Embeddings {
    /// The model that `settings.name` names: `provider/model`, or a URL with `#model`. Sends no request yet. `key` is
    /// the name of the setting in errors.
    ///
    /// # Errors
    /// The name is invalid, the provider has no embeddings endpoint, or its key is missing.
    pub fn new(settings: &Settings, key: &str) -> Result<Self, ModelError> {
        let wrong = |detail: String| ModelError::Settings { key: key.to_owned(), detail };
        let name = settings.name.as_deref().unwrap_or_default();
        if is_file(name) {
            return Err(wrong(format!(
                "`{name}` is a file of weights, which a server must serve: run `llama-server -m {name} --embeddings \
                 --port 8081` and write http://127.0.0.1:8081/v1#NAME here"
            )));
        }
        let target = Target::parse(name, key)?;
        if !matches!(target.dialect(), Dialect::OpenAi | Dialect::Responses) {
            return Err(wrong(format!("`{name}`: this provider has no OpenAI-compatible embeddings")));
        }
        if target.model.is_empty() {
            return Err(wrong(format!(
                "`{name}` names no model: write it behind a #, such as {name}#nomic-embed-text"
            )));
        }
        Ok(Self { endpoint: endpoint(&target, settings, ModelPosition::First)?, model: target.model })
    }

    pub fn name(&self) -> String {
        self.endpoint.name.to_string()
    }

    /// Computes the vectors of some texts, in order, all of the same length. At most [`MAX_TEXTS`] at once.
    ///
    /// # Errors
    /// The server does not answer in time, or its response is invalid.
    pub async fn embed(&self, texts: &[&str], timeout: Duration) -> Result<Vec<Vec<f32>>, ModelError> {
        if texts.is_empty() {
            return Ok(Vec::new());
        }
        let body = json!({ "model": self.model, "input": texts, "encoding_format": "float" });
        let answer = self.endpoint.ask("/embeddings", &body, timeout).await?;
        let reply: Reply = serde_json::from_value(answer)
            .map_err(|error| self.endpoint.malformed(format!("/embeddings: {error}")))?;
        let mut items = reply.data;
        items.sort_by_key(|item| item.index);
        let length = items.first().map_or(0, |item| item.embedding.len());
        let is_right = |(at, item): (usize, &Item)| {
            item.index == at
                && item.embedding.len() == length
                && item.embedding.iter().all(|value| value.is_finite())
        };
        let is_whole = items.len() == texts.len() && (1..=MAX_DIMENSIONS).contains(&length);
        if !is_whole || !items.iter().enumerate().all(is_right) {
            let detail = format!(
                "/embeddings: {} vectors for {} texts, or not of one length",
                items.len(),
                texts.len()
            );
            return Err(self.endpoint.malformed(detail));
        }
        Ok(items.into_iter().map(|item| item.embedding).collect())
    }
}

/// Whether a name is a path or names a file of weights.
fn is_file(name: &str) -> bool {
    let name = name.trim();
    name.starts_with(['/', '.', '~'])
        || [".gguf", ".safetensors", ".onnx"].iter().any(|end| name.ends_with(end))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(name: &str) -> Result<Embeddings, ModelError> {
        Embeddings::new(&Settings { name: Some(name.into()), ..Settings::default() }, "context.embeddings")
    }

    #[test]
    fn models_without_embeddings_are_rejected_with_a_reason() {
        for (name, words) in [
            ("anthropic/claude", "has no OpenAI-compatible embeddings"),
            ("http://127.0.0.1:11434/v1", "names no model"),
            ("/models/x.gguf", "run `llama-server -m /models/x.gguf --embeddings"),
            ("~/models/x", "is a file of weights"),
            ("weights/nomic.gguf", "is a file of weights"),
            ("nobody/x", "there is no provider `nobody`"),
            ("openai/text-embedding-3-small", "there is no key"),
        ] {
            let error = named(name).unwrap_err().to_string();
            assert!(error.contains(words), "{name}: {error}");
        }
        assert_eq!(named("http://127.0.0.1:9/v1#small").unwrap().name(), "http://127.0.0.1:9/v1#small");
    }
}
