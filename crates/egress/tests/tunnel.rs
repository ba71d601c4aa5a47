//! Tests of `CONNECT` with servers on loopback.

#![allow(clippy::unwrap_used, reason = "tests")]

mod support;

use std::sync::Arc;
use std::time::Duration;

use egress::{ProxySettings, ReasonCode, Verdict};
use support::{Setup, accept, allow, allow_raw, listen, policy};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

#[tokio::test]
async fn bytes_pass_both_ways_and_a_closed_direction_leaves_the_other_open() {
    let (listener, port) = listen().await;
    let mut setup = Setup::new(allow_raw(format!("127.0.0.1:{port}")));
    let mut client = setup.client();
    client.connect(format!("127.0.0.1:{port}")).await;
    let opened = setup.opened().await;
    let mut server = accept(&listener).await;

    client.send("question").await;
    client.stream.shutdown().await.unwrap();
    let mut question = String::new();
    server.read_to_string(&mut question).await.unwrap();
    assert_eq!(question, "question");
    server.write_all(b"a longer answer").await.unwrap();
    server.shutdown().await.unwrap();
    assert_eq!(client.rest().await, b"a longer answer");
    client.served.await.unwrap();

    let closed = setup.closed().await;
    assert_eq!((closed.bytes_up, closed.bytes_down), (8, 15));
    assert_eq!(closed.reason, "closed by both sides");
    assert!(closed.without_tls && !opened.without_tls);
    assert_eq!((opened.id, opened.bytes_up, opened.verdict), (closed.id, 0, Verdict::Allowed));
    assert_eq!(opened.call.as_deref(), Some("call-1"));
    assert_eq!((opened.method.as_str(), opened.host.as_str(), opened.port), ("CONNECT", "127.0.0.1", port));
    assert_eq!(opened.address, Some("127.0.0.1".parse().unwrap()));
    assert_eq!(opened.rule, format!("127.0.0.1:{port} [without TLS]"));
    assert!(opened.time_ms > 0 && opened.time_ms <= closed.time_ms);
}

#[tokio::test]
async fn the_server_may_close_its_direction_first() {
    let (listener, port) = listen().await;
    let setup = Setup::new(allow_raw(format!("127.0.0.1:{port}")));
    let mut client = setup.client();
    client.connect(format!("127.0.0.1:{port}")).await;
    let mut server = accept(&listener).await;
    server.write_all(b"banner").await.unwrap();
    server.shutdown().await.unwrap();
    assert_eq!(client.rest().await, b"banner");
    client.send("late").await;
    client.stream.shutdown().await.unwrap();
    let mut late = String::new();
    server.read_to_string(&mut late).await.unwrap();
    assert_eq!(late, "late");
}

#[tokio::test]
async fn bytes_sent_with_the_connect_request_are_forwarded() {
    let (listener, port) = listen().await;
    let setup = Setup::new(allow_raw(format!("127.0.0.1:{port}")));
    let mut client = setup.client();
    client.send(format!("CONNECT 127.0.0.1:{port} HTTP/1.1\r\n\r\nearly")).await;
    let mut server = accept(&listener).await;
    let mut early = [0; 5];
    server.read_exact(&mut early).await.unwrap();
    assert_eq!(&early, b"early");
    assert!(client.head().await.starts_with("HTTP/1.1 200"));
}

#[tokio::test]
async fn a_large_transfer_arrives_whole_and_is_counted() {
    let (listener, port) = listen().await;
    let mut setup = Setup::new(allow_raw(format!("127.0.0.1:{port}")));
    let mut client = setup.client();
    client.connect(format!("127.0.0.1:{port}")).await;
    let data: Vec<u8> = (0..16u32 << 20).map(|i| (i % 251) as u8).collect();
    let sent = data.clone();
    let server = tokio::spawn(async move {
        let mut server = accept(&listener).await;
        server.write_all(&sent).await.unwrap();
        server.shutdown().await.unwrap();
    });
    assert!(client.rest().await == data);
    server.await.unwrap();
    drop(client.stream);
    setup.opened().await;
    assert_eq!(setup.closed().await.bytes_down, data.len() as u64);
}

