//! What a caller can set. The binary fills this from its configuration; this crate reads no environment.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::error::ModelError;
use crate::price::Price;
use crate::provider::{self, Target};
use crate::secret::Secret;

/// Where local servers listen when nobody says otherwise: Ollama, llama.cpp (two), LM Studio, vLLM.
const LOCAL_PORTS: [u16; 5] = [11434, 8080, 8081, 1234, 8000];

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
    /// Whatever the server says the model can do.
    #[default]
    Auto,
    /// By the provider's own tool calls.
    Native,
    /// Written as JSON in the text, held to a schema where the server can.
    Prompted,
}

/// Everything that [`crate::connect`] needs to know.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// `provider/model`, or the address of an OpenAI-compatible server with an optional `#model`. Without one, a local
    /// server is looked for.
    pub name: Option<String>,
    /// Who is asked when the first cannot answer, in order.
    pub fallback: Vec<String>,
    /// Address instead of the provider's own, for the first model: a gateway, a test.
    pub base_url: Option<String>,
    /// Key for the first model, whoever its provider is.
    pub key: Option<Secret>,
    /// Keys by provider, such as `anthropic`.
    pub provider_keys: BTreeMap<String, Secret>,
    /// How tool calls are made.
    pub tools: ToolMode,
    /// Instead of what the table or the server says.
    pub context_tokens: Option<u32>,
    /// Instead of what the table or the server says.
    pub output_tokens: Option<u32>,
    /// Prices before those of the table, by model name.
    pub prices: BTreeMap<String, Price>,
    /// How long a connection may take.
    pub connect_timeout: Duration,
    /// How long nothing may come, before the first bit of an answer and between two. Without a value three minutes, and
    /// a quarter of an hour from a server on this machine, which may read a long prompt slowly.
    pub silence_timeout: Option<Duration>,
    /// How often the same model is asked again before the next is.
    pub retries: u32,
    /// Whether local servers are looked for where nothing is named.
    pub local: bool,
    /// The ports of this machine at which they are looked for.
    pub local_ports: Vec<u16>,
    /// Addresses that jobs may name beside those above, where not everybody may do everything; each with an optional
    /// `#model`.
    pub jobs_may: Vec<String>,
    /// Whether the answers of the first model were written down beforehand, as those of a demonstration.
    pub is_recorded: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            name: None,
            fallback: Vec::new(),
            base_url: None,
            key: None,
            provider_keys: BTreeMap::new(),
            tools: ToolMode::Auto,
            context_tokens: None,
            output_tokens: None,
            prices: BTreeMap::new(),
            connect_timeout: Duration::from_secs(10),
            silence_timeout: None,
            retries: 5,
            local: true,
            local_ports: LOCAL_PORTS.to_vec(),
            jobs_may: Vec::new(),
            is_recorded: false,
        }
    }
}

impl Settings {
    /// Refuses what cannot be right, by the name of the setting, without asking anybody.
    pub fn check(&self) -> Result<(), ModelError> {
        self.named().map(|_| ())?;
        for (index, name) in self.jobs_may.iter().enumerate() {
            let key = format!("model.jobs_may[{index}]");
            if Target::parse(name, &key)?.provider.is_some() {
                let detail = format!("`{name}` is no address; jobs may name every provider anyway");
                return Err(ModelError::Settings { key, detail });
            }
        }
        for (name, price) in &self.prices {
            price.check(&format!("model.prices.{name}"))?;
        }
        Ok(())
    }

    /// Whether a job may name this model where not everybody may do everything: providers, and servers that the operator
    /// has named. Any other address would let its caller use this server to look around in the operator's network.
    pub fn allows(&self, name: &str) -> bool {
        let Ok(wanted) = Target::parse(name, "model") else { return true };
        if wanted.provider.is_some() {
            return true;
        }
        let named = self.name.iter().chain(&self.base_url).chain(&self.fallback).chain(&self.jobs_may);
        let mut known = named.filter_map(|name| Target::parse(name, "model").ok());
        known.any(|known| {
            known.provider.is_none()
                && known.base_url == wanted.base_url
                && (known.model.is_empty() || known.model == wanted.model)
        })
    }

    /// What is named: the first model, then the fallbacks.
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
    fn jobs_may_name_providers_and_the_servers_of_the_operator() {
        let settings = Settings {
            name: Some("http://10.0.0.1:8000/v1".into()),
            fallback: vec!["openai/gpt-5".into(), "http://10.0.0.2/v1#small".into()],
            jobs_may: vec!["https://models.example.org/v1/".into()],
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
    fn what_is_no_address_is_refused_in_the_list_of_addresses() {
        let settings = Settings { jobs_may: vec!["openai/gpt-5".into()], ..Settings::default() };
        let error = settings.check().unwrap_err().to_string();
        assert!(error.starts_with("model.jobs_may[0]: `openai/gpt-5` is no address"), "{error}");
    }
}
