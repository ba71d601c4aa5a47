//! HTTP servers that die in the middle of a call, on loopback.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

use std::time::Duration;

use egress::{EgressEvent, Mode, Policy, Proxy, ProxySettings, Ranges, Upstream};
use mcp::{McpError, Session};
use serde_json::{Map, Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;

/// Long enough to fail a test that waits for it.
const LIMIT: Duration = Duration::from_secs(3600);

/// Reads a request: its method and its body.
async fn read_request(stream: &mut BufReader<TcpStream>) -> (String, Value) {
    let (mut head, mut length) = (String::new(), 0);
    loop {
        let mut line = String::new();
        stream.read_line(&mut line).await.unwrap();
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().unwrap();
        }
        if line.trim().is_empty() {
            break;
        }
        head += &line;
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await.unwrap();
    let method = head.split(' ').next().unwrap_or_default().to_owned();
    (method, serde_json::from_slice(&body).unwrap_or_default())
}

/// Serves until the first call, writes `last_words` in answer to it, and dies.
async fn serve(listener: TcpListener, last_words: &'static str) {
    loop {
        let mut stream = BufReader::new(listener.accept().await.unwrap().0);
        let (method, message) = read_request(&mut stream).await;
        let answer = |status: &str, body: &str| {
            let length = body.len();
            format!(
                "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nMcp-Session-Id: s\r\nContent-Length: {length}\r\n\r\n{body}"
            )
        };
        let text = match (method.as_str(), message["method"].as_str()) {
            ("POST", Some("initialize")) => {
                let result = json!({
                    "protocolVersion": message["params"]["protocolVersion"],
                    "capabilities": {"tools": {}},
                    "serverInfo": {"name": "test", "version": "1"}
                });
                answer(
                    "200 OK",
                    &json!({"jsonrpc": "2.0", "id": message["id"], "result": result}).to_string(),
                )
            }
            ("POST", Some("tools/call")) => {
                stream.write_all(last_words.as_bytes()).await.unwrap();
                return;
            }
            ("POST", _) => answer("202 Accepted", ""),
            _ => answer("405 Method Not Allowed", ""),
        };
        stream.write_all(text.as_bytes()).await.unwrap();
    }
}

/// The error of a call whose server dies. The session must end, so that its owner connects again.
async fn error_of_dying_call(last_words: &'static str) -> McpError {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/mcp", listener.local_addr().unwrap());
    drop(tokio::spawn(serve(listener, last_words)));
    let ranges: Ranges = serde_json::from_str(r#"{"allow": ["127.0.0.0/8"]}"#).unwrap();
    let (events, mut log) = mpsc::channel::<EgressEvent>(64);
    drop(tokio::spawn(async move { while log.recv().await.is_some() {} }));
    let proxy = Proxy::new(Policy::new(Mode::Open, ranges).unwrap(), events, ProxySettings::default());
    let upstream = Upstream::load(&[]).unwrap();
    let headers = Vec::new();
    let session = Session::connect(&url, &headers, proxy, upstream, "mcp-x.1".into(), LIMIT).await.unwrap();
    let error = session.call("any", Map::new(), "call-1", LIMIT).await.unwrap_err();
    session.closed().await;
    error
}

#[tokio::test]
async fn call_ends_with_a_stream_that_cannot_be_resumed() {
    let error =
        error_of_dying_call("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n: hello\n\n").await;
    assert_eq!(error.to_string(), "its connection is gone: it has ended");
}

#[tokio::test]
async fn call_ends_when_its_stream_cannot_be_opened_again() {
    let last_words =
        "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\nid: 1\nevent: ping\ndata: {}\n\n";
    let error = error_of_dying_call(last_words).await;
    assert_eq!(error.to_string(), "its connection is gone: it has ended");
}

#[tokio::test]
async fn call_ends_with_a_connection_that_has_no_answer() {
    let error = error_of_dying_call("").await.to_string();
    let text = "closed the connection before its response was complete (connect_failed)";
    assert!(error.starts_with("its connection is gone: 127.0.0.1:") && error.ends_with(text), "{error}");
}