#[tokio::test]
async fn a_name_is_resolved_and_its_addresses_are_tried_in_turn() {
    // `localhost` may resolve to ::1 first, where nothing listens.
    let (listener, port) = listen().await;
    let mut setup = Setup::new(allow_raw(format!("localhost:{port}")));
    let mut client = setup.client();
    client.connect(format!("LOCALHOST.:{port}")).await;
    accept(&listener).await;
    let opened = setup.opened().await;
    assert_eq!((opened.host.as_str(), opened.address), ("localhost", Some("127.0.0.1".parse().unwrap())));
}

#[tokio::test]
async fn idle_tunnel_is_closed() {
    let (listener, port) = listen().await;
    let mut setup = Setup::new(allow_raw(format!("127.0.0.1:{port}")));
    let mut client = setup.client();
    client.connect(format!("127.0.0.1:{port}")).await;
    let _server = accept(&listener).await;
    setup.opened().await;
    tokio::time::pause();
    let closed = setup.closed().await;
    assert_eq!(closed.code, Some(ReasonCode::Timeout));
    assert!(closed.duration_ms >= 600_000, "{closed:?}");
    assert_eq!(client.rest().await, b"");
}

#[tokio::test]
async fn dropped_connections_log_their_end() {
    let (listener, port) = listen().await;
    let mut setup = Setup::new(allow_raw(format!("127.0.0.1:{port}")));
    let mut client = setup.client();
    client.connect(format!("127.0.0.1:{port}")).await;
    let mut server = accept(&listener).await;
    client.send("abc").await;
    server.read_exact(&mut [0; 3]).await.unwrap();
    client.served.abort();
    setup.opened().await;
    assert_eq!(setup.closed().await.bytes_up, 3);
    assert_eq!(server.read(&mut [0; 1]).await.unwrap(), 0);
}

#[tokio::test]
async fn a_full_log_loses_nothing() {
    let (listener, port) = listen().await;
    let mut setup = Setup::with(allow_raw(format!("127.0.0.1:{port}")), ProxySettings::default(), 1);
    let mut first = setup.client();
    first.connect(format!("127.0.0.1:{port}")).await;
    accept(&listener).await;
    // The log is full after the first opening, so the end of the first connection waits for room.
    first.served.abort();
    assert!(first.served.await.unwrap_err().is_cancelled());
    let mut second = setup.client();
    second.send(format!("CONNECT 127.0.0.1:{port} HTTP/1.1\r\n\r\n")).await;
    accept(&listener).await;
    let opened = setup.opened().await;
    let mut ids = Vec::new();
    for _ in 0..2 {
        ids.push(setup.events.recv().await.unwrap().connection().unwrap().id);
    }
    assert!(second.head().await.starts_with("HTTP/1.1 200"));
    ids.sort_unstable();
    assert_eq!((opened.id, ids), (1, vec![1, 2]));
}

#[tokio::test]
async fn tunnel_holds_its_connection_permit() {
    let (listener, port) = listen().await;
    let settings =
        ProxySettings { connections: 1, idle_timeout: Duration::from_secs(60), ..ProxySettings::default() };
    let mut setup = Setup::with(allow_raw(format!("127.0.0.1:{port}")), settings, 64);
    let mut first = setup.client();
    first.connect(format!("127.0.0.1:{port}")).await;
    setup.opened().await;

    let mut second = setup.client();
    second.send(format!("CONNECT 127.0.0.1:{port} HTTP/1.1\r\n\r\n")).await;
    let answer = second.answer().await;
    assert!(answer.head.starts_with("HTTP/1.1 503"), "{}", answer.head);
    assert!(answer.head.contains("x-caisson-reason: too_many_connections"), "{}", answer.head);
    assert_eq!(setup.refused().await.verdict, Verdict::Failed);

    accept(&listener).await.shutdown().await.unwrap();
    drop(first.stream);
    first.served.await.unwrap();
    setup.closed().await;
    setup.client().connect(format!("127.0.0.1:{port}")).await;
}

