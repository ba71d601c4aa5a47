//! Reads the first bytes of a tunnel: whether it begins with TLS, and for which server. The bytes are kept and
//! forwarded later.

use std::io;

use bytes::BytesMut;
use rustls::server::Acceptor;
use tokio::io::{AsyncRead, AsyncReadExt};

use crate::refusal::{ReasonCode, Refusal};
use crate::target::{Host, Target};

/// The first byte of every TLS handshake.
pub(crate) const HANDSHAKE: u8 = 0x16;
/// The maximum size of a ClientHello.
const HELLO_LIMIT: usize = 64 * 1024;
/// The fatal TLS alert `unrecognized_name`.
pub(crate) const UNRECOGNIZED_NAME: [u8; 7] = [0x15, 3, 3, 0, 2, 2, 112];

/// The first bytes of a tunnel.
#[derive(Debug, Default)]
pub(crate) struct FirstBytes {
    pub(crate) from_client: BytesMut,
    pub(crate) from_server: BytesMut,
    pub(crate) kind: Kind,
}

#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The client begins a TLS handshake with this server name.
    Tls(Option<String>),
    /// Another protocol, or the server speaks first.
    Other,
    /// One side closed its direction before any byte arrived.
    #[default]
    Closed,
}

/// Reads until the protocol of a tunnel is known. In TLS the server never speaks first.
pub(crate) async fn read_first_bytes<C, S>(client: &mut C, server: &mut S) -> io::Result<FirstBytes>
where
    C: AsyncRead + Unpin,
    S: AsyncRead + Unpin,
{
    let mut first_bytes = FirstBytes::default();
    let mut acceptor = Acceptor::default();
    loop {
        let seen = first_bytes.from_client.len();
        tokio::select! {
            read = client.read_buf(&mut first_bytes.from_client) => {
                if read? == 0 {
                    first_bytes.kind = if seen == 0 { Kind::Closed } else { Kind::Other };
                    return Ok(first_bytes);
                }
            }
            read = server.read_buf(&mut first_bytes.from_server) => {
                first_bytes.kind = if read? == 0 { Kind::Closed } else { Kind::Other };
                return Ok(first_bytes);
            }
        }
        match read_hello(&mut acceptor, &first_bytes.from_client, seen) {
            Some(kind) => {
                first_bytes.kind = kind;
                return Ok(first_bytes);
            }
            None if first_bytes.from_client.len() > HELLO_LIMIT => {
                first_bytes.kind = Kind::Other;
                return Ok(first_bytes);
            }
            None => {}
        }
    }
}

/// Processes the bytes received so far; `None` while more are needed.
fn read_hello(acceptor: &mut Acceptor, bytes: &[u8], seen: usize) -> Option<Kind> {
    if bytes.first() != Some(&HANDSHAKE) {
        return Some(Kind::Other);
    }
    let mut new = &bytes[seen..];
    while !new.is_empty() {
        if !matches!(acceptor.read_tls(&mut new), Ok(1..)) {
            return Some(Kind::Other);
        }
        match acceptor.accept() {
            Ok(Some(accepted)) => {
                return Some(Kind::Tls(accepted.client_hello().server_name().map(ToOwned::to_owned)));
            }
            Ok(None) => {}
            Err(_) => return Some(Kind::Other),
        }
    }
    None
}

/// Checks that the server name of the handshake is the host of the connection, because one address often serves many
/// hosts. For a connection to an address, any name is accepted. Some clients (Java) send no name for a host name
/// without a dot.
pub(crate) fn check_server_name(server_name: Option<&str>, target: &Target) -> Result<(), Refusal> {
    let Host::Name(expected) = &target.host else { return Ok(()) };
    let named = server_name.map(str::parse::<Host>);
    let actual = match (named, server_name) {
        (Some(Ok(named)), _) if named == target.host => return Ok(()),
        (None, _) if !expected.contains('.') => return Ok(()),
        (None, _) | (_, None) => "no server".to_owned(),
        (Some(_), Some(other)) => format!("the server {}", other.chars().take(80).collect::<String>()),
    };
    Err(Refusal {
        code: ReasonCode::ServerNameMismatch,
        rule: String::new(),
        reason: format!("{target} refused: the TLS handshake names {actual}"),
        remedy: format!("configure the client to name {expected} in its TLS handshake (SNI)"),
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rustls::pki_types::ServerName;
    use rustls::{ClientConfig, ClientConnection, RootCertStore};

    use super::*;

    /// The ClientHello of a client that connects to `name`.
    fn hello(name: &str) -> Vec<u8> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(RootCertStore::empty())
            .with_no_client_auth();
        let name = ServerName::try_from(name.to_owned()).unwrap();
        let mut bytes = Vec::new();
        ClientConnection::new(Arc::new(config), name).unwrap().write_tls(&mut bytes).unwrap();
        bytes
    }

    async fn first_bytes(from_client: &[&[u8]], from_server: &[u8]) -> FirstBytes {
        let mut client = in_pieces(from_client);
        // A server with nothing to send waits.
        let (mut near, mut server) = tokio::io::duplex(1024);
        tokio::io::AsyncWriteExt::write_all(&mut near, from_server).await.unwrap();
        read_first_bytes(&mut client, &mut server).await.unwrap()
    }

    /// A stream that returns one piece per read and then blocks.
    fn in_pieces(pieces: &[&[u8]]) -> impl AsyncRead + Unpin {
        let (mut near, far) = tokio::io::duplex(64 * 1024);
        let pieces: Vec<Vec<u8>> = pieces.iter().map(|piece| piece.to_vec()).collect();
        drop(tokio::spawn(async move {
            for piece in pieces {
                let _ = tokio::io::AsyncWriteExt::write_all(&mut near, &piece).await;
                tokio::task::yield_now().await;
            }
            std::future::pending::<()>().await;
        }));
        far
    }

    #[tokio::test]
    async fn server_name_is_read_from_any_fragmentation() {
        let bytes = hello("api.example.org");
        for cut in [1, 5, 6, 43, bytes.len() - 1] {
            let (one, two) = bytes.split_at(cut);
            let first_bytes = first_bytes(&[one, two], b"").await;
            assert_eq!(first_bytes.kind, Kind::Tls(Some("api.example.org".into())), "cut at {cut}");
            assert_eq!(first_bytes.from_client, bytes);
        }
        assert_eq!(first_bytes(&[&hello("192.0.2.1")], b"").await.kind, Kind::Tls(None));
    }

    #[tokio::test]
    async fn non_tls_openings_are_detected_from_the_first_byte() {
        for bytes in [&b"GET / HTTP/1.1\r\n"[..], b"SSH-2.0-x\r\n", b"\x16SSH-2.0 not a hello"] {
            assert_eq!(first_bytes(&[bytes], b"").await.kind, Kind::Other, "{bytes:?}");
        }
        let banner = first_bytes(&[], b"220 mail ready").await;
        assert_eq!((banner.kind, &banner.from_server[..]), (Kind::Other, &b"220 mail ready"[..]));
    }

    #[test]
    fn handshake_server_name_must_match_the_host() {
        let check = |name: Option<&str>, host: &str| {
            check_server_name(name, &Target { host: host.parse().unwrap(), port: 443 }).is_ok()
        };
        assert!(check(Some("API.example.org"), "api.example.org"));
        assert!(!check(Some("evil.example"), "api.example.org") && !check(None, "api.example.org"));
        assert!(!check(Some("evil.example"), "localhost") && check(None, "localhost"));
        assert!(check(Some("any.example"), "192.0.2.1") && check(None, "192.0.2.1"));
    }
}
