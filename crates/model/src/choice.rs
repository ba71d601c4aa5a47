//! The model that an admin chooses on a running server: checked, and combined with the configuration.

use serde::{Deserialize, Serialize};
use serde_json::json;
use utoipa::ToSchema;

use crate::endpoint::{self, ModelPosition};
use crate::error::ModelError;
use crate::provider::{self, Provider, Target};
use crate::secret::Secret;
use crate::settings::{NamedBy, Settings};

/// More than any provider's key has.
const MAX_KEY_BYTES: usize = 4096;
/// More than any address or model name has.
const MAX_NAME_BYTES: usize = 1024;

/// A model to use for agents.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewModelChoice {
    /// The provider, such as `anthropic` or `ollama`. Omit it for another OpenAI-compatible server.
    #[serde(default)]
    #[schema(example = "anthropic")]
    pub provider: Option<String>,
    /// The provider's name for the model. Without a provider and an address: `provider/model`. With an address and
    /// without a model: the first model of that server.
    #[serde(default)]
    #[schema(example = "claude-sonnet-5")]
    pub model: Option<String>,
    /// The address of an OpenAI-compatible server, or of a gateway to the provider.
    #[serde(default)]
    #[schema(example = "http://gpu.example.org:8000/v1")]
    pub base_url: Option<String>,
    /// The API key. The server stores it in a file that only its user can read, and never returns it. Without one,
    /// the server keeps the stored key if provider and address stay the same, and otherwise uses the key of its
    /// environment.
    #[serde(default)]
    #[schema(value_type = Option<String>, format = Password, write_only)]
    pub key: Option<Secret>,
}

/// What an admin chose, without the key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ChosenModel {
    /// The provider; absent for another OpenAI-compatible server.
    pub provider: Option<String>,
    /// The model; absent for the first model of the server.
    pub model: Option<String>,
    /// The address, unless it is the provider's own.
    pub base_url: Option<String>,
    /// Whether a key is stored with it.
    pub has_key: bool,
}

/// A checked choice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelChoice {
    target: Target,
    key: Option<Secret>,
}

fn invalid(field: &str, detail: impl Into<String>) -> ModelError {
    ModelError::Settings { key: field.to_owned(), detail: detail.into() }
}

impl NewModelChoice {
    /// Checks the names, the address and the form of the key, without network access.
    pub fn check(self) -> Result<ModelChoice, ModelError> {
        let provider = name("provider", self.provider)?;
        let model = name("model", self.model)?;
        let address = name("base_url", self.base_url)?;
        let address = address.map(|url| provider::base_url(&url, "base_url")).transpose()?;
        let provider = provider.map(|id| {
            let unknown = || format!("there is no provider `{id}`; there are {}", Provider::ids());
            Provider::named(&id).ok_or_else(|| invalid("provider", unknown()))
        });
        let target = match (provider.transpose()?, model, address) {
            (Some(provider), Some(model), address) => {
                let target = Target::parse(&format!("{}/{model}", provider.id), "model")?;
                Target { base_url: address.unwrap_or(target.base_url), ..target }
            }
            (Some(provider), None, _) => {
                return Err(invalid("model", format!("is missing; name a model of {}", provider.id)));
            }
            (None, model, Some(base_url)) => {
                Target { provider: None, model: model.unwrap_or_default(), base_url }
            }
            (None, Some(name), None) => Target::parse(&name, "model")?,
            (None, None, None) => {
                let advice = "name a provider and a model, or the address of a model server";
                return Err(invalid("model", format!("is missing; {advice}")));
            }
        };
        let key = self.key.map(check_key).transpose()?;
        Ok(ModelChoice { target, key })
    }
}

/// A name without surrounding white space; `None` if it is empty.
fn name(field: &str, text: Option<String>) -> Result<Option<String>, ModelError> {
    let text = text.map(|text| text.trim().to_owned()).filter(|text| !text.is_empty());
    match text {
        Some(text) if text.len() > MAX_NAME_BYTES || text.chars().any(char::is_control) => {
            Err(invalid(field, format!("has control characters or more than {MAX_NAME_BYTES} bytes")))
        }
        other => Ok(other),
    }
}

fn check_key(key: Secret) -> Result<Secret, ModelError> {
    let text = key.reveal();
    if text.is_empty() {
        return Err(invalid("key", "is empty; omit it to keep the stored key"));
    }
    if text.len() > MAX_KEY_BYTES || !text.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(invalid("key", "has characters that no API key has, or is too long; paste it again"));
    }
    Ok(key)
}

