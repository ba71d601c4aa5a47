//! TLS connections to servers.

use std::sync::Arc;
use std::time::Duration;

use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::certificate_refusal;
use crate::error::EgressError;
use crate::refusal::{ReasonCode, Refusal};
use crate::target::Target;

/// The time limit of the handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(15);

/// How servers are verified: the server host's trusted authorities and the operator's own.
#[derive(Clone)]
pub struct Upstream {
    config: Arc<ClientConfig>,
}

impl Upstream {
    /// Loads the host's trusted authorities and the given ones (PEM).
    ///
    /// # Errors
    /// There is no authority at all, or one of the given ones cannot be parsed.
    pub fn load(extra_ca: &[String]) -> Result<Self, EgressError> {
        let failed = |error: &dyn std::fmt::Display| EgressError::Certificate(error.to_string());
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        for pem in extra_ca {
            for certificate in CertificateDer::pem_slice_iter(pem.as_bytes()) {
                let certificate = certificate.map_err(|error| failed(&error))?;
                roots.add(certificate).map_err(|error| failed(&error))?;
            }
        }
        if roots.is_empty() {
            return Err(EgressError::Certificate(
                "this host has no certificate authorities; install the package ca-certificates".into(),
            ));
        }
        let mut config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|error| failed(&error))?
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Self { config: Arc::new(config) })
    }

    /// Performs the TLS handshake with a server and verifies its certificate.
    pub(crate) async fn secure<S>(&self, target: &Target, stream: S) -> Result<TlsStream<S>, Refusal>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let failed = |code, what: String| Refusal::failure(code, format!("{target} {what}"));
        let name = ServerName::try_from(target.host.to_string()).map_err(|error| {
            failed(ReasonCode::BadRequest, format!("is not a valid TLS server name: {error}"))
        })?;
        let connecting = TlsConnector::from(Arc::clone(&self.config)).connect(name, stream);
        match timeout(HANDSHAKE_TIMEOUT, connecting).await {
            Ok(Ok(stream)) => Ok(stream),
            Ok(Err(error)) => match error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()) {
                Some(rustls::Error::InvalidCertificate(why)) => Err(certificate_refusal::refuse(target, why)),
                _ => Err(failed(ReasonCode::ConnectFailed, format!("failed the TLS handshake: {error}"))),
            },
            Err(_) => Err(failed(ReasonCode::Timeout, "did not finish the TLS handshake".into())),
        }
    }
}
