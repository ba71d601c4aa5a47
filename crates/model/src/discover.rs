//! Lists what is reachable: local servers on their usual ports, and providers that have a key.

use std::time::Duration;

use futures::future::join_all;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::catalogue;
use crate::endpoint::{ModelPosition, endpoint};
use crate::error::ModelError;
use crate::http::ServerLocation;
use crate::name::{Dialect, ModelName};
use crate::price::Price;
use crate::probe::{self, ServedModel, Server};
use crate::provider::{PROVIDERS, Target};
use crate::settings::Settings;

/// Connect timeout for a port of this machine.
const LOCAL_CONNECT: Duration = Duration::from_millis(500);
/// Timeout for a provider's list of models.
const TIMEOUT: Duration = Duration::from_secs(15);

/// A server or provider, and what it offers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(as = ModelSource)]
pub struct Source {
    /// `ollama`, `anthropic`, ...
    pub kind: String,
    /// Where it is.
    pub address: String,
    /// Why its models are not known; holds no key.
    pub trouble: Option<String>,
    /// The same for programs here; who asks a server finds it where it says what agents use.
    #[serde(skip)]
    #[schema(ignore)]
    pub trouble_code: Option<&'static str>,
    /// What it offers.
    pub models: Vec<Offer>,
}

/// A model that can be configured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(as = ModelOffer)]
pub struct Offer {
    /// What to write in the configuration.
    pub name: ModelName,
    /// Tokens that it takes, where known.
    pub context_tokens: Option<u32>,
    /// Whether it sees pictures, where known.
    pub vision: Option<bool>,
    /// Whether it has tool calls of its own, where known.
    pub tools: Option<bool>,
    /// What it costs, where known.
    pub price: Option<Price>,
}

impl Server {
    /// The default model of a server: preferably in memory, with tools, large.
    pub(crate) fn default_model(&self) -> Option<&ServedModel> {
        self.models.iter().max_by_key(|model| (model.is_loaded, model.tools, model.parameters))
    }
}

/// Everything that is reachable: the configured servers, those on this machine, and providers with a key.
pub async fn list(settings: &Settings) -> Result<Vec<Source>, ModelError> {
    let named = settings.named()?;
    let mut wanted: Vec<(Target, ModelPosition)> = Vec::new();
    let mut add = |target: Target, position: ModelPosition| {
        if !wanted.iter().any(|(known, _)| known.base_url == target.base_url) {
            wanted.push((target, position));
        }
    };
    for (index, target) in named.into_iter().enumerate() {
        add(target, if index == 0 { ModelPosition::First } else { ModelPosition::Fallback });
    }
    for provider in PROVIDERS.iter().filter(|provider| settings.provider_keys.contains_key(provider.id)) {
        add(
            Target { provider: Some(provider), model: String::new(), base_url: provider.base_url.into() },
            ModelPosition::Fallback,
        );
    }
    let asked = join_all(wanted.into_iter().map(|(target, position)| source(target, settings, position)));
    let (mut sources, found) = futures::join!(asked, local(settings));
    let known: Vec<String> = sources.iter().map(|source| source.address.clone()).collect();
    sources.extend(
        found
            .into_iter()
            .filter(|(target, _)| !known.contains(&target.base_url))
            .map(|(target, server)| local_source(&target, server, settings)),
    );
    Ok(sources)
}

/// The local server and model to use if nothing is configured.
pub(crate) async fn pick(settings: &Settings) -> Result<Option<Target>, ModelError> {
    let found = local(settings).await;
    let default_model = found.into_iter().filter_map(|(target, server)| {
        let model = server.default_model()?;
        Some(((model.is_loaded, model.tools, model.parameters), Target { model: model.id.clone(), ..target }))
    });
    // With equal models, the first port wins.
    Ok(default_model.reduce(|one, other| if other.0 > one.0 { other } else { one }).map(|(_, target)| target))
}