impl ModelChoice {
    /// Keeps the key of the earlier choice if this one has none and its key would go to the same place.
    #[must_use]
    pub fn or_key_of(self, earlier: Option<&Self>) -> Self {
        let is_same_place = |earlier: &&Self| {
            earlier.target.provider == self.target.provider && earlier.target.base_url == self.target.base_url
        };
        let kept = earlier.filter(is_same_place).and_then(|earlier| earlier.key.clone());
        Self { key: self.key.or(kept), target: self.target }
    }

    /// Refuses a choice without a key of a provider that requires one, if the configuration has none either.
    pub fn check_has_key(&self, configured: &Settings) -> Result<(), ModelError> {
        let found = endpoint::key(&self.target, &self.apply(configured), ModelPosition::First);
        found.map(|_| ()).map_err(|_| {
            let provider = self.target.provider;
            let id = provider.map_or("this provider", |provider| provider.id);
            let variables = provider.map(|provider| provider.key_variables.join(" or ")).unwrap_or_default();
            invalid("key", format!("{id} requires an API key; give one, or set {variables} on the server"))
        })
    }

    /// The settings with this model. The configured ones must not name a model.
    #[must_use]
    pub fn apply(&self, configured: &Settings) -> Settings {
        let Target { provider, base_url, .. } = &self.target;
        let mut settings = Settings {
            name: Some(self.target.name()),
            named_by: Some(NamedBy::Choice),
            fallback: Vec::new(),
            base_url: None,
            key: None,
            is_recorded: false,
            ..configured.clone()
        };
        match (provider, &self.key) {
            // Jobs may name other models of the same provider, so the key is the provider's.
            (Some(provider), Some(key)) if base_url == provider.base_url => {
                settings.provider_keys.insert(provider.id.to_owned(), key.clone());
            }
            (_, key) => settings.key.clone_from(key),
        }
        if provider.is_some_and(|provider| base_url != provider.base_url) {
            settings.base_url = Some(base_url.clone());
        }
        settings
    }

    /// The choice without its key.
    #[must_use]
    pub fn shown(&self) -> ChosenModel {
        let Target { provider, model, base_url } = &self.target;
        let is_own_address = provider.is_some_and(|provider| base_url == provider.base_url);
        ChosenModel {
            provider: provider.map(|provider| provider.id.to_owned()),
            model: Some(model.clone()).filter(|model| !model.is_empty()),
            base_url: Some(base_url.clone()).filter(|_| !is_own_address),
            has_key: self.key.is_some(),
        }
    }

    /// The choice as JSON with its key in clear, for a file that only the server's user can read.
    #[must_use]
    pub fn to_file(&self) -> String {
        let ChosenModel { provider, model, base_url, .. } = self.shown();
        let key = self.key.as_ref().map(Secret::reveal);
        json!({ "provider": provider, "model": model, "base_url": base_url, "key": key }).to_string()
    }

