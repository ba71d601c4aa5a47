//! The model that agents use and all reachable models, as one document for `caisson models --json` and `GET
//! /v1/models`. It contains no keys.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::connect::connect;
use crate::discover::{Source, list};
use crate::error::ModelError;
use crate::name::ModelName;
use crate::settings::{ModelLimits, Settings};

/// Which model agents use, and what else could be reached.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Survey {
    /// The model that agents use where a job names no other; absent where there is none.
    pub model: Option<UsedModel>,
    /// Why there is none, or why the configured one cannot be asked now.
    pub trouble: Option<Trouble>,
    /// Servers and providers that were asked; the configured ones first.
    pub sources: Vec<Source>,
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

impl Survey {
    /// Whether agents have a usable model.
    #[must_use]
    pub fn is_usable(&self) -> bool {
        self.model.is_some() && self.trouble.is_none()
    }
}

/// Queries all servers and providers. Those that do not answer are listed with their error.
pub async fn survey(settings: &Settings) -> Result<Survey, ModelError> {
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
    Ok(Survey { model, trouble, sources })
}