/// A ClientHello with this server name.
fn hello(name: &'static str) -> Vec<u8> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(rustls::RootCertStore::empty())
        .with_no_client_auth();
    let mut client = rustls::ClientConnection::new(Arc::new(config), name.try_into().unwrap()).unwrap();
    let mut bytes = Vec::new();
    client.write_tls(&mut bytes).unwrap();
    bytes
}

#[tokio::test]
async fn a_tunnel_without_tls_is_refused_unless_a_rule_allows_it() {
    let (listener, port) = listen().await;
    let mut setup = Setup::new(allow(format!("localhost:{port}")));
    for server_begins in [false, true] {
        let mut client = setup.client();
        client.connect(format!("localhost:{port}")).await;
        let mut server = accept(&listener).await;
        if server_begins {
            server.write_all(b"220 ready").await.unwrap();
        } else {
            client.send("GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n").await;
        }
        let answer = client.answer().await;
        assert!(answer.head.starts_with("HTTP/1.1 403"), "{}", answer.head);
        assert!(answer.body.contains("\"without_tls\":true"), "{}", answer.body);
        let mut passed = Vec::new();
        let _ = server.read_to_end(&mut passed).await;
        assert!(passed.is_empty(), "{passed:?}");
        setup.opened().await;
        let refused = setup.refused().await;
        assert_eq!((refused.code, refused.verdict), (Some(ReasonCode::WithoutTls), Verdict::Refused));
        assert_eq!(refused.call.as_deref(), Some("call-1"));
        assert_eq!(setup.closed().await.code, Some(ReasonCode::WithoutTls));
    }
}

#[tokio::test]
async fn empty_tunnel_is_closed_without_refusal() {
    let (listener, port) = listen().await;
    let mut setup = Setup::new(allow(format!("localhost:{port}")));
    let mut client = setup.client();
    client.connect(format!("localhost:{port}")).await;
    let _server = accept(&listener).await;
    drop(client.stream);
    setup.opened().await;
    assert_eq!(setup.closed().await.code, None);
}

#[tokio::test]
async fn tls_server_name_must_match_the_tunnel() {
    let (listener, port) = listen().await;
    for mode in [format!(r#"{{"allow": ["localhost:{port}"]}}"#), "\"open\"".into()] {
        let mut setup = Setup::new(policy(&mode));
        let mut client = setup.client();
        client.connect(format!("localhost:{port}")).await;
        let mut server = accept(&listener).await;
        let right = hello("localhost");
        client.send(&right).await;
        let mut passed = vec![0; right.len()];
        server.read_exact(&mut passed).await.unwrap();
        assert_eq!(passed, right);
        drop((client.stream, server));
        setup.opened().await;
        assert!(!setup.closed().await.without_tls);

        let mut client = setup.client();
        client.connect(format!("localhost:{port}")).await;
        let mut server = accept(&listener).await;
        client.send(hello("evil.example")).await;
        assert_eq!(client.rest().await, [0x15, 3, 3, 0, 2, 2, 112], "an alert: unrecognized name");
        let mut passed = Vec::new();
        let _ = server.read_to_end(&mut passed).await;
        assert!(passed.is_empty(), "{passed:?}");
        setup.opened().await;
        let refused = setup.refused().await;
        assert_eq!(refused.code, Some(ReasonCode::ServerNameMismatch));
        assert!(refused.reason.contains("evil.example"), "{}", refused.reason);
        assert_eq!(setup.closed().await.code, Some(ReasonCode::ServerNameMismatch));
    }
}
