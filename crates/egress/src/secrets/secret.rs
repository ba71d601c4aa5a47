//! Secrets: the server keeps the value, the sandbox sees a placeholder, and the proxy replaces the placeholder by
//! the value in requests to the secret's hosts.

use std::collections::BTreeMap;
use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hyper::header::{HeaderName, HeaderValue};
use hyper::{HeaderMap, Request};
use serde::{Deserialize, Serialize};

use super::redact::{Redactor, SHORTEST_VALUE};
use crate::error::EgressError;
use crate::policy::{Fit, Rule};
use crate::refusal::{ReasonCode, Refusal};
use crate::target::Target;

/// The prefix of every placeholder.
const PLACEHOLDER_PREFIX: &str = "caisson-placeholder-";
/// The maximum number of hosts per secret.
pub const MAX_SECRET_HOSTS: usize = 32;

/// A confidential text. Its `Debug` output is `***`.
#[derive(Clone, PartialEq, Eq)]
pub struct SecretString(String);

impl SecretString {
    #[must_use]
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The text. Use it only where the value is really needed.
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for SecretString {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// A job's grant for a secret: the hosts that may receive it. The server stores the value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SecretGrant {
    /// The hosts, as in an allow list: `api.example.org`, `*.example.org`, `example.org:8443`.
    pub hosts: Vec<Rule>,
}

impl SecretGrant {
    /// Checks what deserialization does not.
    ///
    /// # Errors
    /// There is no host, there are too many, or one is not a name.
    pub fn check(&self, secret: &str) -> Result<(), EgressError> {
        let refuse = |why: String| EgressError::Secret { secret: secret.chars().take(80).collect(), why };
        if self.hosts.is_empty() || self.hosts.len() > MAX_SECRET_HOSTS {
            return Err(refuse(format!(
                "`hosts` has {} entries; allowed are 1 to {MAX_SECRET_HOSTS}",
                self.hosts.len()
            )));
        }
        if let Some(rule) = self.hosts.iter().find(|rule| !rule.names_a_host()) {
            return Err(refuse(format!("\"{rule}\" is not a host name or *.name")));
        }
        match self.hosts.iter().find(|rule| rule.allows_without_tls()) {
            Some(rule) => {
                Err(refuse(format!("\"{rule}\" has `without_tls`; a secret is sent over TLS only")))
            }
            None => Ok(()),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Secret {
    /// Name of the environment variable.
    pub name: String,
    /// The text that the sandbox sees.
    pub placeholder: String,
    /// The text that the hosts receive.
    pub value: SecretString,
    pub hosts: Vec<Rule>,
}

impl Secret {
    /// Creates a secret.
    ///
    /// # Errors
    /// The value is not valid in a header, or is too short to be masked.
    pub fn new(
        name: &str,
        placeholder: String,
        value: SecretString,
        hosts: Vec<Rule>,
    ) -> Result<Self, EgressError> {
        let refuse =
            |why: &str| EgressError::Secret { secret: name.chars().take(80).collect(), why: why.into() };
        if value.reveal().len() < SHORTEST_VALUE {
            return Err(refuse("its value has fewer than 8 characters, too few to recognize it in text"));
        }
        if HeaderValue::from_str(value.reveal()).is_err() {
            return Err(refuse("its value has characters that cannot be sent in a header"));
        }
        Ok(Self { name: name.to_owned(), placeholder, value, hosts })
    }

    /// Creates a placeholder from random bytes.
    #[must_use]
    pub fn placeholder(random: [u8; 16]) -> String {
        format!("{PLACEHOLDER_PREFIX}{:032x}", u128::from_be_bytes(random))
    }
}

#[derive(Debug, Clone, Default)]
pub struct Secrets {
    secrets: Vec<Secret>,
}

/// What was inserted into the headers of a request.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct InsertedSecrets {
    /// The names of the secrets.
    pub(crate) names: Vec<String>,
}

impl Secrets {
    #[must_use]
    pub fn new(secrets: Vec<Secret>) -> Self {
        Self { secrets }
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.secrets.is_empty()
    }

    /// The environment variables for the sandbox.
    #[must_use]
    pub fn environment(&self) -> BTreeMap<String, String> {
        self.secrets.iter().map(|secret| (secret.name.clone(), secret.placeholder.clone())).collect()
    }

    /// A redactor for the values.
    #[must_use]
    pub fn redactor(&self) -> Redactor {
        Redactor::new(self.secrets.iter().map(|secret| secret.value.reveal()))
    }

    /// Whether a secret names this host, so that the proxy must terminate its TLS.
    #[must_use]
    pub(crate) fn name_host(&self, target: &Target) -> bool {
        self.secrets.iter().any(|secret| secret.is_for(target))
    }

    /// Replaces placeholders by values, for hosts that may receive them.
    ///
    /// # Errors
    /// The request has a placeholder, and the host may not receive its value.
    pub(crate) fn insert_values(
        &self,
        headers: &mut HeaderMap,
        target: &Target,
    ) -> Result<InsertedSecrets, Refusal> {
        let mut inserted = InsertedSecrets::default();
        let names: Vec<HeaderName> = headers.keys().cloned().collect();
        for name in names {
            let mut values: Vec<HeaderValue> = headers.get_all(&name).iter().cloned().collect();
            let mut changed = false;
            for value in &mut values {
                if let Some(new) = self.insert_in_value(value.as_bytes(), target, &mut inserted)? {
                    *value = new;
                    changed = true;
                }
            }
            if changed {
                headers.remove(&name);
                for mut value in values {
                    value.set_sensitive(true);
                    headers.append(&name, value);
                }
            }
        }
        Ok(inserted)
    }

    fn insert_in_value(
        &self,
        value: &[u8],
        target: &Target,
        inserted: &mut InsertedSecrets,
    ) -> Result<Option<HeaderValue>, Refusal> {
        let Ok(text) = std::str::from_utf8(value) else { return Ok(None) };
        let basic = text.split_once(' ').filter(|(scheme, _)| scheme.eq_ignore_ascii_case("basic"));
        let new = match basic.and_then(|(scheme, encoded)| Some((scheme, decode_basic(encoded)?))) {
            Some((scheme, decoded)) => {
                let Some(new) = self.insert_in_text(&decoded, target, inserted)? else { return Ok(None) };
                format!("{scheme} {}", STANDARD.encode(new))
            }
            None => match self.insert_in_text(text, target, inserted)? {
                Some(new) => new,
                None => return Ok(None),
            },
        };
        Ok(HeaderValue::from_str(&new).ok())
    }

    fn insert_in_text(
        &self,
        text: &str,
        target: &Target,
        inserted: &mut InsertedSecrets,
    ) -> Result<Option<String>, Refusal> {
        let mut new = None::<String>;
        for secret in &self.secrets {
            let current = new.as_deref().unwrap_or(text);
            if !current.contains(&secret.placeholder) {
                continue;
            }
            if !secret.is_for(target) {
                return Err(secret.refuse(target));
            }
            inserted.names.push(secret.name.clone());
            new = Some(current.replace(&secret.placeholder, secret.value.reveal()));
        }
        Ok(new)
    }

    /// Replaces values by placeholders; `None` if the text has no value.
    pub(crate) fn placeholders_restored(&self, text: &str) -> Option<String> {
        let mut new = None::<String>;
        for secret in &self.secrets {
            let current = new.as_deref().unwrap_or(text);
            if current.contains(secret.value.reveal()) {
                new = Some(current.replace(secret.value.reveal(), &secret.placeholder));
            }
        }
        new
    }

    /// Refuses a host name that contains a placeholder, because resolving it would send the placeholder to name
    /// servers.
    ///
    /// # Errors
    /// The name contains a placeholder.
    pub(crate) fn check_name(&self, target: &Target) -> Result<(), Refusal> {
        let name = target.host.to_string();
        match self.secrets.iter().find(|secret| name.contains(&secret.placeholder)) {
            Some(secret) => Err(Refusal {
                reason: format!(
                    "{target} refused: its name contains the placeholder of {}, which is only allowed in headers",
                    secret.name
                ),
                remedy: String::new(),
                ..secret.refuse(target)
            }),
            None => Ok(()),
        }
    }

    /// Refuses a placeholder in a place where it is never replaced and could therefore only leak.
    ///
    /// # Errors
    /// The text has a placeholder, and the host may not receive its value.
    pub(crate) fn check_text(&self, text: &[u8], target: &Target) -> Result<(), Refusal> {
        let leaked = self
            .secrets
            .iter()
            .find(|secret| !secret.is_for(target) && contains(text, secret.placeholder.as_bytes()));
        leaked.map_or(Ok(()), |secret| Err(secret.refuse(target)))
    }

    /// Refuses a placeholder in an unencrypted request.
    ///
    /// # Errors
    /// The request has a placeholder.
    pub(crate) fn check_plain<B>(&self, request: &Request<B>, target: &Target) -> Result<(), Refusal> {
        let uri = request.uri().to_string();
        let mut texts = vec![uri];
        for value in request.headers().values().filter_map(|value| value.to_str().ok()) {
            let basic = value.split_once(' ').filter(|(scheme, _)| scheme.eq_ignore_ascii_case("basic"));
            texts.extend(basic.and_then(|(_, encoded)| decode_basic(encoded)));
            texts.push(value.to_owned());
        }
        texts.iter().try_for_each(|text| self.check_unencrypted(text.as_bytes(), target))
    }

    /// Refuses a placeholder in unencrypted data.
    ///
    /// # Errors
    /// The data has a placeholder.
    pub(crate) fn check_unencrypted(&self, text: &[u8], target: &Target) -> Result<(), Refusal> {
        let leaked = self.secrets.iter().find(|secret| contains(text, secret.placeholder.as_bytes()));
        match leaked {
            Some(secret) if secret.is_for(target) => Err(Refusal {
                remedy: "use https".into(),
                reason: format!(
                    "{target} refused: the request contains the placeholder of {} and is not encrypted",
                    secret.name
                ),
                ..secret.refuse(target)
            }),
            Some(secret) => Err(secret.refuse(target)),
            None => Ok(()),
        }
    }

    /// The length of the longest placeholder.
    pub(crate) fn longest_placeholder(&self) -> usize {
        self.secrets.iter().map(|secret| secret.placeholder.len()).max().unwrap_or(0)
    }
}

impl Secret {
    fn is_for(&self, target: &Target) -> bool {
        self.hosts.iter().any(|rule| rule.fit(target) == Fit::Whole)
    }

    fn refuse(&self, target: &Target) -> Refusal {
        let hosts: Vec<String> = self.hosts.iter().map(ToString::to_string).collect();
        Refusal {
            code: ReasonCode::SecretHostMismatch,
            rule: format!("secret:{}", self.name),
            reason: format!(
                "{target} refused: the request contains the placeholder of {}, which may only be sent to {}",
                self.name,
                hosts.join(", ")
            ),
            remedy: format!(
                "add the host to `hosts` of the secret {} if it may receive the value",
                self.name
            ),
        }
    }
}

fn decode_basic(encoded: &str) -> Option<String> {
    String::from_utf8(STANDARD.decode(encoded.trim()).ok()?).ok()
}

fn contains(text: &[u8], part: &[u8]) -> bool {
    text.windows(part.len().max(1)).any(|window| window == part)
}

#[cfg(test)]
mod tests {
    use hyper::header::AUTHORIZATION;

    use super::*;

    fn secrets() -> Secrets {
        let placeholder = Secret::placeholder([7; 16]);
        let hosts = vec!["api.example.org".parse().unwrap()];
        Secrets::new(vec![
            Secret::new("TOKEN", placeholder, SecretString::new("the-real-value"), hosts).unwrap(),
        ])
    }

    fn target(host: &str) -> Target {
        Target { host: host.parse().unwrap(), port: 443 }
    }

    fn headers(value: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(AUTHORIZATION, HeaderValue::from_str(value).unwrap());
        headers
    }

    #[test]
    fn the_placeholder_becomes_the_value_for_its_host() {
        let secrets = secrets();
        let placeholder = &secrets.environment()["TOKEN"];
        let mut headers = headers(&format!("Bearer {placeholder}"));
        let inserted = secrets.insert_values(&mut headers, &target("api.example.org")).unwrap();
        assert_eq!(inserted.names, ["TOKEN"]);
        assert_eq!(headers[AUTHORIZATION], "Bearer the-real-value");
        assert!(headers[AUTHORIZATION].is_sensitive());
    }

    #[test]
    fn the_placeholder_is_found_inside_basic_credentials() {
        let secrets = secrets();
        let placeholder = &secrets.environment()["TOKEN"];
        let mut headers = headers(&format!("Basic {}", STANDARD.encode(format!("user:{placeholder}"))));
        secrets.insert_values(&mut headers, &target("api.example.org")).unwrap();
        assert_eq!(headers[AUTHORIZATION], format!("Basic {}", STANDARD.encode("user:the-real-value")));
    }

    #[test]
    fn placeholder_to_another_host_is_refused_and_names_the_secret() {
        let secrets = secrets();
        let placeholder = secrets.environment()["TOKEN"].clone();
        let elsewhere = target("evil.example");
        let refusal = secrets.insert_values(&mut headers(&placeholder), &elsewhere).unwrap_err();
        assert_eq!((refusal.code, refusal.rule.as_str()), (ReasonCode::SecretHostMismatch, "secret:TOKEN"));
        assert!(secrets.check_text(format!("/x?t={placeholder}").as_bytes(), &elsewhere).is_err());
        assert!(secrets.check_text(b"/x?t=nothing", &elsewhere).is_ok());
        let basic = format!("Basic {}", STANDARD.encode(format!("u:{placeholder}")));
        assert!(secrets.insert_values(&mut headers(&basic), &elsewhere).is_err());
    }

    #[test]
    fn a_value_is_never_printed() {
        assert!(!format!("{:?}", secrets()).contains("the-real-value"));
    }

    #[test]
    fn invalid_secret_is_rejected_by_name() {
        let hosts: Vec<Rule> = vec!["api.example.org".parse().unwrap()];
        for value in ["short", "with\nline-ends"] {
            let error =
                Secret::new("TOKEN", "p".into(), SecretString::new(value), hosts.clone()).unwrap_err();
            assert!(error.to_string().contains("TOKEN") && !error.to_string().contains(value), "{error}");
        }
        for hosts in [vec![], vec!["10.0.0.0/8".parse().unwrap()], vec!["packages".parse().unwrap()]] {
            assert!(SecretGrant { hosts }.check("TOKEN").unwrap_err().to_string().contains("TOKEN"));
        }
    }
}
