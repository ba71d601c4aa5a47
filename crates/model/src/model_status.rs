//! The model that agents use and all reachable models, as one document for `caisson models --json` and `GET
//! /v1/models`. It contains no keys.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::choice::ChosenModel;
use crate::connect::connect;
use crate::discover::{Source, list};
use crate::error::ModelError;
use crate::name::ModelName;
use crate::provider::{PROVIDERS, Provider};
use crate::settings::{ModelLimits, NamedBy, Settings};

/// Which model agents use, and what else could be reached.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ModelStatus {
    /// The model that agents use where a job names no other; absent where there is none.
    pub model: Option<UsedModel>,
    /// What sets the model; absent where nothing does. Agents then use a local server, if one is found.
    pub origin: Option<ModelOrigin>,
    /// Why there is none, or why the configured one cannot be asked now.
    pub trouble: Option<Trouble>,
    /// Servers and providers that were asked; the configured ones first.
    pub sources: Vec<Source>,
    /// What an admin chose on this server. It has no effect while the configuration names a model.
    pub choice: Option<ChosenModel>,
    /// The providers that an admin can choose.
    pub providers: Vec<ProviderInfo>,
}

/// What sets the model that agents use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ModelOrigin {
    /// The configuration file.
    File,
    /// The environment of the server.
    Environment,
    /// An admin, over the API.
    Chosen,
}

impl From<&NamedBy> for ModelOrigin {
    fn from(named_by: &NamedBy) -> Self {
        match named_by {
            NamedBy::File(_) => Self::File,
            NamedBy::Variable(_) => Self::Environment,
            NamedBy::Choice => Self::Chosen,
        }
    }
}

/// A provider that can be chosen.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = ModelProvider)]
pub struct ProviderInfo {
    /// Its name in `provider/model`.
    pub id: String,
    /// Its address, unless the choice names another one.
    pub address: String,
    /// Whether it requires an API key.
    pub requires_key: bool,
    /// The variables of the server's environment that can have the key.
    pub key_variables: Vec<String>,
}

impl ProviderInfo {
    /// All providers.
    #[must_use]
    pub fn all() -> Vec<Self> {
        let info = |provider: &Provider| Self {
            id: provider.id.to_owned(),
            address: provider.base_url.to_owned(),
            requires_key: !provider.is_local(),
            key_variables: provider.key_variables.iter().map(|&name| name.to_owned()).collect(),
        };
        PROVIDERS.iter().map(info).collect()
    }
}

/// The model that agents use.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct UsedModel {
    /// What it is called.
    pub name: ModelName,
    /// What it can take and do.
    pub limits: ModelLimits,
}

/// Why there is no model, or none that answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Trouble {
    /// For programs: `no_model`, `model_unreachable`, `model_auth`, ...
    pub code: String,
    /// For people.
    pub detail: String,
}

impl From<&ModelError> for Trouble {
    fn from(error: &ModelError) -> Self {
        Self { code: error.code().to_owned(), detail: error.to_string() }
    }
}

impl Trouble {
    /// Why the models of a source are not known; `None` if they are.
    fn of(source: &Source) -> Option<Self> {
        let code = source.trouble_code.unwrap_or("model_unreachable").to_owned();
        Some(Self { code, detail: source.trouble.clone()? })
    }
}

impl ModelStatus {
    /// Whether agents have a usable model.
    #[must_use]
    pub fn is_usable(&self) -> bool {
        self.model.is_some() && self.trouble.is_none()
    }
}

/// Queries all servers and providers. Those that do not answer are listed with their error. The caller adds what an
/// admin chose.
pub async fn check_models(settings: &Settings) -> Result<ModelStatus, ModelError> {
    let (sources, used) = futures::join!(list(settings), connect(settings));
    let sources = sources?;
    let is_named = settings.name.is_some() || settings.base_url.is_some();
    let (model, trouble) = match used {
        Ok(model) => {
            let trouble = sources.first().filter(|_| is_named).and_then(Trouble::of);
            (Some(UsedModel { name: model.name().clone(), limits: model.limits() }), trouble)
        }
        Err(error) => (None, Some(Trouble::from(&error))),
    };
    let origin = settings.named_by.as_ref().map(ModelOrigin::from);
    Ok(ModelStatus { model, origin, trouble, sources, choice: None, providers: ProviderInfo::all() })
}
