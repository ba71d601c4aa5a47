//! The section `[model]`, as written and as checked settings. Keys come from the environment or from a file.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use model::{ModelOverrides, NamedBy, PROVIDERS, Price, Secret, Settings, ToolMode};
use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde::{Deserialize, de};

use super::environment::variable;

/// The variable that names the model.
const MODEL_VARIABLE: &str = "CAISSON_MODEL";

/// `model = "provider/model"`, or a section.
#[derive(Debug, Default)]
pub(crate) struct RawModel(RawModelSection);

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct RawModelSection {
    name: Option<String>,
    fallback: Option<Vec<String>>,
    base_url: Option<String>,
    key_file: Option<PathBuf>,
    tools: Option<ToolMode>,
    context_tokens: Option<u32>,
    output_tokens: Option<u32>,
    prices: Option<BTreeMap<String, Price>>,
    overrides: Option<BTreeMap<String, ModelOverrides>>,
    connect_timeout_s: Option<u64>,
    silence_timeout_s: Option<u64>,
    retries: Option<u32>,
    local: Option<bool>,
    local_ports: Option<Vec<u16>>,
    allowed_model_urls: Option<Vec<String>>,
}

impl<'de> Deserialize<'de> for RawModel {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct NameOrSection;

        impl<'de> Visitor<'de> for NameOrSection {
            type Value = RawModel;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a name such as \"anthropic/claude-sonnet-5\", or a section [model]")
            }

            fn visit_str<E: de::Error>(self, name: &str) -> Result<RawModel, E> {
                Ok(RawModel(RawModelSection { name: Some(name.to_owned()), ..RawModelSection::default() }))
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<RawModel, A::Error> {
                RawModelSection::deserialize(MapAccessDeserializer::new(map)).map(RawModel)
            }
        }

        deserializer.deserialize_any(NameOrSection)
    }
}

