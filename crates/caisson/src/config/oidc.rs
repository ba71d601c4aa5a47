//! The section `[oidc]`: login through an OpenID Connect provider.

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::{Context, Result, bail, ensure};
use job::{KeyLimits, Role};
use orchestrator::check_limits;
use serde::Deserialize;
use server::{ClientSecret, OidcSettings};

/// `[oidc]`
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawOidc {
    pub(crate) issuer: Option<String>,
    pub(crate) name: Option<String>,
    pub(crate) client_id: Option<String>,
    pub(crate) client_secret_file: Option<PathBuf>,
    pub(crate) scopes: Option<Vec<String>>,
    pub(crate) role_claim: Option<String>,
    pub(crate) roles: BTreeMap<String, String>,
    pub(crate) default_role: Option<String>,
    pub(crate) limits: BTreeMap<String, KeyLimits>,
}

impl RawOidc {
    /// Checks the section; `None` if no provider is configured.
    pub(crate) fn settings(self) -> Result<Option<OidcSettings>> {
        let Some(issuer) = self.issuer else {
            ensure!(self.client_id.is_none(), "oidc.issuer: is missing; set it to the URL of the provider");
            return Ok(None);
        };
        let is_local = ["http://localhost", "http://127.0.0.1"].iter().any(|start| issuer.starts_with(start));
        if !issuer.starts_with("https://") && !is_local {
            bail!("oidc.issuer: `{issuer}` is not a URL such as https://id.example.org");
        }
        let client_id = self
            .client_id
            .context("oidc.client_id: is missing; set it to the client id from the provider")?;
        let client_secret = match &self.client_secret_file {
            Some(file) => {
                let text = std::fs::read_to_string(file)
                    .with_context(|| format!("oidc.client_secret_file: reading {}", file.display()))?;
                Some(ClientSecret(text.trim().to_owned()))
            }
            None => None,
        };
        let role = |key: &str, name: &str| -> Result<Role> {
            name.parse().map_err(|problem: String| anyhow::anyhow!("oidc.{key}: {problem}"))
        };
        let mut roles = BTreeMap::new();
        for (value, name) in &self.roles {
            roles.insert(value.clone(), role(&format!("roles.{value}"), name)?);
        }
        let default_role = self.default_role.as_deref().map(|name| role("default_role", name)).transpose()?;
        ensure!(
            default_role.is_some() || !roles.is_empty(),
            "oidc.roles: is empty and oidc.default_role is not set, so no user could log in"
        );
        let mut limits = BTreeMap::new();
        for (name, of_role) in self.limits {
            let role = role(&format!("limits.{name}"), &name)?;
            check_limits(&of_role).map_err(|wrong| {
                let field = wrong.field.trim_start_matches("limits.");
                anyhow::anyhow!("oidc.limits.{name}.{field}: {}", wrong.problem)
            })?;
            limits.insert(role, of_role);
        }
        Ok(Some(OidcSettings {
            name: self.name.unwrap_or_else(|| issuer.trim_start_matches("https://").to_owned()),
            issuer,
            client_id,
            client_secret,
            scopes: self.scopes.unwrap_or_else(|| vec!["email".into(), "profile".into()]),
            role_claim: self.role_claim.unwrap_or_else(|| "groups".into()),
            roles,
            default_role,
            limits,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Option<OidcSettings>> {
        toml::from_str::<RawOidc>(text).unwrap().settings()
    }

    #[test]
    fn missing_and_invalid_oidc_settings_are_reported() {
        assert_eq!(read("").unwrap(), None);
        let good = "issuer = \"https://id.example\"\nclient_id = \"c\"\n";
        assert_eq!(read(&format!("{good}default_role = \"viewer\"")).unwrap().unwrap().role_claim, "groups");
        let limited = format!("{good}default_role = \"viewer\"\n[limits.viewer]\nmax_running = 3");
        assert_eq!(read(&limited).unwrap().unwrap().limits[&Role::Viewer].max_running, Some(3));
        for (text, key) in [
            ("client_id = \"c\"".to_owned(), "oidc.issuer"),
            ("issuer = \"http://id.example\"\nclient_id = \"c\"".to_owned(), "oidc.issuer"),
            ("issuer = \"https://id.example\"".to_owned(), "oidc.client_id"),
            (good.to_owned(), "oidc.roles"),
            (format!("{good}default_role = \"king\""), "oidc.default_role"),
            (format!("{good}[roles]\nops = \"king\""), "oidc.roles.ops"),
            (format!("{good}default_role = \"viewer\"\n[limits.king]\nmax_queued = 1"), "oidc.limits.king"),
            (
                format!("{good}default_role = \"viewer\"\n[limits.viewer]\nrequests_per_second = 0"),
                "oidc.limits.viewer.requests_per_second",
            ),
            (
                format!("{good}client_secret_file = \"/nowhere\"\ndefault_role = \"viewer\""),
                "oidc.client_secret_file",
            ),
        ] {
            let error = format!("{:#}", read(&text).unwrap_err());
            assert!(error.contains(key), "{text}: {error}");
        }
    }
}
