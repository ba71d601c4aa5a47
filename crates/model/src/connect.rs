//! Creates a model from the settings.

use std::sync::Arc;

use crate::Model;
use crate::anthropic::Anthropic;
use crate::catalogue;
use crate::chain::{Chain, ChainEntry};
use crate::discover;
use crate::endpoint::{ModelPosition, endpoint};
use crate::error::ModelError;
use crate::gemini::Gemini;
use crate::http::{Endpoint, ServerLocation};
use crate::name::{Dialect, ModelName};
use crate::openai::{Flavour, OpenAi};
use crate::probe::{self, ServedModel, Server};
use crate::prompted::{CallMode, Prompted};
use crate::provider::{Provider, Target};
use crate::request::Effort;
use crate::responses::Responses;
use crate::settings::{ModelLimits, ModelOverrides, Settings, ToolMode};

/// Models with fewer parameters follow a schema more reliably than they make native tool calls.
const FEW_PARAMETERS: u64 = 4_000_000_000;

/// Creates the model that the settings name, including retries, fallbacks and the right form of tool calls. Queries
/// servers that are named by address for their features; does not contact providers yet. The call is cheap: repeat it
/// after [`ModelError::NoModel`] or [`ModelError::Unreachable`]. Skips fallback models that are unreachable now until
/// the next call.
pub async fn connect(settings: &Settings) -> Result<Arc<dyn Model>, ModelError> {
    let targets = targets(settings).await?;
    let mut links = Vec::new();
    let mut trouble = None;
    for (index, target) in targets.into_iter().enumerate() {
        let position = if index == 0 { ModelPosition::First } else { ModelPosition::Fallback };
        match link(target, settings, position).await {
            Ok(link) => links.push(link),
            Err(error @ ModelError::Settings { .. }) => return Err(error),
            Err(error) => {
                tracing::warn!(code = error.code(), "a model is left out: {error}");
                trouble.get_or_insert(error);
            }
        }
    }
    let mut links = links.into_iter();
    match (links.next(), trouble) {
        (Some(first), _) => {
            let chain = Chain::new(first, links.collect(), settings.retries);
            Ok(Arc::new(chain.recorded(settings.is_recorded)))
        }
        (None, Some(error)) => Err(error),
        (None, None) => Err(no_model()),
    }
}

/// The configured models, or a local server that was found.
async fn targets(settings: &Settings) -> Result<Vec<Target>, ModelError> {
    let mut targets = settings.named()?;
    if targets.is_empty() && settings.local {
        targets.extend(discover::pick(settings).await?);
    }
    if targets.is_empty() { Err(no_model()) } else { Ok(targets) }
}

fn no_model() -> ModelError {
    let advice = "choose one on the web page or with `caisson models set`, name one in the configuration ([model] name = \
                  \"anthropic/...\", or CAISSON_MODEL), or start a local server such as Ollama or llama.cpp; \
                  `caisson models` shows what is reachable";
    ModelError::NoModel { advice: advice.into() }
}

async fn link(
    mut target: Target,
    settings: &Settings,
    position: ModelPosition,
) -> Result<ChainEntry, ModelError> {
    let is_local = target.provider.is_none_or(Provider::is_local);
    let mut endpoint = endpoint(&target, settings, position)?;
    let mut limits = catalogue::limits(&target.name());
    let mut overrides = settings.overrides.get(&target.name()).copied();
    let mut call_mode = None;
    if is_local {
        let server = probe::query_server(&endpoint).await?;
        let served = choose(&server, &target, &endpoint)?;
        target.model.clone_from(&served.id);
        endpoint.name = ModelName::new(target.name());
        // A server without a model in its address may be named with or without the model that it has chosen.
        overrides = overrides.or_else(|| settings.overrides.get(&target.name()).copied());
        limits = limits_of_served(limits, &served);
        call_mode = initial_call_mode(tool_mode(settings, overrides), &served);
    } else if tool_mode(settings, overrides) == ToolMode::Prompted {
        call_mode = Some(CallMode::Schema);
    }
    if position == ModelPosition::First {
        limits.context_tokens = settings.context_tokens.unwrap_or(limits.context_tokens);
        limits.output_tokens = settings.output_tokens.unwrap_or(limits.output_tokens);
    }
    limits = overrides.unwrap_or_default().apply(limits);
    let price =
        catalogue::price(&target.name(), is_local && target.reach() == ServerLocation::Local, settings);
    let model = target.model.clone();
    let inner: Arc<dyn Model> = match target.dialect() {
        Dialect::OpenAi => {
            let flavour = match target.provider.map(|provider| provider.id) {
                Some("openrouter") => Flavour::OpenRouter,
                Some("mistral") => Flavour::Mistral,
                _ => Flavour::Compatible,
            };
            Arc::new(OpenAi { endpoint, model, flavour, limits, price })
        }
        Dialect::Responses => Arc::new(Responses { endpoint, model, limits, price }),
        Dialect::Anthropic => Arc::new(Anthropic { endpoint, model, limits, price }),
        Dialect::Gemini => Arc::new(Gemini { endpoint, model, limits, price }),
    };
    let model = match call_mode {
        Some(call_mode) => Arc::new(Prompted::new(inner, call_mode)),
        None => inner,
    };
    // Models of Anthropic think only if they are asked to; those of other providers decide by themselves.
    let has_to_ask = target.dialect() == Dialect::Anthropic && limits.reasoning;
    let effort = overrides.and_then(|overrides| overrides.effort).or(has_to_ask.then_some(Effort::Medium));
    Ok(ChainEntry::new(model, price).with_effort(effort))
}