    /// Reads what [`Self::to_file`] wrote. The error says what is wrong and repeats nothing of the text.
    pub fn from_file(text: &str) -> Result<Self, String> {
        let new: NewModelChoice = serde_json::from_str(text)
            .map_err(|error| format!("line {} column {} is not valid", error.line(), error.column()))?;
        new.check().map_err(|error| match error {
            ModelError::Settings { key, .. } => format!("`{key}` is not valid"),
            _ => "it is not valid".to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn new(json: serde_json::Value) -> NewModelChoice {
        serde_json::from_value(json).unwrap()
    }

    fn choice(json: serde_json::Value) -> ModelChoice {
        new(json).check().unwrap()
    }

    fn key_of(choice: &ModelChoice, configured: &Settings) -> Option<String> {
        let found = endpoint::key(&choice.target, &choice.apply(configured), ModelPosition::First);
        found.unwrap().map(|key| key.reveal().to_owned())
    }

    fn with_environment_key() -> Settings {
        let keys = [("anthropic".to_owned(), Secret::new("sk-environment"))];
        Settings { provider_keys: keys.into(), ..Settings::default() }
    }

    #[test]
    fn a_choice_becomes_the_same_settings_as_a_configured_model() {
        let name = |json| {
            let settings = choice(json).apply(&Settings::default());
            settings.check().unwrap();
            assert_eq!(settings.named_by, Some(NamedBy::Choice));
            (settings.name.unwrap(), settings.base_url)
        };
        assert_eq!(
            name(json!({"provider": "ollama", "model": "qwen3:8b"})),
            ("ollama/qwen3:8b".into(), None)
        );
        assert_eq!(name(json!({"model": "ollama/qwen3:8b"})), ("ollama/qwen3:8b".into(), None));
        let gateway = "https://gateway.example.org/v1";
        assert_eq!(
            name(json!({"provider": "anthropic", "model": "a", "base_url": format!("{gateway}/")})),
            ("anthropic/a".into(), Some(gateway.into()))
        );
        assert_eq!(name(json!({"base_url": gateway, "model": "coder"})), (format!("{gateway}#coder"), None));
        assert_eq!(name(json!({"base_url": gateway, "model": " "})), (gateway.into(), None));
    }

    #[test]
    fn invalid_choices_are_refused_by_field() {
        for (json, field) in [
            (json!({}), "model"),
            (json!({"provider": "nobody", "model": "x"}), "provider"),
            (json!({"provider": "openai"}), "model"),
            (json!({"provider": "openai", "model": "../x"}), "model"),
            (json!({"model": "gpt-5"}), "model"),
            (json!({"base_url": "ftp://host"}), "base_url"),
            (json!({"base_url": "http://user:pass@host/v1"}), "base_url"),
            (json!({"base_url": "http://host/v1", "model": "a\nb"}), "model"),
            (json!({"base_url": "http://host/v1", "key": "two words"}), "key"),
            (json!({"base_url": "http://host/v1", "key": " "}), "key"),
        ] {
            let error = new(json.clone()).check().unwrap_err().to_string();
            assert!(error.starts_with(&format!("{field}: ")), "{json}: {error}");
            assert!(!error.contains("pass@") && !error.contains("two words"), "{error}");
        }
    }

    #[test]
    fn a_stored_key_stays_only_with_its_provider_and_address() {
        let first = choice(json!({"provider": "openai", "model": "a", "key": "sk-one"}));
        let kept = |json| choice(json).or_key_of(Some(&first)).key.map(|key| key.reveal().to_owned());
        assert_eq!(kept(json!({"provider": "openai", "model": "b"})).as_deref(), Some("sk-one"));
        assert_eq!(
            kept(json!({"provider": "openai", "model": "b", "key": "sk-two"})).as_deref(),
            Some("sk-two")
        );
        assert_eq!(kept(json!({"provider": "groq", "model": "b"})), None);
        let elsewhere =
            json!({"provider": "openai", "model": "b", "base_url": "https://gateway.example.org"});
        assert_eq!(kept(elsewhere), None);
    }

    #[test]
    fn keys_of_the_environment_go_to_their_provider_only() {
        let configured = Settings { key: Some(Secret::new("sk-key-file")), ..with_environment_key() };
        let key = |json| key_of(&choice(json), &configured);
        assert_eq!(key(json!({"model": "anthropic/a"})).as_deref(), Some("sk-environment"));
        assert_eq!(key(json!({"model": "anthropic/a", "key": "sk-own"})).as_deref(), Some("sk-own"));
        let elsewhere = "https://elsewhere.example.org/v1";
        let at_another_address = json!({"provider": "anthropic", "model": "a", "base_url": elsewhere});
        assert_eq!(key(at_another_address), None);
        assert_eq!(key(json!({"base_url": elsewhere})), None);
        assert_eq!(key(json!({"base_url": elsewhere, "key": "sk-own"})).as_deref(), Some("sk-own"));
    }

    #[test]
    fn a_hosted_provider_without_a_key_is_refused() {
        let anthropic = choice(json!({"model": "anthropic/a"}));
        let error = anthropic.check_has_key(&Settings::default()).unwrap_err().to_string();
        assert!(error.starts_with("key: anthropic requires an API key"), "{error}");
        assert!(error.contains("ANTHROPIC_API_KEY"), "{error}");
        anthropic.check_has_key(&with_environment_key()).unwrap();
        choice(json!({"model": "ollama/a"})).check_has_key(&Settings::default()).unwrap();
    }

    #[test]
    fn only_the_file_form_has_the_key() {
        let first = choice(json!({"provider": "openai", "model": "a", "key": "sk-very-secret"}));
        let text = first.to_file();
        assert!(text.contains("sk-very-secret"));
        assert_eq!(ModelChoice::from_file(&text).unwrap(), first);
        let shown = serde_json::to_string(&first.shown()).unwrap();
        assert!(shown.contains("\"has_key\":true") && !shown.contains("sk-very-secret"), "{shown}");
        assert!(!format!("{first:?}").contains("sk-very-secret"));
        for broken in ["", "{\"key\": [\"sk-very-secret\"]}", "{\"model\": \"sk-very-secret\"}"] {
            let error = ModelChoice::from_file(broken).unwrap_err();
            assert!(error.ends_with("is not valid"), "{error}");
        }
    }
}
