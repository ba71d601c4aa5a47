//! TLS with certificate files, which can be replaced while the server runs.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use tokio_rustls::TlsAcceptor;

use crate::error::ServerError;

/// A certificate and its key, from two PEM files.
#[derive(Clone)]
pub struct Certificate {
    chain: PathBuf,
    key: PathBuf,
    current: Arc<Current>,
}

#[derive(Debug)]
struct Current(RwLock<Arc<CertifiedKey>>);

impl ResolvesServerCert for Current {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner)))
    }
}

impl fmt::Debug for Certificate {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Certificate({}, {})", self.chain.display(), self.key.display())
    }
}

impl PartialEq for Certificate {
    fn eq(&self, other: &Self) -> bool {
        self.chain == other.chain && self.key == other.key
    }
}

impl Eq for Certificate {}

impl Certificate {
    /// Loads both files.
    ///
    /// # Errors
    /// A file cannot be read or has no valid content, or the key does not belong to the certificate.
    pub fn load(chain: &Path, key: &Path) -> Result<Self, ServerError> {
        let read = read(chain, key)?;
        let current = Arc::new(Current(RwLock::new(Arc::new(read))));
        Ok(Self { chain: chain.to_owned(), key: key.to_owned(), current })
    }

    /// Reloads the files for new connections. If that fails, the previous certificate stays in use.
    ///
    /// # Errors
    /// As [`Certificate::load`].
    pub fn reload(&self) -> Result<(), ServerError> {
        let read = Arc::new(read(&self.chain, &self.key)?);
        *self.current.0.write().unwrap_or_else(PoisonError::into_inner) = read;
        Ok(())
    }

    /// The acceptor for TLS connections.
    pub(crate) fn acceptor(&self) -> Result<TlsAcceptor, ServerError> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| ServerError::Certificate {
                what: "preparing TLS".into(),
                source: error.into(),
            })?;
        let mut config =
            builder.with_no_client_auth().with_cert_resolver(Arc::<Current>::clone(&self.current));
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(TlsAcceptor::from(Arc::new(config)))
    }
}

fn read(chain: &Path, key: &Path) -> Result<CertifiedKey, ServerError> {
    let failed = |what: &str, path: &Path, source: Box<dyn std::error::Error + Send + Sync>| {
        ServerError::Certificate { what: format!("{what} {}", path.display()), source }
    };
    let certificates: Vec<CertificateDer<'static>> = CertificateDer::pem_file_iter(chain)
        .and_then(Iterator::collect)
        .map_err(|error| failed("reading the certificate", chain, error.into()))?;
    if certificates.is_empty() {
        return Err(failed("reading the certificate", chain, "it contains no PEM certificate".into()));
    }
    let secret =
        PrivateKeyDer::from_pem_file(key).map_err(|error| failed("reading the key", key, error.into()))?;
    let provider = rustls::crypto::ring::default_provider();
    CertifiedKey::from_der(certificates, secret, &provider)
        .map_err(|error| failed("joining the certificate with the key", key, error.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(folder: &Path) -> (PathBuf, PathBuf) {
        let made = rcgen::generate_simple_self_signed(vec!["localhost".into()]).unwrap();
        let (chain, key) = (folder.join("chain.pem"), folder.join("key.pem"));
        std::fs::write(&chain, made.cert.pem()).unwrap();
        std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
        (chain, key)
    }

    #[test]
    fn certificate_files_are_loaded_and_reloaded() {
        let folder = tempfile::tempdir().unwrap();
        let (chain, key) = write(folder.path());
        let certificate = Certificate::load(&chain, &key).unwrap();
        assert!(certificate.acceptor().is_ok());
        let before = Arc::clone(&certificate.current.0.read().unwrap());
        write(folder.path());
        certificate.reload().unwrap();
        assert_ne!(before.cert, certificate.current.0.read().unwrap().cert);
    }

    #[test]
    fn invalid_certificate_files_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let (chain, key) = write(folder.path());
        let other = tempfile::tempdir().unwrap();
        let (_, foreign) = write(other.path());
        for (chain, key, named) in [
            (Path::new("/nowhere.pem"), key.as_path(), "/nowhere.pem"),
            (&*key, &*key, "no PEM certificate"),
            (&*chain, &*chain, "key"),
            (&*chain, &*foreign, "joining"),
        ] {
            let error = Certificate::load(chain, key).unwrap_err();
            let told = format!("{error}: {}", std::error::Error::source(&error).unwrap());
            assert!(told.contains(named), "{told}");
        }
    }
}
