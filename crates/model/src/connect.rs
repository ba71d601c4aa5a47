//! From settings to a model.

use std::sync::Arc;
use std::time::Duration;

use crate::Model;
use crate::anthropic::{self, Anthropic};
use crate::catalogue;
use crate::chain::{Chain, Link};
use crate::discover;
use crate::error::ModelError;
use crate::gemini::Gemini;
use crate::http::{self, Endpoint, Reach};
use crate::name::{Dialect, ModelName};
use crate::openai::{Flavour, OpenAi};
use crate::probe::{self, Served, Server};
use crate::prompted::{Prompted, Way};
use crate::provider::{Provider, Target};
use crate::responses::Responses;
use crate::secret::Secret;
use crate::settings::{ModelLimits, Settings, ToolMode};

/// How long a provider may be silent where the settings do not say.
const REMOTE_SILENCE: Duration = Duration::from_secs(180);
/// A server on this machine may read a long prompt slowly.
const LOCAL_SILENCE: Duration = Duration::from_secs(900);
/// Models made of fewer numbers follow a schema better than they make calls of their own.
const FEW_PARAMETERS: u64 = 4_000_000_000;

/// Makes the model that the settings name, with retry, fallbacks and the right way of calling tools around it. Servers
/// named by address are asked what they can do; providers are not asked anything yet. Cheap: call it again when it
/// said [`ModelError::NoModel`] or [`ModelError::Unreachable`]. Of a list, those that cannot be reached now are left
/// out until the next call.
pub async fn connect(settings: &Settings) -> Result<Arc<dyn Model>, ModelError> {
    let targets = targets(settings).await?;
    let mut links = Vec::new();
    let mut trouble = None;
    for (index, target) in targets.into_iter().enumerate() {
        let place = if index == 0 { Place::First } else { Place::Fallback };
        match link(target, settings, place).await {
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

/// Whether the settings for the first model count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    First,
    Fallback,
}

/// What is named, or a local server that was found.
pub(crate) async fn targets(settings: &Settings) -> Result<Vec<Target>, ModelError> {
    let mut targets = settings.named()?;
    if targets.is_empty() && settings.local {
        targets.extend(discover::pick(settings).await?);
    }
    if targets.is_empty() { Err(no_model()) } else { Ok(targets) }
}

fn no_model() -> ModelError {
    let advice = "name one in the configuration ([model] name = \"anthropic/...\", or CAISSON_MODEL) or start a local \
                  server such as Ollama or llama.cpp; `caisson models` shows what is reachable";
    ModelError::NoModel { advice: advice.into() }
}

/// The way to a target.
pub(crate) fn endpoint(target: &Target, settings: &Settings, place: Place) -> Result<Endpoint, ModelError> {
    let reach = target.reach();
    let silence = match reach {
        Reach::Local => LOCAL_SILENCE,
        Reach::Remote => REMOTE_SILENCE,
    };
    Ok(Endpoint {
        client: http::client(settings.connect_timeout, reach)?,
        name: ModelName::new(target.name()),
        base_url: target.base_url.clone(),
        key: key(target, settings, place)?,
        key_header: target.key_header(),
        headers: if target.dialect() == Dialect::Anthropic { anthropic::HEADERS } else { &[] },
        silence: settings.silence_timeout.unwrap_or(silence),
    })
}

/// The key for a target; a provider that wants one must have one, unless it is spoken to at another address.
fn key(target: &Target, settings: &Settings, place: Place) -> Result<Option<Secret>, ModelError> {
    let own = settings.key.clone().filter(|_| place == Place::First);
    let Some(provider) = target.provider else { return Ok(own) };
    let found = own.or_else(|| settings.provider_keys.get(provider.id).cloned());
    if found.is_none() && !provider.is_local() && target.base_url == provider.base_url {
        let variables = provider.key_variables.join(" or ");
        let detail = format!("there is no key; set {variables}, or name a file as key_file in [model]");
        return Err(ModelError::Auth { model: target.name(), detail });
    }
    Ok(found)
}

async fn link(mut target: Target, settings: &Settings, place: Place) -> Result<Link, ModelError> {
    let is_local = target.provider.is_none_or(Provider::is_local);
    let mut endpoint = endpoint(&target, settings, place)?;
    let mut limits = catalogue::limits(&target.name());
    let mut way = None;
    if is_local {
        let server = probe::look(&endpoint).await?;
        let served = choose(&server, &target, &endpoint)?;
        target.model.clone_from(&served.id);
        endpoint.name = ModelName::new(target.name());
        limits = known_limits(limits, &served);
        way = way_of(settings.tools, &served);
    } else if settings.tools == ToolMode::Prompted {
        way = Some(Way::Schema);
    }
    if place == Place::First {
        limits.context_tokens = settings.context_tokens.unwrap_or(limits.context_tokens);
        limits.output_tokens = settings.output_tokens.unwrap_or(limits.output_tokens);
    }
    let price = catalogue::price(&target.name(), is_local && target.reach() == Reach::Local, settings);
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
    let model = match way {
        Some(way) => Arc::new(Prompted::new(inner, way)),
        None => inner,
    };
    Ok(Link::new(model, price))
}

/// The model that is named, or the one that is best to begin with.
fn choose(server: &Server, target: &Target, endpoint: &Endpoint) -> Result<Served, ModelError> {
    let names =
        || server.models.iter().map(|model| model.id.as_str()).take(20).collect::<Vec<_>>().join(", ");
    if target.model.is_empty() {
        return server.best().cloned().ok_or_else(|| endpoint.malformed("the server offers no model"));
    }
    let is_it =
        |model: &&Served| model.id == target.model || model.id.strip_suffix(":latest") == Some(&target.model);
    match server.models.iter().find(is_it) {
        Some(model) => Ok(model.clone()),
        // A server with one model answers whatever it is called; others load what they are asked for.
        None if server.kind == probe::ServerKind::Ollama => Err(ModelError::UnknownModel {
            model: target.name(),
            detail: format!("the server has {}; `ollama pull {}` fetches it", names(), target.model),
        }),
        None => Ok(Served { id: target.model.clone(), ..server.models.first().cloned().unwrap_or_default() }),
    }
}

fn known_limits(limits: ModelLimits, served: &Served) -> ModelLimits {
    let context_tokens = served.context_tokens.unwrap_or(limits.context_tokens);
    ModelLimits {
        context_tokens,
        output_tokens: (context_tokens / 4).clamp(512, 16_384),
        vision: served.vision.unwrap_or(limits.vision),
        native_tools: true,
        reasoning: served.reasoning.unwrap_or(limits.reasoning),
    }
}

/// How calls begin; nothing where they are the server's own whatever happens.
fn way_of(mode: ToolMode, served: &Served) -> Option<Way> {
    let is_small = served.parameters.is_some_and(|parameters| parameters < FEW_PARAMETERS);
    match mode {
        ToolMode::Native => None,
        ToolMode::Prompted => Some(Way::Schema),
        ToolMode::Auto if served.tools == Some(false) || is_small => Some(Way::Schema),
        ToolMode::Auto => Some(Way::Native),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_models_and_those_without_calls_of_their_own_are_prompted() {
        let served = |tools, parameters| Served { tools, parameters, ..Served::default() };
        assert_eq!(way_of(ToolMode::Auto, &served(Some(true), Some(500_000_000))), Some(Way::Schema));
        assert_eq!(way_of(ToolMode::Auto, &served(Some(false), None)), Some(Way::Schema));
        assert_eq!(way_of(ToolMode::Auto, &served(Some(true), Some(8_000_000_000))), Some(Way::Native));
        assert_eq!(way_of(ToolMode::Native, &served(Some(false), None)), None);
        assert_eq!(way_of(ToolMode::Prompted, &served(Some(true), None)), Some(Way::Schema));
    }

    #[tokio::test]
    async fn a_missing_key_is_told_with_the_name_of_its_variable() {
        let settings = Settings { name: Some("anthropic/claude-opus-5".into()), ..Settings::default() };
        let error = connect(&settings).await.err().unwrap();
        assert!(
            matches!(error, ModelError::Auth { .. }) && error.to_string().contains("ANTHROPIC_API_KEY"),
            "{error}"
        );
    }

    #[tokio::test]
    async fn nothing_configured_and_nothing_found_is_no_model() {
        let settings = Settings { local: false, ..Settings::default() };
        assert_eq!(connect(&settings).await.err().unwrap().code(), "no_model");
    }

    #[tokio::test]
    async fn a_wrong_fallback_is_refused_by_its_place() {
        let settings = Settings {
            name: Some("http://127.0.0.1:9/v1".into()),
            fallback: vec!["http://127.0.0.1:9/v1".into(), "nobody/x".into()],
            ..Settings::default()
        };
        let error = connect(&settings).await.err().unwrap().to_string();
        assert!(error.starts_with("model.fallback[1]: there is no provider `nobody`"), "{error}");
    }
}
