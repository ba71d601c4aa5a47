//! Login with OpenID Connect: the authorization code flow with PKCE.
//!
//! The server redirects the browser to the provider with a state, a nonce and the digest of a secret, and keeps them
//! in a sealed cookie until the browser returns. The claims in the ID token that the provider signs then determine
//! the role.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use job::{Key, Role};
use jsonwebtoken::jwk::JwkSet;
use serde::Deserialize;
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::id_token;
use crate::settings::OidcSettings;

/// How long the provider's metadata and keys are cached.
const CACHE_TTL: Duration = Duration::from_secs(3600);
const TIMEOUT: Duration = Duration::from_secs(15);
/// How long a failure is cached.
const FAILURE_CACHE_TTL: Duration = Duration::from_secs(10);

/// The state of a login in progress, which the browser keeps in a sealed cookie.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PendingLogin {
    /// Identifies the login; the OAuth `state` parameter.
    pub(crate) state: String,
    nonce: String,
    verifier: String,
}

impl PendingLogin {
    fn new() -> Self {
        let random_token = || format!("{}{}", uuid::Uuid::new_v4().simple(), uuid::Uuid::new_v4().simple());
        Self { state: random_token(), nonce: random_token(), verifier: random_token() }
    }

    pub(crate) fn text(&self) -> String {
        format!("{}/{}/{}", self.state, self.nonce, self.verifier)
    }

    pub(crate) fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split('/').map(ToOwned::to_owned);
        Some(Self { state: parts.next()?, nonce: parts.next()?, verifier: parts.next()? })
    }

    fn challenge(&self) -> String {
        URL_SAFE_NO_PAD.encode(Sha256::digest(&self.verifier))
    }
}

/// The metadata that a provider publishes.
#[derive(Debug, Clone, Deserialize)]
struct Provider {
    issuer: String,
    authorization_endpoint: String,
    token_endpoint: String,
    jwks_uri: String,
    userinfo_endpoint: Option<String>,
}

#[derive(Clone)]
struct CachedProvider {
    provider: Provider,
    keys: Arc<JwkSet>,
    since: Instant,
}

/// The provider's cached metadata and its latest failure.
#[derive(Default)]
struct ProviderCache {
    known: Option<CachedProvider>,
    failure: Option<(String, Instant)>,
}

/// A client for one OpenID provider.
pub(crate) struct Oidc {
    settings: OidcSettings,
    http: reqwest::Client,
    cache: Mutex<ProviderCache>,
}

impl Oidc {
    pub(crate) fn new(settings: OidcSettings) -> Result<Self, reqwest::Error> {
        // `reqwest` is built without a TLS crypto provider. An error means that one is already installed.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let redirects = reqwest::redirect::Policy::none();
        let http = reqwest::Client::builder().timeout(TIMEOUT).redirect(redirects).build()?;
        Ok(Self { settings, http, cache: Mutex::default() })
    }

    pub(crate) fn name(&self) -> &str {
        &self.settings.name
    }

    /// The provider's metadata and keys. Requests do not wait for each other: with an empty cache each one asks the
    /// provider, and after a failure none does for a moment.
    async fn known(&self) -> Result<CachedProvider, String> {
        {
            let cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(fresh) = cache.known.as_ref().filter(|known| known.since.elapsed() < CACHE_TTL) {
                return Ok(fresh.clone());
            }
            if let Some((why, since)) = &cache.failure
                && since.elapsed() < FAILURE_CACHE_TTL
            {
                return Err(why.clone());
            }
        }
        self.fetch_known().await
    }

    async fn fetch_known(&self) -> Result<CachedProvider, String> {
        let fetched = self.ask_provider().await;
        let mut cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        match &fetched {
            Ok(known) => *cache = ProviderCache { known: Some(known.clone()), failure: None },
            Err(why) => cache.failure = Some((why.clone(), Instant::now())),
        }
        fetched
    }

    async fn ask_provider(&self) -> Result<CachedProvider, String> {
        let issuer = self.settings.issuer.trim_end_matches('/');
        let provider: Provider = self.fetch(&format!("{issuer}/.well-known/openid-configuration")).await?;
        if provider.issuer != self.settings.issuer {
            return Err(format!(
                "the provider's issuer is {}, expected {}",
                provider.issuer, self.settings.issuer
            ));
        }
        let keys: JwkSet = self.fetch(&provider.jwks_uri).await?;
        Ok(CachedProvider { provider, keys: Arc::new(keys), since: Instant::now() })
    }