/// Servers that answer on this machine.
async fn local(settings: &Settings) -> Vec<(Target, Server)> {
    if !settings.local {
        return Vec::new();
    }
    let local_settings = Settings { connect_timeout: LOCAL_CONNECT, ..settings.clone() };
    let asked = settings.local_ports.iter().map(|port| {
        let local_settings = &local_settings;
        async move {
            let target = Target {
                provider: None,
                model: String::new(),
                base_url: format!("http://127.0.0.1:{port}/v1"),
            };
            let endpoint = endpoint(&target, local_settings, ModelPosition::Fallback).ok()?;
            let server = probe::query_server(&endpoint).await.ok()?;
            Some((target, server))
        }
    });
    join_all(asked).await.into_iter().flatten().collect()
}

async fn source(target: Target, settings: &Settings, position: ModelPosition) -> Source {
    let is_local = target.provider.is_none_or(crate::provider::Provider::is_local);
    let kind = target.provider.map_or("openai-compatible", |provider| provider.id).to_owned();
    let failed = |kind: String, error: &ModelError| Source {
        kind,
        address: target.base_url.clone(),
        trouble: Some(error.to_string()),
        trouble_code: Some(error.code()),
        models: Vec::new(),
    };
    let endpoint = match endpoint(&target, settings, position) {
        Ok(endpoint) => endpoint,
        Err(error) => return failed(kind, &error),
    };
    if is_local {
        return match probe::query_server(&endpoint).await {
            Ok(server) => local_source(&target, server, settings),
            Err(error) => failed(kind, &error),
        };
    }
    let path = match target.dialect() {
        Dialect::Anthropic => "/models?limit=1000",
        Dialect::Gemini => "/models?pageSize=1000",
        Dialect::OpenAi | Dialect::Responses => "/models",
    };
    match endpoint.get(path, TIMEOUT).await {
        Ok(list) => Source {
            kind,
            address: target.base_url.clone(),
            trouble: None,
            trouble_code: None,
            models: offers(&target, &list, settings),
        },
        Err(error) => failed(kind, &error),
    }
}

/// Parses a provider's list of models. Skips models that are declared not to be chat models.
fn offers(target: &Target, list: &Value, settings: &Settings) -> Vec<Offer> {
    let data = list["data"].as_array().or_else(|| list["models"].as_array());
    let mut offers: Vec<Offer> = Vec::new();
    for model in data.into_iter().flatten() {
        let Some(id) = model["id"].as_str().or_else(|| model["name"].as_str()) else { continue };
        let methods = model["supportedGenerationMethods"].as_array();
        if methods.is_some_and(|methods| !methods.iter().any(|method| method == "generateContent")) {
            continue;
        }
        let id = id.strip_prefix("models/").unwrap_or(id);
        let name = Target { model: id.to_owned(), ..target.clone() }.name();
        let reported = ["context_length", "inputTokenLimit", "max_input_tokens"]
            .iter()
            .find_map(|key| model[*key].as_u64());
        let known = catalogue::limits(&name);
        offers.push(Offer {
            context_tokens: reported
                .and_then(|tokens| u32::try_from(tokens).ok())
                .or(Some(known.context_tokens)),
            vision: Some(known.vision),
            tools: Some(known.native_tools),
            price: catalogue::price(&name, false, settings),
            name: ModelName::new(name),
        });
    }
    offers.sort_by(|one, other| one.name.cmp(&other.name));
    offers
}

fn local_source(target: &Target, server: Server, settings: &Settings) -> Source {
    let is_here = target.reach() == ServerLocation::Local;
    let models = server.models.into_iter().map(|model| {
        let name = Target { model: model.id, ..target.clone() }.name();
        Offer {
            context_tokens: model.context_tokens,
            vision: model.vision,
            tools: model.tools,
            price: catalogue::price(&name, is_here, settings),
            name: ModelName::new(name),
        }
    });
    Source {
        kind: server.kind.as_str().into(),
        address: target.base_url.clone(),
        trouble: None,
        trouble_code: None,
        models: models.collect(),
    }
}
