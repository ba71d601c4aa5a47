//! The named providers, and the parsing of configured model names.

use crate::error::ModelError;
use crate::http::{KeyHeader, ServerLocation};
use crate::name::Dialect;

/// A model provider.
#[derive(Debug, PartialEq, Eq)]
pub struct Provider {
    /// The part before the slash.
    pub id: &'static str,
    /// Environment variables that may contain the key; the first one that is set is used. Empty for a local server.
    pub key_variables: &'static [&'static str],
    pub(crate) dialect: Dialect,
    pub(crate) base_url: &'static str,
}

/// All named providers.
pub const PROVIDERS: [Provider; 13] = [
    provider("anthropic", &["ANTHROPIC_API_KEY"], Dialect::Anthropic, "https://api.anthropic.com/v1"),
    provider("openai", &["OPENAI_API_KEY"], Dialect::Responses, "https://api.openai.com/v1"),
    provider(
        "gemini",
        &["GEMINI_API_KEY", "GOOGLE_API_KEY"],
        Dialect::Gemini,
        "https://generativelanguage.googleapis.com/v1beta",
    ),
    provider("openrouter", &["OPENROUTER_API_KEY"], Dialect::OpenAi, "https://openrouter.ai/api/v1"),
    provider("deepseek", &["DEEPSEEK_API_KEY"], Dialect::OpenAi, "https://api.deepseek.com/v1"),
    provider("groq", &["GROQ_API_KEY"], Dialect::OpenAi, "https://api.groq.com/openai/v1"),
    provider("mistral", &["MISTRAL_API_KEY"], Dialect::OpenAi, "https://api.mistral.ai/v1"),
    provider("together", &["TOGETHER_API_KEY"], Dialect::OpenAi, "https://api.together.xyz/v1"),
    provider("xai", &["XAI_API_KEY"], Dialect::OpenAi, "https://api.x.ai/v1"),
    provider("ollama", &[], Dialect::OpenAi, "http://127.0.0.1:11434/v1"),
    provider("llamacpp", &[], Dialect::OpenAi, "http://127.0.0.1:8080/v1"),
    provider("lmstudio", &[], Dialect::OpenAi, "http://127.0.0.1:1234/v1"),
    provider("vllm", &[], Dialect::OpenAi, "http://127.0.0.1:8000/v1"),
];

const fn provider(
    id: &'static str,
    key_variables: &'static [&'static str],
    dialect: Dialect,
    base_url: &'static str,
) -> Provider {
    Provider { id, key_variables, dialect, base_url }
}

impl Provider {
    /// The provider with this id.
    pub(crate) fn named(id: &str) -> Option<&'static Self> {
        PROVIDERS.iter().find(|provider| provider.id == id)
    }

    /// The ids of all providers, for messages.
    pub(crate) fn ids() -> String {
        PROVIDERS.iter().map(|provider| provider.id).collect::<Vec<_>>().join(", ")
    }

    /// Whether the provider is a local server that needs no key.
    pub fn is_local(&self) -> bool {
        self.key_variables.is_empty()
    }
}

/// A parsed model name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Target {
    /// The named provider; `None` for a URL.
    pub(crate) provider: Option<&'static Provider>,
    /// The provider's name for the model; empty to use the server's default.
    pub(crate) model: String,
    /// Without a trailing slash.
    pub(crate) base_url: String,
}

impl Target {
    /// Parses `provider/model`, or a URL with an optional `#model`. `key` is the name of the setting in errors.
    pub(crate) fn parse(text: &str, key: &str) -> Result<Self, ModelError> {
        let text = text.trim();
        if text.starts_with("http://") || text.starts_with("https://") {
            let (address, model) = text.split_once('#').unwrap_or((text, ""));
            return Ok(Self { provider: None, model: model.to_owned(), base_url: base_url(address, key)? });
        }
        let wrong = |detail: String| ModelError::Settings { key: key.to_owned(), detail };
        let Some((id, model)) = text.split_once('/') else {
            return Err(wrong(format!(
                "`{text}` is neither provider/model (providers: {}) nor an address such as http://127.0.0.1:8080/v1",
                Provider::ids()
            )));
        };
        let provider = Provider::named(id).ok_or_else(|| {
            let advice = "for another OpenAI-compatible server, give its address with #model";
            wrong(format!("there is no provider `{id}`; there are {}; {advice}", Provider::ids()))
        })?;
        let is_plain = model.bytes().all(|byte| byte.is_ascii_graphic() && !b"?#%\\".contains(&byte));
        if model.is_empty() || !is_plain || model.contains("..") {
            return Err(wrong(format!("`{text}` names no model after the slash")));
        }
        Ok(Self { provider: Some(provider), model: model.to_owned(), base_url: provider.base_url.to_owned() })
    }

