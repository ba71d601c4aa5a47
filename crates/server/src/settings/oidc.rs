//! The settings of the login with OpenID Connect.

use std::collections::BTreeMap;

use job::{KeyLimits, Role};

/// The OpenID Connect settings.
#[derive(Debug, Clone, PartialEq)]
pub struct OidcSettings {
    /// The provider's name, as the login button shows it.
    pub name: String,
    /// The issuer URL, exactly as the provider's tokens contain it.
    pub issuer: String,
    pub client_id: String,
    /// The client secret, if the provider requires one.
    pub client_secret: Option<ClientSecret>,
    /// The scopes to request in addition to `openid`.
    pub scopes: Vec<String>,
    /// The claim that determines the role.
    pub role_claim: String,
    /// The role for each value of that claim.
    pub roles: BTreeMap<String, Role>,
    /// The role of accounts without a matching value. Without it they are rejected.
    pub default_role: Option<Role>,
    /// The limits of each role.
    pub limits: BTreeMap<Role, KeyLimits>,
}

impl OidcSettings {
    /// Settings for tests.
    #[cfg(test)]
    pub(crate) fn example() -> Self {
        Self {
            name: "Example".into(),
            issuer: "https://id.example".into(),
            client_id: "caisson".into(),
            client_secret: Some(ClientSecret("s".into())),
            scopes: vec!["email".into()],
            role_claim: "groups".into(),
            roles: BTreeMap::from([("ops".into(), Role::Operator), ("devs".into(), Role::Submitter)]),
            default_role: None,
            limits: BTreeMap::new(),
        }
    }
}

/// A secret that `Debug` does not print.
#[derive(Clone, PartialEq, Eq)]
pub struct ClientSecret(pub String);

impl std::fmt::Debug for ClientSecret {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("***")
    }
}
