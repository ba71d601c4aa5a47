//! A proxy with a secret, and a server that may receive it.

use std::sync::Arc;

use egress::{Authority, ProxySettings, Secret, SecretString, Secrets, TlsInterception, Upstream};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{DigitallySignedStruct, SignatureScheme};
use tokio::io::{BufReader, DuplexStream};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::{TlsAcceptor, TlsConnector, client, server};

use crate::support::{Setup, listen, policy};

/// The client's end of a connection, inside TLS.
pub(crate) type ClientEnd = BufReader<client::TlsStream<BufReader<DuplexStream>>>;
/// The server's end.
pub(crate) type ServerEnd = BufReader<server::TlsStream<TcpStream>>;

pub(crate) const VALUE: &str = "canary-5f1e-value";

pub(crate) fn base64(text: &str) -> String {
    base64::Engine::encode(&base64::engine::general_purpose::STANDARD, text)
}

/// A proxy with one secret for `localhost`, and a server there with its own certificate.
pub(crate) struct Scene {
    pub(crate) setup: Setup,
    pub(crate) placeholder: String,
    /// The placeholder of a secret for another host.
    pub(crate) other_placeholder: String,
    pub(crate) authority: Arc<Authority>,
    pub(crate) listener: TcpListener,
    pub(crate) port: u16,
    pub(crate) server: TlsAcceptor,
}

pub(crate) async fn scene(names_of_the_certificate: &str, rule: impl Fn(u16) -> String) -> Scene {
    scene_with(names_of_the_certificate, rule, ProxySettings::default()).await
}

pub(crate) async fn scene_with(
    names_of_the_certificate: &str,
    rule: impl Fn(u16) -> String,
    settings: ProxySettings,
) -> Scene {
    let (listener, port) = listen().await;
    let made = rcgen::generate_simple_self_signed([names_of_the_certificate.to_owned()]).unwrap();
    let chain = vec![made.cert.der().clone()];
    let key = PrivateKeyDer::from_pem_slice(made.signing_key.serialize_pem().as_bytes()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .unwrap();
    let hosts = vec![format!("localhost:{port}").parse().unwrap()];
    let authority = Arc::new(Authority::generate("test", &hosts).unwrap());
    let secret = Secret::new("TOKEN", Secret::placeholder([9; 16]), SecretString::new(VALUE), hosts).unwrap();
    let elsewhere = vec!["other.example".parse().unwrap()];
    let other_placeholder = Secret::placeholder([8; 16]);
    let other =
        Secret::new("OTHER", other_placeholder.clone(), SecretString::new("another-canary"), elsewhere)
            .unwrap();
    let secrets = Secrets::new(vec![secret, other]);
    let placeholder = secrets.environment()["TOKEN"].clone();
    let upstream = Upstream::load(&[made.cert.pem()]).unwrap();
    let mut setup = Setup::with(policy(&rule(port)), settings, 64);
    setup.proxy =
        setup.proxy.with_tls_interception(TlsInterception::new(secrets, Arc::clone(&authority), upstream));
    let server = TlsAcceptor::from(Arc::new(config));
    Scene { setup, placeholder, other_placeholder, authority, listener, port, server }
}

pub(crate) fn open(_port: u16) -> String {
    "\"open\"".to_owned()
}

impl Scene {
    /// A client that trusts the job's authority, inside a tunnel to the server.
    pub(crate) async fn client(&self) -> ClientEnd {
        let mut client = self.setup.client();
        client.connect(format!("localhost:{}", self.port)).await;
        let mut roots = rustls::RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(self.authority.certificate().as_bytes()).unwrap()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let name = ServerName::try_from("localhost").unwrap();
        BufReader::new(TlsConnector::from(Arc::new(config)).connect(name, client.stream).await.unwrap())
    }

    /// A client that names another server in its handshake and accepts any certificate.
    pub(crate) async fn client_for(&self, server_name: &'static str) -> ClientEnd {
        let mut client = self.setup.client();
        client.connect(format!("localhost:{}", self.port)).await;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(TrustsAll))
            .with_no_client_auth();
        let name = ServerName::try_from(server_name).unwrap();
        BufReader::new(TlsConnector::from(Arc::new(config)).connect(name, client.stream).await.unwrap())
    }

    pub(crate) async fn server(&self) -> ServerEnd {
        let stream = self.listener.accept().await.unwrap().0;
        BufReader::new(self.server.accept(stream).await.unwrap())
    }

    pub(crate) fn request(&self, path: &str, header: &str) -> String {
        format!("GET {path} HTTP/1.1\r\nHost: localhost:{}\r\n{header}\r\n\r\n", self.port)
    }
}

#[derive(Debug)]
struct TrustsAll;

impl ServerCertVerifier for TrustsAll {
    fn verify_server_cert(
        &self,
        _certificate: &CertificateDer<'_>,
        _others: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        rustls::crypto::ring::default_provider().signature_verification_algorithms.supported_schemes()
    }
}
