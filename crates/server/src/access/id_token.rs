//! Verifies the OpenID Connect ID token: signed by the provider, issued for this server, not expired and made for
//! this login.

use jsonwebtoken::errors::ErrorKind;
use jsonwebtoken::jwk::{Jwk, JwkSet};
use jsonwebtoken::{Algorithm, DecodingKey, Validation};
use serde_json::Value;

use crate::settings::OidcSettings;

/// The accepted signature algorithms. All are asymmetric: a shared secret is never accepted.
const ALGORITHMS: [Algorithm; 7] = [
    Algorithm::RS256,
    Algorithm::RS384,
    Algorithm::RS512,
    Algorithm::PS256,
    Algorithm::ES256,
    Algorithm::ES384,
    Algorithm::EdDSA,
];

/// How many keys of a provider are tried.
const MAX_KEYS: usize = 32;

/// Verifies a token's signature, issuer, audience and expiry, and returns its claims.
pub(super) fn verify(settings: &OidcSettings, keys: &JwkSet, token: &str) -> Result<Value, String> {
    let wrong = |error: jsonwebtoken::errors::Error| format!("invalid ID token from the provider: {error}");
    let header = jsonwebtoken::decode_header(token).map_err(wrong)?;
    if !ALGORITHMS.contains(&header.alg) {
        return Err(format!("the provider signs with {:?}, which is not supported", header.alg));
    }
    let fits = |key: &&Jwk| match &header.kid {
        Some(kid) => key.common.key_id.as_ref() == Some(kid),
        // Without a key id, any of the keys may have signed it.
        None => true,
    };
    let mut validation = Validation::new(header.alg);
    validation.set_audience(&[&settings.client_id]);
    validation.set_issuer(&[&settings.issuer]);
    validation.set_required_spec_claims(&["exp", "iss", "aud", "sub"]);
    let mut refused = "the ID token is signed with an unknown key".to_owned();
    for key in keys.keys.iter().filter(fits).take(MAX_KEYS) {
        let decoded = DecodingKey::from_jwk(key)
            .and_then(|key| jsonwebtoken::decode::<Value>(token, &key, &validation));
        match decoded {
            Ok(token) => return Ok(token.claims),
            // A key for another algorithm says nothing about the token.
            Err(error) if *error.kind() == ErrorKind::InvalidAlgorithm => {}
            Err(error) => refused = wrong(error),
        }
    }
    Err(refused)
}

/// Rejects a token that was made for another login.
pub(super) fn check_nonce(claims: &Value, nonce: &str) -> Result<(), String> {
    match claims["nonce"].as_str() {
        Some(found) if found == nonce => Ok(()),
        _ => Err("the ID token belongs to another login".into()),
    }
}

#[cfg(test)]
mod tests {
    use base64::Engine as _;
    use base64::engine::general_purpose::URL_SAFE_NO_PAD;
    use jsonwebtoken::{EncodingKey, Header};
    use rcgen::{KeyPair, PKCS_ED25519};
    use serde_json::json;

    use super::*;
    use crate::clock::now_ms;

    struct Provider {
        pair: KeyPair,
        kid: &'static str,
    }

    impl Provider {
        fn new(kid: &'static str) -> Self {
            Self { pair: KeyPair::generate_for(&PKCS_ED25519).unwrap(), kid }
        }

        fn keys(&self) -> JwkSet {
            let x = URL_SAFE_NO_PAD.encode(self.pair.public_key_raw());
            let key = json!({"kty": "OKP", "crv": "Ed25519", "alg": "EdDSA", "use": "sig", "kid": self.kid, "x": x});
            serde_json::from_value(json!({"keys": [key]})).unwrap()
        }

        fn sign(&self, kid: Option<&str>, claims: &Value) -> String {
            let header = Header { kid: kid.map(ToOwned::to_owned), ..Header::new(Algorithm::EdDSA) };
            let key = EncodingKey::from_ed_der(&self.pair.serialize_der());
            jsonwebtoken::encode(&header, claims, &key).unwrap()
        }
    }

    fn claims() -> Value {
        let now = now_ms() / 1000;
        json!({
            "iss": "https://id.example", "aud": "caisson", "sub": "1", "nonce": "n",
            "iat": now, "exp": now + 600
        })
    }

    fn with(name: &str, value: Value) -> Value {
        let mut claims = claims();
        claims[name] = value;
        claims
    }

