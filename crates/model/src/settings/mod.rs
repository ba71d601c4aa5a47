//! Settings of this crate. The binary fills them from its configuration; this crate does not read the environment.

mod overrides;

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::error::ModelError;
use crate::price::Price;
use crate::provider::{self, Target};
use crate::secret::Secret;

pub use self::overrides::ModelOverrides;

/// Default ports of local servers: Ollama, llama.cpp (two), LM Studio, vLLM.
const LOCAL_PORTS: [u16; 5] = [11434, 8080, 8081, 1234, 8000];

/// The smallest window, and the shortest answer, that can be set for a model.
const MIN_TOKENS: u32 = 256;

/// What a model can take and do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ModelLimits {
    /// Tokens of prompt and answer together.
    pub context_tokens: u32,
    /// Most tokens of an answer.
    pub output_tokens: u32,
    /// Whether pictures are seen.
    pub vision: bool,
    /// Whether tool calls are the model's own; else they are asked for in words.
    pub native_tools: bool,
    /// Whether it can think before it answers.
    pub reasoning: bool,
}

/// How tool calls are made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToolMode {
    /// According to what the server reports about the model.
    #[default]
    Auto,
    /// With the provider's native tool calls.
    Native,
    /// As JSON in the text, constrained by a schema if the server supports it.
    Prompted,
}

/// What names the model that agents use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NamedBy {
    /// The configuration file at this path.
    File(PathBuf),
    /// This environment variable.
    Variable(&'static str),
    /// An admin chose the model on the running server.
    Choice,
}

impl fmt::Display for NamedBy {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => write!(formatter, "the configuration file {}", path.display()),
            Self::Variable(name) => write!(formatter, "the environment variable {name}"),
            Self::Choice => formatter.write_str("an admin"),
        }
    }
}

/// The input of [`crate::connect`].
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// `provider/model`, or the URL of an OpenAI-compatible server with an optional `#model`. If absent, a local
    /// server is used if one is found.
    pub name: Option<String>,
    /// What names the model; `None` if nothing does, or for settings that do not come from a configuration.
    pub named_by: Option<NamedBy>,
    /// The models to use if the first one fails, in order.
    pub fallback: Vec<String>,
    /// Overrides the provider's URL for the first model, such as with a gateway or in a test.
    pub base_url: Option<String>,
    /// Key for the first model, whatever its provider.
    pub key: Option<Secret>,
    /// Keys by provider, such as `anthropic`.
    pub provider_keys: BTreeMap<String, Secret>,
    pub tools: ToolMode,
    /// Overrides the limit from the table or the server.
    pub context_tokens: Option<u32>,
    /// Overrides the limit from the table or the server.
    pub output_tokens: Option<u32>,
    /// Prices by model name; they override the table.
    pub prices: BTreeMap<String, Price>,
    /// Settings of single models, by name.
    pub overrides: BTreeMap<String, ModelOverrides>,
    pub connect_timeout: Duration,
    /// The maximum time without any data, before and during an answer. Defaults to three minutes, and to a quarter of
    /// an hour for a server on this machine, which may process a long prompt slowly.
    pub silence_timeout: Option<Duration>,
    /// How often the same model is retried before the next one is used.
    pub retries: u32,
    /// Whether to look for local servers if no model is configured.
    pub local: bool,
    /// The local ports to check.
    pub local_ports: Vec<u16>,
    /// Additional URLs that jobs may name if their permissions are restricted; each with an optional `#model`.
    pub allowed_model_urls: Vec<String>,
    /// Whether the answers of the first model are recorded, as in the demo.
    pub is_recorded: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            name: None,
            named_by: None,
            fallback: Vec::new(),
            base_url: None,
            key: None,
            provider_keys: BTreeMap::new(),
            tools: ToolMode::Auto,
            context_tokens: None,
            output_tokens: None,
            prices: BTreeMap::new(),
            overrides: BTreeMap::new(),
            connect_timeout: Duration::from_secs(10),
            silence_timeout: None,
            retries: 5,
            local: true,
            local_ports: LOCAL_PORTS.to_vec(),
            allowed_model_urls: Vec::new(),
            is_recorded: false,
        }
    }
}