impl RawModel {
    /// Checks the section of this file, overridden by the environment. Sends no requests.
    pub(crate) fn settings(self, file: Option<&Path>) -> Result<Settings> {
        let raw = self.0;
        let from_environment = variable(MODEL_VARIABLE);
        let is_from_environment = from_environment.is_some();
        let mut settings = Settings {
            name: from_environment.or(raw.name),
            fallback: raw.fallback.unwrap_or_default(),
            base_url: raw.base_url,
            tools: raw.tools.unwrap_or_default(),
            context_tokens: raw.context_tokens,
            output_tokens: raw.output_tokens,
            prices: raw.prices.unwrap_or_default(),
            overrides: raw.overrides.unwrap_or_default(),
            local: raw.local.unwrap_or(true),
            allowed_model_urls: raw.allowed_model_urls.unwrap_or_default(),
            ..Settings::default()
        };
        settings.named_by = match file {
            _ if is_from_environment => Some(NamedBy::Variable(MODEL_VARIABLE)),
            Some(file) if settings.names_a_model() => Some(NamedBy::File(file.to_owned())),
            _ => None,
        };
        if let Some(ports) = raw.local_ports {
            ensure!(
                ports.len() <= 32 && !ports.contains(&0),
                "model.local_ports: at most 32 ports from 1 to 65535"
            );
            settings.local_ports = ports;
        }
        for (key, tokens) in [("context_tokens", raw.context_tokens), ("output_tokens", raw.output_tokens)] {
            ensure!(tokens.is_none_or(|tokens| tokens >= 256), "model.{key}: must be at least 256");
        }
        if let Some(file) = raw.key_file {
            let text = std::fs::read_to_string(&file)
                .with_context(|| format!("model.key_file: reading {}", file.display()))?;
            ensure!(!text.trim().is_empty(), "model.key_file: {} is empty", file.display());
            settings.key = Some(Secret::new(&text));
        }
        for provider in &PROVIDERS {
            if let Some(key) = provider.key_variables.iter().find_map(|name| variable(name)) {
                settings.provider_keys.insert(provider.id.to_owned(), Secret::new(&key));
            }
        }
        settings.retries = raw.retries.unwrap_or(settings.retries);
        ensure!(settings.retries <= 100, "model.retries: {} is not between 0 and 100", settings.retries);
        if let Some(seconds) = raw.connect_timeout_s {
            ensure!(
                (1..=600).contains(&seconds),
                "model.connect_timeout_s: {seconds} is not between 1 and 600"
            );
            settings.connect_timeout = Duration::from_secs(seconds);
        }
        if let Some(seconds) = raw.silence_timeout_s {
            ensure!(
                (1..=86_400).contains(&seconds),
                "model.silence_timeout_s: {seconds} is not between 1 and 86400"
            );
            settings.silence_timeout = Some(Duration::from_secs(seconds));
        }
        settings.check()?;
        Ok(settings)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Deserialize)]
    struct File {
        model: RawModel,
    }

    fn read(text: &str) -> Result<Settings> {
        toml::from_str::<File>(text)?.model.settings(Some(Path::new("/etc/caisson.toml")))
    }

    #[test]
    fn a_name_alone_and_a_section_mean_the_same() {
        let alone = read("model = \"ollama/qwen3\"").unwrap();
        let section = read("[model]\nname = \"ollama/qwen3\"").unwrap();
        assert_eq!(
            (alone.name.as_deref(), section.name.as_deref()),
            (Some("ollama/qwen3"), Some("ollama/qwen3"))
        );
    }

    #[test]
    fn settings_say_whether_the_file_names_the_model() {
        let by_file = Some(NamedBy::File("/etc/caisson.toml".into()));
        for text in [
            "model = \"ollama/qwen3\"",
            "[model]\nbase_url = \"http://127.0.0.1:9/v1\"",
            "[model]\nfallback = [\"ollama/qwen3\"]",
        ] {
            assert_eq!(read(text).unwrap().named_by, by_file, "{text}");
        }
        assert_eq!(read("[model]\nlocal = false").unwrap().named_by, None);
    }

    #[test]
    fn wrong_settings_are_refused_by_name() {
        for (text, words) in [
            ("model = \"gpt-5\"", "model.name: `gpt-5` is neither provider/model"),
            ("[model]\nfallback = [\"nobody/x\"]", "model.fallback[0]: there is no provider"),
            ("[model]\nbase_url = \"ftp://x\"", "model.base_url"),
            ("[model]\nkey_file = \"/does/not/exist\"", "model.key_file: reading /does/not/exist"),
            ("[model]\nprices = { \"a/b\" = { input = -1, output = 2 } }", "model.prices"),
            ("[model.overrides.\"a/b\"]\neffort = \"huge\"", "unknown variant `huge`"),
            ("[model.overrides.\"a/b\"]\nsees = true", "unknown field `sees`"),
            (
                "[model.overrides.\"a/b\"]\ncontext_tokens = 10",
                "model.overrides.a/b.context_tokens: must be at least 256",
            ),
            ("[model]\nsilence_timeout_s = 0", "model.silence_timeout_s"),
            ("[model]\ntools = \"magic\"", "unknown variant `magic`"),
            ("[model]\nkey = \"sk-secret\"", "unknown field `key`"),
            ("[model]\nlocal_ports = [0]", "model.local_ports: at most 32 ports"),
            (
                "[model]\nallowed_model_urls = [\"openai/gpt-5\"]",
                "model.allowed_model_urls[0]: `openai/gpt-5` is no address",
            ),
            ("model = 3", "a name such as"),
        ] {
            let error = format!("{:#}", read(text).unwrap_err());
            assert!(error.contains(words), "{text}: {error}");
        }
    }

    #[test]
    fn model_key_from_file_is_not_printed() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("key");
        std::fs::write(&file, "sk-in-a-file\n").unwrap();
        let settings = read(&format!("[model]\nkey_file = {file:?}")).unwrap();
        assert!(settings.key.is_some());
        assert!(!format!("{settings:?}").contains("sk-in-a-file"));
    }
}