    pub(crate) fn dialect(&self) -> Dialect {
        self.provider.map_or(Dialect::OpenAi, |provider| provider.dialect)
    }

    /// The header that carries the key.
    pub(crate) fn key_header(&self) -> KeyHeader {
        match self.dialect() {
            Dialect::OpenAi | Dialect::Responses => KeyHeader::Bearer,
            Dialect::Anthropic => KeyHeader::Anthropic,
            Dialect::Gemini => KeyHeader::Google,
        }
    }

    /// The display name: `provider/model`, or the URL with `#model`.
    pub(crate) fn name(&self) -> String {
        match self.provider {
            Some(provider) => format!("{}/{}", provider.id, self.model),
            None if self.model.is_empty() => self.base_url.clone(),
            None => format!("{}#{}", self.base_url, self.model),
        }
    }

    pub(crate) fn reach(&self) -> ServerLocation {
        if is_loopback(&self.base_url) { ServerLocation::Local } else { ServerLocation::Remote }
    }
}

/// Validates a URL: it must not contain credentials. Removes a trailing slash.
pub(crate) fn base_url(text: &str, key: &str) -> Result<String, ModelError> {
    let wrong = |detail: &str| Err(ModelError::Settings { key: key.to_owned(), detail: detail.to_owned() });
    let Ok(url) = reqwest::Url::parse(text) else {
        return wrong("is not an address such as http://127.0.0.1:8080/v1");
    };
    if !matches!(url.scheme(), "http" | "https") {
        return wrong("an address begins with http:// or https://");
    }
    if !url.username().is_empty() || url.password().is_some() || url.query().is_some() {
        return wrong(
            "an address must hold no user, password or query; put the key into a file and name it as key_file",
        );
    }
    if url.fragment().is_some() {
        return wrong("a model behind # belongs to the name, not to the address of a provider");
    }
    Ok(text.trim_end_matches('/').to_owned())
}

/// Whether a URL refers to this machine.
pub(crate) fn is_loopback(base_url: &str) -> bool {
    let Ok(url) = reqwest::Url::parse(base_url) else { return false };
    let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']);
    host == "localhost" || host.parse().is_ok_and(|address: std::net::IpAddr| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Target, String> {
        Target::parse(text, "model.name").map_err(|error| error.to_string())
    }

    #[test]
    fn model_names_and_urls_are_parsed() {
        let target = parse("openrouter/qwen/qwen3-coder:free").unwrap();
        assert_eq!(
            (target.provider.unwrap().id, target.model.as_str()),
            ("openrouter", "qwen/qwen3-coder:free")
        );
        assert_eq!(target.name(), "openrouter/qwen/qwen3-coder:free");
        let target = parse("http://127.0.0.1:8081/v1/#coder").unwrap();
        assert_eq!((target.base_url.as_str(), target.model.as_str()), ("http://127.0.0.1:8081/v1", "coder"));
        assert_eq!(target.reach(), ServerLocation::Local);
        assert_eq!(parse("http://[::1]:8081/v1").unwrap().reach(), ServerLocation::Local);
        assert_eq!(parse("https://models.example.org/v1").unwrap().reach(), ServerLocation::Remote);
    }

    #[test]
    fn invalid_model_names_are_rejected_with_a_hint() {
        for (text, words) in [
            ("gpt-5", "provider/model"),
            ("nobody/gpt-5", "there is no provider `nobody`; there are anthropic, openai"),
            ("openai/", "names no model"),
            ("gemini/../../x", "names no model"),
            ("gemini/a?key=b", "names no model"),
            ("http://", "is not an address"),
            ("http://user:secret@host/v1", "key_file"),
            ("http://host/v1?key=secret", "key_file"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.starts_with("model.name: ") && error.contains(words), "{text}: {error}");
            assert!(!error.contains("secret"), "{error}");
        }
    }
}