impl Settings {
    /// Rejects invalid settings by name, without network access.
    pub fn check(&self) -> Result<(), ModelError> {
        self.named().map(|_| ())?;
        for (index, name) in self.allowed_model_urls.iter().enumerate() {
            let key = format!("model.allowed_model_urls[{index}]");
            if Target::parse(name, &key)?.provider.is_some() {
                let detail = format!("`{name}` is no address; jobs may name every provider anyway");
                return Err(ModelError::Settings { key, detail });
            }
        }
        for (name, price) in &self.prices {
            price.check(&format!("model.prices.{name}"))?;
        }
        for (name, overrides) in &self.overrides {
            for (field, tokens) in
                [("context_tokens", overrides.context_tokens), ("output_tokens", overrides.output_tokens)]
            {
                if tokens.is_some_and(|tokens| tokens < MIN_TOKENS) {
                    let key = format!("model.overrides.{name}.{field}");
                    return Err(ModelError::Settings {
                        key,
                        detail: format!("must be at least {MIN_TOKENS}"),
                    });
                }
            }
        }
        Ok(())
    }

    /// Whether these settings name a model. Otherwise a local server is used if one is found.
    pub fn names_a_model(&self) -> bool {
        self.name.is_some() || self.base_url.is_some() || !self.fallback.is_empty()
    }

    /// Whether a restricted job may name this model: providers, and servers that the operator has configured. Any
    /// other URL would let the caller use this server to probe the operator's network.
    pub fn allows(&self, name: &str) -> bool {
        let Ok(wanted) = Target::parse(name, "model") else { return true };
        if wanted.provider.is_some() {
            return true;
        }
        let named =
            self.name.iter().chain(&self.base_url).chain(&self.fallback).chain(&self.allowed_model_urls);
        let mut known = named.filter_map(|name| Target::parse(name, "model").ok());
        known.any(|known| {
            known.provider.is_none()
                && known.base_url == wanted.base_url
                && (known.model.is_empty() || known.model == wanted.model)
        })
    }

    /// The configured models: the first one, then the fallbacks.
    pub(crate) fn named(&self) -> Result<Vec<Target>, ModelError> {
        let mut targets = Vec::new();
        match (&self.name, &self.base_url) {
            (Some(name), address) => {
                let mut first = Target::parse(name, "model.name")?;
                if let Some(address) = address {
                    first.base_url = provider::base_url(address, "model.base_url")?;
                }
                targets.push(first);
            }
            (None, Some(address)) => {
                let (address, model) = address.split_once('#').unwrap_or((address, ""));
                let base_url = provider::base_url(address, "model.base_url")?;
                targets.push(Target { provider: None, model: model.to_owned(), base_url });
            }
            (None, None) => {}
        }
        for (index, name) in self.fallback.iter().enumerate() {
            targets.push(Target::parse(name, &format!("model.fallback[{index}]"))?);
        }
        Ok(targets)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_may_use_providers_and_configured_servers() {
        let settings = Settings {
            name: Some("http://10.0.0.1:8000/v1".into()),
            fallback: vec!["openai/gpt-5".into(), "http://10.0.0.2/v1#small".into()],
            allowed_model_urls: vec!["https://models.example.org/v1/".into()],
            ..Settings::default()
        };
        for name in [
            "anthropic/x",
            "ollama/y",
            "http://10.0.0.1:8000/v1",
            "http://10.0.0.1:8000/v1#any",
            "http://10.0.0.2/v1#small",
            "https://models.example.org/v1#coder",
        ] {
            assert!(settings.allows(name), "{name}");
        }
        for name in [
            "http://169.254.169.254/latest",
            "http://127.0.0.1:22",
            "http://10.0.0.1:8001/v1",
            "http://10.0.0.1:8000/v2",
            "http://10.0.0.2/v1#large",
            "http://models.example.org/v1",
        ] {
            assert!(!settings.allows(name), "{name}");
        }
    }

    #[test]
    fn a_provider_name_is_rejected_in_the_list_of_urls() {
        let settings = Settings { allowed_model_urls: vec!["openai/gpt-5".into()], ..Settings::default() };
        let error = settings.check().unwrap_err().to_string();
        assert!(error.starts_with("model.allowed_model_urls[0]: `openai/gpt-5` is no address"), "{error}");
    }
}