    #[test]
    fn id_token_of_the_provider_is_accepted() {
        let provider = Provider::new("one");
        for kid in [Some("one"), None] {
            let verified =
                verify(&OidcSettings::example(), &provider.keys(), &provider.sign(kid, &claims())).unwrap();
            assert_eq!(verified["sub"], "1");
        }
    }

    #[test]
    fn id_token_without_key_id_is_tried_with_every_key() {
        let (old, new) = (Provider::new("old"), Provider::new("new"));
        let curve = json!({"kty": "EC", "crv": "P-256", "kid": "other", "x": "AAAA", "y": "AAAA"});
        let mut keys = json!({"keys": [curve]});
        for provider in [&old, &new] {
            let more = serde_json::to_value(provider.keys()).unwrap()["keys"][0].clone();
            keys["keys"].as_array_mut().unwrap().push(more);
        }
        let keys: JwkSet = serde_json::from_value(keys).unwrap();
        for provider in [&old, &new] {
            assert_eq!(
                verify(&OidcSettings::example(), &keys, &provider.sign(None, &claims())).unwrap()["sub"],
                "1"
            );
        }
        let error = verify(&OidcSettings::example(), &keys, &new.sign(Some("old"), &claims())).unwrap_err();
        assert!(error.contains("InvalidSignature"), "{error}");
        let stranger = Provider::new("new");
        assert!(verify(&OidcSettings::example(), &keys, &stranger.sign(None, &claims())).is_err());
    }

    #[test]
    fn id_token_with_wrong_audience_issuer_or_expiry_is_rejected() {
        let provider = Provider::new("one");
        let now = now_ms() / 1000;
        let without = |name: &str| {
            let mut claims = claims();
            claims.as_object_mut().unwrap().remove(name);
            claims
        };
        for (claims, why) in [
            (with("aud", json!("another")), "InvalidAudience"),
            (with("iss", json!("https://evil.example")), "InvalidIssuer"),
            (with("exp", json!(now - 3600)), "ExpiredSignature"),
            (without("aud"), "aud"),
            (without("iss"), "iss"),
            (without("exp"), "exp"),
            (without("sub"), "sub"),
        ] {
            let token = provider.sign(Some("one"), &claims);
            let error = verify(&OidcSettings::example(), &provider.keys(), &token).unwrap_err();
            assert!(error.contains(why), "{why}: {error}");
        }
    }

    #[test]
    fn id_token_signed_by_another_key_is_rejected() {
        let (provider, other) = (Provider::new("one"), Provider::new("one"));
        let refused = |token: &str| verify(&OidcSettings::example(), &provider.keys(), token).unwrap_err();
        assert!(refused(&other.sign(Some("one"), &claims())).contains("InvalidSignature"));
        assert!(refused(&other.sign(None, &claims())).contains("InvalidSignature"));
        assert!(refused(&provider.sign(Some("two"), &claims())).contains("an unknown key"));
        let good = provider.sign(Some("one"), &claims());
        let (head, tail) = good.split_once('.').unwrap();
        let forged = URL_SAFE_NO_PAD.encode(with("sub", json!("2")).to_string());
        let changed = format!("{head}.{forged}.{}", tail.split_once('.').unwrap().1);
        assert!(refused(&changed).contains("InvalidSignature"));
    }

    /// Algorithm confusion: a token that is signed with the public key as an HMAC secret must be rejected.
    #[test]
    fn symmetric_and_unsigned_id_tokens_are_rejected() {
        let provider = Provider::new("one");
        let header = Header { kid: Some("one".into()), ..Header::new(Algorithm::HS256) };
        let key = EncodingKey::from_secret(provider.pair.public_key_raw());
        let token = jsonwebtoken::encode(&header, &claims(), &key).unwrap();
        let error = verify(&OidcSettings::example(), &provider.keys(), &token).unwrap_err();
        assert!(error.contains("HS256, which is not supported"), "{error}");
        let head = URL_SAFE_NO_PAD.encode(r#"{"alg":"none","typ":"JWT"}"#);
        let body = URL_SAFE_NO_PAD.encode(claims().to_string());
        for token in [format!("{head}.{body}."), format!("{head}.{body}"), "x".into()] {
            assert!(verify(&OidcSettings::example(), &provider.keys(), &token).is_err(), "{token}");
        }
    }

    #[test]
    fn id_token_with_another_nonce_is_rejected() {
        assert!(check_nonce(&claims(), "n").is_ok());
        assert!(check_nonce(&claims(), "m").unwrap_err().contains("another login"));
        assert!(check_nonce(&with("nonce", Value::Null), "n").is_err());
        assert!(check_nonce(&with("nonce", Value::Null), "").is_err());
    }
}
