//! The certificate authority of one job. Only the job's sandbox trusts it, and name constraints limit it to the
//! hosts of the job's secrets.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, GeneralSubtree,
    IsCa, Issuer, KeyPair, KeyUsagePurpose, NameConstraints,
};
use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use time::{Duration, OffsetDateTime};

use crate::error::EgressError;
use crate::policy::Rule;
use crate::secrets::SecretString;

/// Validity of the authority; longer than any job.
const VALID_FOR: Duration = Duration::days(825);
/// How many hosts' server configurations are cached. A job may use any number of names below a domain.
const MAX_CACHED_HOSTS: usize = 64;
/// Allows for clock differences.
const VALID_BEFORE: Duration = Duration::days(2);

pub struct Authority {
    certificate: String,
    key: SecretString,
    issuer: Issuer<'static, KeyPair>,
    /// The server configurations presented to clients, by host.
    server_configs: Mutex<HashMap<String, Arc<ServerConfig>>>,
}

impl std::fmt::Debug for Authority {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Authority").finish_non_exhaustive()
    }
}

impl Authority {
    /// Creates an authority for these hosts.
    ///
    /// # Errors
    /// Key generation or signing failed.
    pub fn generate(name: &str, hosts: &[Rule]) -> Result<Self, EgressError> {
        let key = KeyPair::generate().map_err(failed)?;
        let mut params = issuer_params(name);
        params.name_constraints = Some(NameConstraints {
            permitted_subtrees: hosts.iter().filter_map(Rule::domain).map(GeneralSubtree::DnsName).collect(),
            excluded_subtrees: Vec::new(),
        });
        let certificate = params.self_signed(&key).map_err(failed)?.pem();
        Self::from_pem(name, certificate, SecretString::new(key.serialize_pem()))
    }

    /// Restores an authority that was created with this name.
    ///
    /// # Errors
    /// The key cannot be parsed.
    pub fn from_pem(name: &str, certificate: String, key: SecretString) -> Result<Self, EgressError> {
        let pair = KeyPair::from_pem(key.reveal()).map_err(failed)?;
        let issuer = Issuer::new(issuer_params(name), pair);
        Ok(Self { certificate, key, issuer, server_configs: Mutex::default() })
    }

    /// The certificate (PEM), for the sandbox's trust stores.
    #[must_use]
    pub fn certificate(&self) -> &str {
        &self.certificate
    }

    /// The key (PEM), for storage.
    #[must_use]
    pub fn key(&self) -> &SecretString {
        &self.key
    }

    /// The server configuration, with certificate, for clients that connect to `host`.
    pub(crate) fn server_config(&self, host: &str) -> Result<Arc<ServerConfig>, EgressError> {
        let mut server_configs = self.server_configs.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(config) = server_configs.get(host) {
            return Ok(Arc::clone(config));
        }
        let config = Arc::new(self.issue(host)?);
        if server_configs.len() >= MAX_CACHED_HOSTS {
            server_configs.clear();
        }
        server_configs.insert(host.to_owned(), Arc::clone(&config));
        Ok(config)
    }

    fn issue(&self, host: &str) -> Result<ServerConfig, EgressError> {
        let key = KeyPair::generate().map_err(failed)?;
        let mut params = CertificateParams::new([host.to_owned()]).map_err(failed)?;
        params.distinguished_name = named(host);
        params.use_authority_key_identifier_extension = true;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        (params.not_before, params.not_after) = validity(Duration::days(365));
        let certificate = params.signed_by(&key, &self.issuer).map_err(failed)?;
        let chain: Vec<CertificateDer<'static>> = vec![certificate.der().clone()];
        let private = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(failed)?
            .with_no_client_auth()
            .with_single_cert(chain, private)
            .map_err(failed)?;
        // The proxy reads the requests, and it reads only HTTP/1.1.
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(config)
    }
}

fn issuer_params(name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = named(&format!("Caisson {name}"));
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages =
        vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign, KeyUsagePurpose::DigitalSignature];
    (params.not_before, params.not_after) = validity(VALID_FOR);
    params
}

fn named(name: &str) -> DistinguishedName {
    let mut names = DistinguishedName::new();
    // A common name has at most 64 characters.
    names.push(DnType::CommonName, name.chars().take(64).collect::<String>());
    names
}

fn validity(length: Duration) -> (OffsetDateTime, OffsetDateTime) {
    let now = OffsetDateTime::now_utc();
    (now - VALID_BEFORE, now + length)
}

fn failed(error: impl std::fmt::Display) -> EgressError {
    EgressError::Certificate(error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn restored_authority_is_identical() {
        let hosts: Vec<Rule> = vec!["api.example.org".parse().unwrap()];
        let made = Authority::generate("job-1", &hosts).unwrap();
        let kept = Authority::from_pem("job-1", made.certificate().to_owned(), made.key().clone()).unwrap();
        assert_eq!(kept.certificate(), made.certificate());
        assert!(kept.server_config("api.example.org").is_ok());
        assert!(!format!("{made:?}").contains("PRIVATE"));
    }

    #[test]
    fn server_config_cache_is_bounded() {
        let hosts: Vec<Rule> = vec!["*.example.org".parse().unwrap()];
        let authority = Authority::generate("job-1", &hosts).unwrap();
        for number in 0..2 * MAX_CACHED_HOSTS + 1 {
            authority.server_config(&format!("host{number}.example.org")).unwrap();
        }
        assert!(authority.server_configs.lock().unwrap().len() <= MAX_CACHED_HOSTS);
    }
}
