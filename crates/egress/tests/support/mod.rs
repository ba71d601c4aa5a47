//! A proxy with its log, clients that send it raw bytes, and servers on loopback.

#![allow(dead_code, reason = "each test file uses a part of it")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "only tests use it")]

use egress::{Connection, EgressEvent, Fetch, Mode, Policy, Proxy, ProxySettings, Ranges};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, DuplexStream};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

pub(crate) struct Setup {
    pub(crate) proxy: Proxy,
    pub(crate) events: mpsc::Receiver<EgressEvent>,
    pub(crate) fetched: Vec<Fetch>,
}

/// A policy that may reach loopback, where the test servers listen.
pub(crate) fn policy(mode: &str) -> Policy {
    let ranges = r#"{"allow": ["127.0.0.0/8", "::1"]}"#;
    Policy::new(serde_json::from_str(mode).unwrap(), serde_json::from_str(ranges).unwrap()).unwrap()
}

/// A policy that may not reach loopback.
pub(crate) fn strict_policy(mode: &str) -> Policy {
    Policy::new(serde_json::from_str::<Mode>(mode).unwrap(), Ranges::default()).unwrap()
}

pub(crate) fn allow(target: impl std::fmt::Display) -> Policy {
    policy(&format!(r#"{{"allow": ["{target}"]}}"#))
}

/// Allows a target, with tunnels that carry whatever the test sends.
pub(crate) fn allow_raw(target: impl std::fmt::Display) -> Policy {
    policy(&format!(r#"{{"allow": [{{"host": "{target}", "without_tls": true}}]}}"#))
}

impl Setup {
    pub(crate) fn new(policy: Policy) -> Self {
        Self::with(policy, ProxySettings::default(), 64)
    }

    pub(crate) fn with(policy: Policy, settings: ProxySettings, log_size: usize) -> Self {
        let (sender, events) = mpsc::channel(log_size);
        Self { proxy: Proxy::new(policy, sender, settings), events, fetched: Vec::new() }
    }

    pub(crate) fn client(&self) -> Client {
        let (ours, theirs) = tokio::io::duplex(64 * 1024);
        Client { stream: BufReader::new(ours), served: tokio::spawn(self.proxy.serve(theirs)) }
    }

    /// The next connection event; fetch events are collected in `fetched`.
    pub(crate) async fn next(&mut self) -> Option<EgressEvent> {
        loop {
            match self.events.recv().await? {
                EgressEvent::Fetched(fetch) => self.fetched.push(fetch),
                event => return Some(event),
            }
        }
    }

    pub(crate) async fn opened(&mut self) -> Connection {
        match self.next().await {
            Some(EgressEvent::Opened(connection)) => connection,
            other => panic!("expected an opened connection, got {other:?}"),
        }
    }

    pub(crate) async fn closed(&mut self) -> Connection {
        match self.next().await {
            Some(EgressEvent::Closed(connection)) => connection,
            other => panic!("expected a closed connection, got {other:?}"),
        }
    }

    pub(crate) async fn refused(&mut self) -> Connection {
        match self.next().await {
            Some(EgressEvent::Refused(connection)) => connection,
            other => panic!("expected a refused connection, got {other:?}"),
        }
    }
}

pub(crate) struct Client {
    pub(crate) stream: BufReader<DuplexStream>,
    pub(crate) served: JoinHandle<()>,
}

pub(crate) struct Answer {
    pub(crate) head: String,
    pub(crate) body: String,
}

impl Client {
    pub(crate) async fn send(&mut self, text: impl AsRef<[u8]>) {
        self.stream.write_all(text.as_ref()).await.unwrap();
    }

    pub(crate) async fn head(&mut self) -> String {
        read_head(&mut self.stream).await
    }

    pub(crate) async fn answer(&mut self) -> Answer {
        let head = self.head().await;
        let length = head
            .to_ascii_lowercase()
            .lines()
            .find_map(|line| line.strip_prefix("content-length: ").map(|value| value.parse().unwrap()))
            .expect("the answer has no length");
        let mut body = vec![0; length];
        self.stream.read_exact(&mut body).await.unwrap();
        Answer { head, body: String::from_utf8(body).unwrap() }
    }

    pub(crate) async fn connect(&mut self, target: impl std::fmt::Display) {
        // The user name is `call-1`.
        self.send(format!(
            "CONNECT {target} HTTP/1.1\r\nHost: {target}\r\nProxy-Authorization: Basic Y2FsbC0xOng=\r\n\r\n"
        ))
        .await;
        let head = self.head().await;
        assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    }

    pub(crate) async fn rest(&mut self) -> Vec<u8> {
        let mut rest = Vec::new();
        self.stream.read_to_end(&mut rest).await.unwrap();
        rest
    }
}

pub(crate) async fn read_head(stream: &mut (impl tokio::io::AsyncBufRead + Unpin)) -> String {
    let mut head = String::new();
    loop {
        let before = head.len();
        stream.read_line(&mut head).await.unwrap();
        if head.len() - before <= 2 {
            return head;
        }
    }
}

pub(crate) async fn listen() -> (TcpListener, u16) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    (listener, port)
}

pub(crate) async fn accept(listener: &TcpListener) -> BufReader<TcpStream> {
    BufReader::new(listener.accept().await.unwrap().0)
}
