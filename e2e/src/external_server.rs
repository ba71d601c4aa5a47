//! A server on loopback that plays the internet: plain HTTP, or HTTPS with a self-signed certificate.

use std::io::{Read, Write};
use std::net::{IpAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use rcgen::{CertificateParams, KeyPair};
use rustls::crypto::ring;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};

const LOOPBACK: &str = "127.0.0.1";

/// This machine's host name.
#[must_use]
pub fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().to_lowercase()
}

/// Writes the response to a request, given the request's head.
type Answer = dyn Fn(&str, &mut dyn Write) -> std::io::Result<()> + Send + Sync;

/// A server that lives as long as the test process.
pub struct ExternalServer {
    pub port: u16,
    /// 127.0.0.1, or the address of this machine's host name if started under that name.
    pub address: IpAddr,
    heads: Arc<Mutex<Vec<String>>>,
    certificate: Option<String>,
}

impl ExternalServer {
    /// Starts a plain HTTP server.
    #[must_use]
    pub fn http(
        answer: impl Fn(&str, &mut dyn Write) -> std::io::Result<()> + Send + Sync + 'static,
    ) -> Self {
        Self::start(LOOPBACK, None, None, Arc::new(answer))
    }

    /// Starts a plain HTTP server under this machine's host name, for clients that bypass proxies for `localhost`.
    #[must_use]
    pub fn http_on_host_name(
        answer: impl Fn(&str, &mut dyn Write) -> std::io::Result<()> + Send + Sync + 'static,
    ) -> Self {
        Self::start(&host_name(), None, None, Arc::new(answer))
    }

    /// Starts an HTTPS server with a certificate for this name.
    #[must_use]
    pub fn https(
        name: &str,
        answer: impl Fn(&str, &mut dyn Write) -> std::io::Result<()> + Send + Sync + 'static,
    ) -> Self {
        Self::https_at(LOOPBACK, name, answer)
    }

    /// Starts an HTTPS server under this machine's host name, for clients that bypass proxies for `localhost`.
    #[must_use]
    pub fn https_on_host_name(
        answer: impl Fn(&str, &mut dyn Write) -> std::io::Result<()> + Send + Sync + 'static,
    ) -> Self {
        let name = host_name();
        Self::https_at(&name, &name, answer)
    }

    fn https_at(
        bind_host: &str,
        name: &str,
        answer: impl Fn(&str, &mut dyn Write) -> std::io::Result<()> + Send + Sync + 'static,
    ) -> Self {
        let key = KeyPair::generate().expect("a key");
        let params = CertificateParams::new([name.to_owned()]).expect("a name");
        let certificate = params.self_signed(&key).expect("a certificate");
        let private = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .expect("the usual versions")
            .with_no_client_auth()
            .with_single_cert(vec![certificate.der().clone()], private)
            .expect("a certificate that fits its key");
        Self::start(bind_host, Some(Arc::new(config)), Some(certificate.pem()), Arc::new(answer))
    }

    /// Starts a plain HTTP server for the files of a folder.
    #[must_use]
    pub fn files(folder: PathBuf) -> Self {
        Self::http(move |head, client| {
            let path = head.split(' ').nth(1).unwrap_or("/").split('?').next().unwrap_or("/");
            match std::fs::read(folder.join(path.trim_start_matches('/'))) {
                Ok(bytes) => respond(client, &bytes),
                Err(_) => client
                    .write_all(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"),
            }
        })
    }

    /// Starts an HTTPS server that echoes the `Authorization` header in the body and in a header.
    #[must_use]
    pub fn echo(name: &str) -> Self {
        Self::https(name, |head, client| {
            let sent = header(head, "authorization").unwrap_or("none");
            let body = format!("echo: {sent}\n");
            let start = format!("HTTP/1.1 200 OK\r\nX-Echo: {sent}\r\nContent-Length: {}\r\n", body.len());
            client.write_all(format!("{start}Connection: close\r\n\r\n{body}").as_bytes())
        })
    }

    fn start(
        bind_host: &str,
        tls: Option<Arc<ServerConfig>>,
        certificate: Option<String>,
        answer: Arc<Answer>,
    ) -> Self {
        let listener = TcpListener::bind((bind_host, 0))
            .unwrap_or_else(|error| panic!("listening at {bind_host} (is it in /etc/hosts?): {error}"));
        let address = listener.local_addr().expect("its number");
        let port = address.port();
        let heads: Arc<Mutex<Vec<String>>> = Arc::default();
        let kept = Arc::clone(&heads);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (tls, answer, heads) = (tls.clone(), Arc::clone(&answer), Arc::clone(&kept));
                std::thread::spawn(move || {
                    let _ = match tls {
                        Some(config) => serve_tls(config, stream, &*answer, &heads),
                        None => serve_request(&mut { stream }, &*answer, &heads),
                    };
                });
            }
        });
        Self { port, address: address.ip(), heads, certificate }
    }

    /// The heads of all requests so far.
    #[must_use]
    pub fn heads(&self) -> Vec<String> {
        self.heads.lock().expect("what was asked").clone()
    }

    /// Writes the server's certificate into a folder and returns the path. Panics for a plain HTTP server.
    #[must_use]
    pub fn certificate(&self, folder: &Path) -> PathBuf {
        let path = folder.join(format!("outside-{}.pem", self.port));
        std::fs::write(&path, self.certificate.as_deref().expect("HTTPS")).expect("writing the certificate");
        path
    }
}

/// Writes a complete 200 response with this body.
pub fn respond(client: &mut dyn Write, body: &[u8]) -> std::io::Result<()> {
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", body.len());
    client.write_all(head.as_bytes())?;
    client.write_all(body)
}

fn header<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    head.lines()
        .filter_map(|line| line.split_once(": "))
        .find(|(key, _)| key.eq_ignore_ascii_case(name))
        .map(|(_, value)| value.trim())
}

fn serve_tls(
    config: Arc<ServerConfig>,
    stream: TcpStream,
    answer: &Answer,
    heads: &Mutex<Vec<String>>,
) -> std::io::Result<()> {
    let connection = ServerConnection::new(config).map_err(std::io::Error::other)?;
    let mut stream = StreamOwned::new(connection, stream);
    serve_request(&mut stream, answer, heads)?;
    stream.conn.send_close_notify();
    stream.flush()
}

fn serve_request(
    stream: &mut (impl Read + Write),
    answer: &Answer,
    heads: &Mutex<Vec<String>>,
) -> std::io::Result<()> {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        if head.len() > 64 * 1024 || stream.read(&mut byte)? == 0 {
            return Ok(());
        }
        head.push(byte[0]);
    }
    let head = String::from_utf8_lossy(&head).into_owned();
    if let Ok(mut heads) = heads.lock() {
        heads.push(head.clone());
    }
    answer(&head, stream)?;
    stream.flush()
}
