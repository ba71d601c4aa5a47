//! TLS as a client: the provider, and which https servers to trust.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// Installs ring as the TLS provider for `reqwest`, which includes none. Must be called before a client is created.
pub(crate) fn install_tls_provider() {
    // An error means that a provider is already installed.
    let _ = rustls::crypto::ring::default_provider().install_default();
}

/// The trusted server certificates.
#[derive(Clone)]
pub(crate) struct Trust {
    known: Vec<CertificateDer<'static>>,
}

impl Trust {
    /// Loads the certificates in a file, or those of the host if no file is given.
    pub(crate) fn load(file: Option<PathBuf>) -> Result<Self> {
        let Some(file) = file else {
            return Ok(Self { known: rustls_native_certs::load_native_certs().certs });
        };
        let known: Vec<CertificateDer<'static>> = CertificateDer::pem_file_iter(&file)
            .and_then(Iterator::collect)
            .with_context(|| format!("reading the certificates in {}", file.display()))?;
        ensure!(!known.is_empty(), "{} contains no PEM certificate", file.display());
        Ok(Self { known })
    }

    /// The certificates for `reqwest`.
    pub(crate) fn certificates(&self) -> Result<Vec<reqwest::Certificate>> {
        self.known
            .iter()
            .map(|one| reqwest::Certificate::from_der(one).context("reading a certificate"))
            .collect()
    }

    /// Opens a TLS stream.
    pub(crate) async fn connect(&self, host: &str, stream: TcpStream) -> Result<TlsStream<TcpStream>> {
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(self.known.iter().cloned());
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .context("preparing TLS")?
            .with_root_certificates(roots)
            .with_no_client_auth();
        let name = ServerName::try_from(host.to_owned())
            .with_context(|| format!("`{host}` is not a valid server name"))?;
        TlsConnector::from(Arc::new(config)).connect(name, stream).await.with_context(|| {
            format!(
                "TLS connection to {host}; if this host does not trust its certificate, pass it with --ca-file"
            )
        })
    }
}
