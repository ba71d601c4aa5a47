//! The built-in table of known models: `models.json`, looked up by name prefix.

use std::sync::LazyLock;

use serde::Deserialize;

use crate::price::Price;
use crate::settings::{ModelLimits, Settings};

/// Assumed limits for a server that reports none.
const UNKNOWN: ModelLimits = ModelLimits {
    context_tokens: 16_384,
    output_tokens: 4096,
    vision: false,
    native_tools: true,
    reasoning: false,
};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Catalogue {
    #[serde(rename = "about")]
    _about: String,
    models: Vec<Entry>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    name: String,
    context: u32,
    output: u32,
    vision: bool,
    reasoning: bool,
    price: Option<Price>,
}

static CATALOGUE: LazyLock<Vec<Entry>> = LazyLock::new(|| {
    // A test parses the built-in table, so it is valid.
    serde_json::from_str::<Catalogue>(include_str!("models.json"))
        .map(|catalogue| catalogue.models)
        .unwrap_or_default()
});

fn entry(name: &str) -> Option<&'static Entry> {
    let fitting = |name: &str| {
        let found = CATALOGUE.iter().filter(|entry| name.starts_with(&entry.name));
        found.max_by_key(|entry| entry.name.len())
    };
    // OpenRouter prefixes models with their maker, and writes dots where Anthropic writes dashes.
    let through = name.strip_prefix("openrouter/").and_then(|rest| {
        let rest = rest.replace("google/", "gemini/");
        let rest = if rest.starts_with("anthropic/") { rest.replace('.', "-") } else { rest };
        fitting(&rest).filter(|entry| !entry.name.ends_with('/'))
    });
    through.or_else(|| fitting(name))
}

/// The limits and features of a model.
pub(crate) fn limits(name: &str) -> ModelLimits {
    entry(name).map_or(UNKNOWN, |entry| ModelLimits {
        context_tokens: entry.context,
        output_tokens: entry.output,
        vision: entry.vision,
        native_tools: true,
        reasoning: entry.reasoning,
    })
}

/// The price of a model: from the settings, else from the table. Local models are free.
pub(crate) fn price(name: &str, is_local: bool, settings: &Settings) -> Option<Price> {
    let set = settings.prices.get(name).copied();
    let free = is_local.then_some(Price {
        input: 0.0,
        cached_input: None,
        cache_write: None,
        output: 0.0,
        above: None,
    });
    set.or_else(|| entry(name).and_then(|entry| entry.price)).or(free)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_model_table_is_valid_and_has_unique_names() {
        let catalogue: Catalogue = serde_json::from_str(include_str!("models.json")).unwrap();
        let mut names: Vec<&str> = catalogue.models.iter().map(|entry| entry.name.as_str()).collect();
        assert!(names.len() > 20);
        names.sort_unstable();
        let count = names.len();
        names.dedup();
        assert_eq!(names.len(), count);
        for entry in &catalogue.models {
            assert!(entry.output <= entry.context && entry.output > 0, "{}", entry.name);
            let price = entry.price.map(|price| price.check("x"));
            assert!(price.is_none_or(|price| price.is_ok()), "{}", entry.name);
        }
    }

    #[test]
    fn the_longest_matching_prefix_wins() {
        let input = |name: &str| price(name, false, &Settings::default()).map(|price| price.input);
        assert_eq!(input("anthropic/claude-opus-5-5-20260923"), Some(4.0));
        assert_eq!(input("anthropic/claude-opus-5"), Some(5.0));
        assert_eq!(input("openrouter/anthropic/claude-opus-5.5"), Some(4.0));
        assert_eq!(input("openrouter/google/gemini-2.5-pro"), Some(1.25));
        assert_eq!(input("openrouter/somebody/model"), None);
        assert_eq!(input("anthropic/claude-unheard-of"), None);
        assert!(limits("anthropic/claude-unheard-of").vision);
    }

    #[test]
    fn settings_win_over_the_table_and_local_models_are_free() {
        let mut settings = Settings::default();
        let mine = Price { input: 1.0, cached_input: None, cache_write: None, output: 2.0, above: None };
        settings.prices.insert("openai/gpt-5".into(), mine);
        assert_eq!(price("openai/gpt-5", false, &settings), Some(mine));
        assert_eq!(price("http://127.0.0.1:8080/v1#x", true, &settings).map(|price| price.output), Some(0.0));
    }
}