    async fn fetch<T: serde::de::DeserializeOwned>(&self, url: &str) -> Result<T, String> {
        let describe_error = |error: reqwest::Error| format!("{url}: {}", error.without_url());
        let response = self.http.get(url).send().await.map_err(describe_error)?;
        response.error_for_status().map_err(describe_error)?.json().await.map_err(describe_error)
    }

    /// Starts a login. Returns the redirect URL and the state that the browser must bring back.
    pub(crate) async fn begin(&self, callback: &str) -> Result<(String, PendingLogin), String> {
        let known = self.known().await?;
        let pending = PendingLogin::new();
        let scope = std::iter::once("openid").chain(self.settings.scopes.iter().map(String::as_str));
        let scope = scope.collect::<Vec<_>>().join(" ");
        let challenge = pending.challenge();
        let pairs = [
            ("response_type", "code"),
            ("client_id", &self.settings.client_id),
            ("redirect_uri", callback),
            ("scope", &scope),
            ("state", &pending.state),
            ("nonce", &pending.nonce),
            ("code_challenge", &challenge),
            ("code_challenge_method", "S256"),
        ];
        let url = reqwest::Url::parse_with_params(&known.provider.authorization_endpoint, pairs)
            .map_err(|error| format!("the provider's URL is not valid: {error}"))?;
        Ok((url.into(), pending))
    }

    /// Finishes a login and returns the account as a key.
    pub(crate) async fn finish(
        &self,
        callback: &str,
        pending: &PendingLogin,
        state: &str,
        code: &str,
    ) -> Result<Key, String> {
        if state != pending.state {
            return Err("the login was started in another browser or has expired; log in again".into());
        }
        let known = self.known().await?;
        let mut form = vec![
            ("grant_type", "authorization_code"),
            ("code", code),
            ("redirect_uri", callback),
            ("client_id", &self.settings.client_id),
            ("code_verifier", &pending.verifier),
        ];
        if let Some(secret) = &self.settings.client_secret {
            form.push(("client_secret", &secret.0));
        }
        let body = reqwest::Url::parse_with_params("http://form", form).ok();
        let body = body.and_then(|url| url.query().map(ToOwned::to_owned)).unwrap_or_default();
        let request = self.http.post(&known.provider.token_endpoint);
        let request = request.header("content-type", "application/x-www-form-urlencoded").body(body);
        let describe_error =
            |error: reqwest::Error| format!("requesting a token from the provider: {}", error.without_url());
        let answer: Value =
            request.send().await.map_err(describe_error)?.json().await.map_err(describe_error)?;
        let Some(token) = answer["id_token"].as_str() else {
            let why = answer["error_description"]
                .as_str()
                .or(answer["error"].as_str())
                .unwrap_or("no reason given");
            return Err(format!("the provider refused the token request: {why}"));
        };
        let claims = match id_token::verify(&self.settings, &known.keys, token) {
            // The provider may have rotated its keys since they were fetched.
            Err(_) => id_token::verify(&self.settings, &self.fetch_known().await?.keys, token)?,
            Ok(claims) => claims,
        };
        id_token::check_nonce(&claims, &pending.nonce)?;
        let claims = self.with_userinfo(&known, claims, answer["access_token"].as_str()).await?;
        account(&self.settings, &claims)
    }

    /// Many providers return some claims only from the userinfo endpoint.
    async fn with_userinfo(
        &self,
        known: &CachedProvider,
        mut claims: Value,
        token: Option<&str>,
    ) -> Result<Value, String> {
        let is_known = claims.get(&self.settings.role_claim).is_some();
        let (false, Some(url), Some(token)) = (is_known, &known.provider.userinfo_endpoint, token) else {
            return Ok(claims);
        };
        let describe_error = |error: reqwest::Error| {
            format!("requesting user information from the provider: {}", error.without_url())
        };
        let request = self.http.get(url).bearer_auth(token);
        let more: Value =
            request.send().await.map_err(describe_error)?.json().await.map_err(describe_error)?;
        if more["sub"] != claims["sub"] {
            return Err("the user information does not match the ID token".into());
        }
        if let (Some(claims), Value::Object(more)) = (claims.as_object_mut(), more) {
            for (name, value) in more {
                claims.entry(name).or_insert(value);
            }
        }
        Ok(claims)
    }
}

/// The prefix of the key ids of OIDC accounts.
pub(crate) use orchestrator::OIDC_ID_PREFIX as OIDC_KEY_PREFIX;