/// How a model calls tools: its own setting, else that of all models.
fn tool_mode(settings: &Settings, overrides: Option<ModelOverrides>) -> ToolMode {
    overrides.and_then(|overrides| overrides.tools).unwrap_or(settings.tools)
}

/// The configured model, or a default that the server offers.
fn choose(server: &Server, target: &Target, endpoint: &Endpoint) -> Result<ServedModel, ModelError> {
    let names =
        || server.models.iter().map(|model| model.id.as_str()).take(20).collect::<Vec<_>>().join(", ");
    if target.model.is_empty() {
        return server
            .default_model()
            .cloned()
            .ok_or_else(|| endpoint.malformed("the server offers no model"));
    }
    let is_it = |model: &&ServedModel| {
        model.id == target.model || model.id.strip_suffix(":latest") == Some(&target.model)
    };
    match server.models.iter().find(is_it) {
        Some(model) => Ok(model.clone()),
        // A server with a single model ignores the name; other servers load the requested model.
        None if server.kind == probe::ServerKind::Ollama => Err(ModelError::UnknownModel {
            model: target.name(),
            detail: format!("the server has {}; `ollama pull {}` fetches it", names(), target.model),
        }),
        None => {
            Ok(ServedModel { id: target.model.clone(), ..server.models.first().cloned().unwrap_or_default() })
        }
    }
}

fn limits_of_served(limits: ModelLimits, served: &ServedModel) -> ModelLimits {
    let context_tokens = served.context_tokens.unwrap_or(limits.context_tokens);
    ModelLimits {
        context_tokens,
        output_tokens: (context_tokens / 4).clamp(512, 16_384),
        vision: served.vision.unwrap_or(limits.vision),
        native_tools: true,
        reasoning: served.reasoning.unwrap_or(limits.reasoning),
    }
}

/// How tool calls start out; `None` if they are always native.
fn initial_call_mode(mode: ToolMode, served: &ServedModel) -> Option<CallMode> {
    let is_small = served.parameters.is_some_and(|parameters| parameters < FEW_PARAMETERS);
    match mode {
        ToolMode::Native => None,
        ToolMode::Prompted => Some(CallMode::Schema),
        ToolMode::Auto if served.tools == Some(false) || is_small => Some(CallMode::Schema),
        ToolMode::Auto => Some(CallMode::Native),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_models_and_models_without_native_calls_are_prompted() {
        let served = |tools, parameters| ServedModel { tools, parameters, ..ServedModel::default() };
        assert_eq!(
            initial_call_mode(ToolMode::Auto, &served(Some(true), Some(500_000_000))),
            Some(CallMode::Schema)
        );
        assert_eq!(initial_call_mode(ToolMode::Auto, &served(Some(false), None)), Some(CallMode::Schema));
        assert_eq!(
            initial_call_mode(ToolMode::Auto, &served(Some(true), Some(8_000_000_000))),
            Some(CallMode::Native)
        );
        assert_eq!(initial_call_mode(ToolMode::Native, &served(Some(false), None)), None);
        assert_eq!(initial_call_mode(ToolMode::Prompted, &served(Some(true), None)), Some(CallMode::Schema));
    }

    #[tokio::test]
    async fn settings_of_a_model_override_the_table() {
        let connected = |overrides: ModelOverrides| async move {
            let name = "anthropic/claude-sonnet-5";
            let settings = Settings {
                name: Some(name.into()),
                key: Some(crate::Secret::new("k")),
                context_tokens: Some(50_000),
                overrides: [(name.to_owned(), overrides)].into(),
                ..Settings::default()
            };
            connect(&settings).await.unwrap()
        };
        let plain = connected(ModelOverrides::default()).await;
        assert_eq!((plain.limits().context_tokens, plain.limits().vision), (50_000, true));
        assert_eq!(plain.default_effort(), Some(Effort::Medium), "it thinks only if it is asked to");
        let set = connected(ModelOverrides {
            context_tokens: Some(9_000),
            vision: Some(false),
            tools: Some(ToolMode::Prompted),
            effort: Some(Effort::High),
            ..ModelOverrides::default()
        })
        .await;
        let limits = set.limits();
        assert_eq!((limits.context_tokens, limits.vision, limits.native_tools), (9_000, false, false));
        assert_eq!(set.default_effort(), Some(Effort::High));
        let silent = connected(ModelOverrides { thinking: Some(false), ..ModelOverrides::default() }).await;
        assert_eq!(silent.default_effort(), None);
    }

    #[tokio::test]
    async fn a_missing_key_error_names_the_variable() {
        let settings = Settings { name: Some("anthropic/claude-opus-5".into()), ..Settings::default() };
        let error = connect(&settings).await.err().unwrap();
        assert!(
            matches!(error, ModelError::Auth { .. }) && error.to_string().contains("ANTHROPIC_API_KEY"),
            "{error}"
        );
    }

    #[tokio::test]
    async fn connect_fails_with_no_model_if_nothing_is_configured_or_found() {
        let settings = Settings { local: false, ..Settings::default() };
        assert_eq!(connect(&settings).await.err().unwrap().code(), "no_model");
    }

    #[tokio::test]
    async fn an_invalid_fallback_is_rejected_by_index() {
        let settings = Settings {
            name: Some("http://127.0.0.1:9/v1".into()),
            fallback: vec!["http://127.0.0.1:9/v1".into(), "nobody/x".into()],
            ..Settings::default()
        };
        let error = connect(&settings).await.err().unwrap().to_string();
        assert!(error.starts_with("model.fallback[1]: there is no provider `nobody`"), "{error}");
    }
}
