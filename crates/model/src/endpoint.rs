//! The HTTP endpoint of a target according to the settings: its client, key, headers and silence timeout.

use std::time::Duration;

use crate::anthropic;
use crate::error::ModelError;
use crate::http::{self, Endpoint, ServerLocation};
use crate::name::{Dialect, ModelName};
use crate::provider::Target;
use crate::secret::Secret;
use crate::settings::{NamedBy, Settings};

/// The default silence timeout for a provider.
const REMOTE_SILENCE: Duration = Duration::from_secs(180);
/// The default for a local server, which may process a long prompt slowly.
const LOCAL_SILENCE: Duration = Duration::from_secs(900);

/// Whether the settings of the first model apply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ModelPosition {
    First,
    Fallback,
}

/// The HTTP endpoint of a target.
pub(crate) fn endpoint(
    target: &Target,
    settings: &Settings,
    position: ModelPosition,
) -> Result<Endpoint, ModelError> {
    let reach = target.reach();
    let silence = match reach {
        ServerLocation::Local => LOCAL_SILENCE,
        ServerLocation::Remote => REMOTE_SILENCE,
    };
    Ok(Endpoint {
        client: http::client(settings.connect_timeout, reach)?,
        name: ModelName::new(target.name()),
        base_url: target.base_url.clone(),
        key: key(target, settings, position)?,
        key_header: target.key_header(),
        headers: if target.dialect() == Dialect::Anthropic { anthropic::HEADERS } else { &[] },
        silence: settings.silence_timeout.unwrap_or(silence),
    })
}

/// The key for a target. A provider that requires a key must have one, unless its base URL is overridden.
pub(crate) fn key(
    target: &Target,
    settings: &Settings,
    position: ModelPosition,
) -> Result<Option<Secret>, ModelError> {
    let own = settings.key.clone().filter(|_| position == ModelPosition::First);
    let Some(provider) = target.provider else { return Ok(own) };
    // A key of the operator's environment must not go to an address that was chosen over the API.
    let is_chosen_address =
        settings.named_by == Some(NamedBy::Choice) && target.base_url != provider.base_url;
    let of_provider = settings.provider_keys.get(provider.id).filter(|_| !is_chosen_address);
    let found = own.or_else(|| of_provider.cloned());
    if found.is_none() && !provider.is_local() && target.base_url == provider.base_url {
        let variables = provider.key_variables.join(" or ");
        let detail = format!("there is no key; set {variables}, or name a file as key_file in [model]");
        return Err(ModelError::Auth { model: target.name(), detail });
    }
    Ok(found)
}