/// The key that represents an OIDC account while it is logged in.
fn account(settings: &OidcSettings, claims: &Value) -> Result<Key, String> {
    let subject = claims["sub"].as_str().unwrap_or_default();
    let named =
        ["email", "preferred_username", "name", "sub"].iter().find_map(|claim| claims[*claim].as_str());
    let name: String =
        named.unwrap_or(subject).chars().filter(|letter| !letter.is_control()).take(64).collect();
    let values: Vec<&str> = match &claims[&settings.role_claim] {
        Value::String(text) => vec![text],
        Value::Array(list) => list.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    };
    let role = values.iter().filter_map(|value| settings.roles.get(*value)).max_by_key(|role| rank(**role));
    let Some(role) = role.copied().or(settings.default_role) else {
        return Err(format!("{name} has no role on this server; ask its operator"));
    };
    let digest = Sha256::digest(format!("{}\n{subject}", settings.issuer));
    let id =
        digest.iter().take(16).fold(OIDC_KEY_PREFIX.to_owned(), |text, byte| text + &format!("{byte:02x}"));
    let key = serde_json::json!({"id": id, "name": name, "role": role, "created_ms": 0});
    serde_json::from_value(key).map_err(|error| error.to_string())
}

/// Encodes an OIDC account as session text.
pub(crate) fn encode_account(account: &Key) -> String {
    let name = account.name.bytes().fold(String::new(), |text, byte| text + &format!("{byte:02x}"));
    format!("{}/{}/{name}", account.id, account.role)
}

/// Decodes an OIDC account from session text.
pub(crate) fn decode_account(text: &str) -> Option<Key> {
    let mut parts = text.split('/');
    let (id, role, name) = (parts.next()?, parts.next()?, parts.next()?);
    let bytes = (0..name.len()).step_by(2).map(|at| u8::from_str_radix(name.get(at..at + 2)?, 16).ok());
    let name = String::from_utf8(bytes.collect::<Option<_>>()?).ok()?;
    serde_json::from_value(serde_json::json!({"id": id, "name": name, "role": role, "created_ms": 0})).ok()
}

fn rank(role: Role) -> usize {
    Role::ALL.iter().position(|other| *other == role).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn strongest_role_of_all_groups_applies() {
        let role = |claims: Value| account(&OidcSettings::example(), &claims).map(|key| key.role);
        assert_eq!(role(json!({"sub": "1", "groups": ["devs", "ops", "x"]})), Ok(Role::Operator));
        assert_eq!(role(json!({"sub": "1", "groups": "devs"})), Ok(Role::Submitter));
        let error = role(json!({"sub": "1", "email": "ada@example", "groups": ["x"]})).unwrap_err();
        assert!(
            error.contains("ada@example has no role") || error.contains("no role on this server"),
            "{error}"
        );
        let open = OidcSettings { default_role: Some(Role::Viewer), ..OidcSettings::example() };
        assert_eq!(account(&open, &json!({"sub": "1"})).map(|key| key.role), Ok(Role::Viewer));
    }

    #[test]
    fn account_id_depends_on_issuer_and_subject() {
        let id = |sub: &str, email: &str| {
            account(&OidcSettings::example(), &json!({"sub": sub, "email": email, "groups": "ops"}))
                .unwrap()
                .id
        };
        assert_eq!(id("1", "a@example"), id("1", "b@example"), "a new address is no new person");
        assert_ne!(id("1", "a@example"), id("2", "a@example"));
        assert!(id("1", "a").as_str().starts_with(OIDC_KEY_PREFIX));
    }

    #[test]
    fn account_round_trips_through_session_text() {
        let ada = account(
            &OidcSettings::example(),
            &json!({"sub": "1", "email": "adä@example; x", "groups": "ops"}),
        )
        .unwrap();
        let text = encode_account(&ada);
        assert!(text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-/".contains(&byte)), "{text}");
        assert_eq!(decode_account(&text), Some(ada));
        assert_eq!(decode_account("oidc-1/king/61"), None);
    }

    #[test]
    fn pending_login_round_trips_and_debug_hides_the_client_secret() {
        let pending = PendingLogin::new();
        assert_eq!(PendingLogin::parse(&pending.text()), Some(pending.clone()));
        assert_eq!(PendingLogin::parse("x"), None);
        assert_eq!(pending.challenge().len(), 43);
        assert_eq!(format!("{:?}", OidcSettings::example().client_secret), "Some(***)");
    }
}
