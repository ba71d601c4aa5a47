//! The section `[context]`: how an agent's history is kept within its model's context window, and how it is searched.

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use model::{Embeddings, PROVIDERS, Secret};
use orchestrator::{ContextSettings, SummaryMode};
use serde::Deserialize;

use super::environment::variable;

/// The `[context]` section.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawContext {
    summaries: Option<SummaryMode>,
    embeddings: Option<String>,
    embeddings_key_file: Option<PathBuf>,
}

impl RawContext {
    /// Checks the section. Sends no requests.
    pub(crate) fn settings(self) -> Result<ContextSettings> {
        ensure!(
            self.embeddings.is_some() || self.embeddings_key_file.is_none(),
            "context.embeddings_key_file: has no effect without context.embeddings"
        );
        let embeddings = self.embeddings.map(|name| named(name, self.embeddings_key_file)).transpose()?;
        Ok(ContextSettings { summaries: self.summaries.unwrap_or_default(), embeddings })
    }
}

fn named(name: String, key_file: Option<PathBuf>) -> Result<model::Settings> {
    let mut settings = model::Settings { name: Some(name), ..model::Settings::default() };
    if let Some(file) = key_file {
        let text = std::fs::read_to_string(&file)
            .with_context(|| format!("context.embeddings_key_file: reading {}", file.display()))?;
        ensure!(!text.trim().is_empty(), "context.embeddings_key_file: {} is empty", file.display());
        settings.key = Some(Secret::new(&text));
    }
    for provider in &PROVIDERS {
        if let Some(key) = provider.key_variables.iter().find_map(|name| variable(name)) {
            settings.provider_keys.insert(provider.id.to_owned(), Secret::new(&key));
        }
    }
    Embeddings::new(&settings, "context.embeddings")?;
    Ok(settings)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<ContextSettings> {
        toml::from_str::<RawContext>(text)?.settings()
    }

    #[test]
    fn summaries_and_embeddings_are_read() {
        let settings =
            read("summaries = \"extract\"\nembeddings = \"http://127.0.0.1:11434/v1#small\"").unwrap();
        assert_eq!(settings.summaries, SummaryMode::Extract);
        assert_eq!(settings.embeddings.unwrap().name.as_deref(), Some("http://127.0.0.1:11434/v1#small"));
        assert_eq!(read("").unwrap(), ContextSettings::default());
    }

    #[test]
    fn wrong_settings_are_refused_by_name() {
        for (text, words) in [
            ("summaries = \"none\"", "unknown variant `none`"),
            ("embeddings = \"anthropic/x\"", "context.embeddings"),
            ("embeddings = \"http://127.0.0.1:1/v1\"", "names no model"),
            ("embeddings_key_file = \"/x\"", "has no effect without context.embeddings"),
            ("vectors = true", "unknown field `vectors`"),
        ] {
            let error = format!("{:#}", read(text).unwrap_err());
            assert!(error.contains(words), "{text}: {error}");
        }
    }
}
