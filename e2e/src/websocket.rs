//! A WebSocket client.

use std::net::TcpStream;
use std::time::{Duration, Instant};

use serde_json::Value;
use tungstenite::client::IntoClientRequest as _;
use tungstenite::{HandshakeError, Message, WebSocket};

use crate::server::Server;

pub struct Socket {
    inner: WebSocket<TcpStream>,
}

/// A message from the server.
#[derive(Debug, Clone, PartialEq)]
pub enum Said {
    /// A text message, which is always JSON.
    Text(Value),
    Bytes(Vec<u8>),
    /// A close frame with its code.
    Closed(Option<u16>),
}

/// Everything a process sent until it exited.
#[derive(Debug, Default)]
pub struct Finished {
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
    /// Output of the process's terminal.
    pub terminal: Vec<u8>,
    /// How many bytes the server dropped.
    pub gap: u64,
    /// The last text message, which tells how the process ended.
    pub end: Value,
}

impl Socket {
    /// Opens a WebSocket; panics if the server rejects it.
    #[must_use]
    #[track_caller]
    pub fn open(server: &Server, path: &str) -> Self {
        Self::try_open(server, path, &[]).unwrap_or_else(|(status, body)| panic!("{path}: {status} {body}"))
    }

    /// Opens a WebSocket with additional headers; returns status and body if the server rejects it.
    pub fn try_open(
        server: &Server,
        path: &str,
        headers: &[(&'static str, &str)],
    ) -> Result<Self, (u16, String)> {
        let stream = TcpStream::connect(("127.0.0.1", server.port)).expect("connecting");
        stream.set_read_timeout(Some(Duration::from_secs(90))).expect("setting a timeout");
        let address = format!("ws://127.0.0.1:{}{path}", server.port);
        let mut request = address.into_client_request().expect("a request");
        for (name, value) in headers {
            request.headers_mut().insert(*name, value.parse().expect("a header"));
        }
        match tungstenite::client(request, stream) {
            Ok((inner, _)) => Ok(Self { inner }),
            Err(HandshakeError::Failure(tungstenite::Error::Http(response))) => {
                let body = response.body().as_deref().map(String::from_utf8_lossy).unwrap_or_default();
                Err((response.status().as_u16(), body.into_owned()))
            }
            Err(error) => panic!("{path}: {error}"),
        }
    }

    /// Sends JSON as a text message.
    #[track_caller]
    pub fn send(&mut self, json: &Value) {
        self.inner.send(Message::text(json.to_string())).expect("sending text");
    }

    /// Sends a binary message.
    #[track_caller]
    pub fn send_bytes(&mut self, bytes: &[u8]) {
        self.inner.send(Message::binary(bytes.to_vec())).expect("sending bytes");
    }

    /// Sends a binary message; returns whether the server still accepted it.
    pub fn try_send_bytes(&mut self, bytes: &[u8]) -> bool {
        self.inner.send(Message::binary(bytes.to_vec())).is_ok()
    }

    /// The next message. Panics if the server sends nothing for 90 seconds or drops the connection without a close
    /// frame.
    #[track_caller]
    pub fn hear(&mut self) -> Said {
        let deadline = Instant::now() + Duration::from_secs(90);
        loop {
            // Pings keep arriving and reset the read timeout, so the deadline is checked here.
            assert!(Instant::now() < deadline, "the server said nothing for 90 seconds");
            match self.inner.read() {
                Ok(Message::Text(text)) => {
                    return Said::Text(serde_json::from_str(&text).expect("text is JSON"));
                }
                Ok(Message::Binary(bytes)) => return Said::Bytes(bytes.to_vec()),
                Ok(Message::Close(frame)) => {
                    let _ = self.inner.flush();
                    return Said::Closed(frame.map(|frame| frame.code.into()));
                }
                Ok(_) => {}
                Err(error) => panic!("the WebSocket broke: {error}"),
            }
        }
    }

    /// Reads until the server closes the connection; returns code and reason of the close frame.
    #[track_caller]
    pub fn until_closed(&mut self) -> (u16, String) {
        loop {
            match self.inner.read() {
                Ok(Message::Close(Some(frame))) => return (frame.code.into(), frame.reason.to_string()),
                Ok(Message::Close(None)) => panic!("closed without a code"),
                Ok(_) => {}
                Err(error) => panic!("the WebSocket broke: {error}"),
            }
        }
    }

    /// Reads until the output, on any stream, contains a text. Panics if the process exits first.
    #[track_caller]
    pub fn until_output(&mut self, wanted: &str) -> String {
        let mut seen = String::new();
        while !seen.contains(wanted) {
            match self.hear() {
                Said::Bytes(bytes) => seen.push_str(&String::from_utf8_lossy(&bytes[1..])),
                Said::Text(text) if text["type"] == "started" => {}
                other => panic!("{other:?} came before `{wanted}`; so far: {seen}"),
            }
        }
        seen
    }

    /// Reads from a shared terminal until it has shown this text.
    #[track_caller]
    pub fn until_terminal_shows(&mut self, wanted: &str) {
        let mut seen = String::new();
        while !seen.contains(wanted) {
            match self.hear() {
                Said::Bytes(bytes) => seen.push_str(&String::from_utf8_lossy(&bytes)),
                Said::Text(_) => {}
                Said::Closed(code) => panic!("closed with {code:?} before `{wanted}`: {seen}"),
            }
        }
    }

    /// The session id of a shared terminal, from the server's first notice.
    #[track_caller]
    pub fn session(&mut self) -> String {
        loop {
            match self.hear() {
                Said::Text(notice) => {
                    if let Some(session) = notice["session"].as_str() {
                        return session.to_owned();
                    }
                }
                Said::Bytes(_) => {}
                Said::Closed(code) => panic!("closed with {code:?} before it named its session"),
            }
        }
    }

    /// Reads the first message, `started`, and returns the call id.
    #[track_caller]
    pub fn started(&mut self) -> String {
        match self.hear() {
            Said::Text(text) if text["type"] == "started" => {
                text["call"].as_str().expect("a call").to_owned()
            }
            other => panic!("{other:?} instead of the start"),
        }
    }

    /// Reads until the process has exited and the server has closed the socket.
    #[track_caller]
    pub fn finish(&mut self) -> Finished {
        let mut finished = Finished::default();
        loop {
            match self.hear() {
                Said::Bytes(bytes) => {
                    let into = match bytes[0] {
                        1 => &mut finished.stdout,
                        2 => &mut finished.stderr,
                        3 => &mut finished.terminal,
                        other => panic!("output of stream {other}"),
                    };
                    into.extend_from_slice(&bytes[1..]);
                }
                Said::Text(text) => match text["type"].as_str() {
                    Some("started") => {}
                    Some("gap") => finished.gap += text["bytes"].as_u64().expect("a number"),
                    _ => finished.end = text,
                },
                Said::Closed(_) => {
                    assert!(!finished.end.is_null(), "closed without an end");
                    return finished;
                }
            }
        }
    }
}
