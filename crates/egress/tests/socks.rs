//! Tests of the SOCKS5 entry point.

#![allow(clippy::unwrap_used, reason = "tests")]

mod support;

use egress::ReasonCode;
use support::{Client, Setup, accept, allow_raw, listen, strict_policy};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// Connects with a user name to a host name and returns the reply code.
async fn ask(client: &mut Client, host: &str, port: u16) -> u8 {
    client.send(b"\x05\x02\x00\x02").await;
    let mut two = [0; 2];
    client.stream.read_exact(&mut two).await.unwrap();
    assert_eq!(two, [5, 2], "a user name is preferred, it says which call it is");
    client.send(b"\x01\x06call-7\x01x").await;
    client.stream.read_exact(&mut two).await.unwrap();
    assert_eq!(two, [1, 0]);
    let mut request = vec![5, 1, 0, 3, u8::try_from(host.len()).unwrap()];
    request.extend_from_slice(host.as_bytes());
    request.extend_from_slice(&port.to_be_bytes());
    client.send(request).await;
    let mut answer = [0; 10];
    client.stream.read_exact(&mut answer).await.unwrap();
    answer[1]
}

#[tokio::test]
async fn a_connection_passes_bytes_and_names_its_call() {
    let (listener, port) = listen().await;
    let mut setup = Setup::new(allow_raw(format!("localhost:{port}")));
    let mut client = setup.client();
    assert_eq!(ask(&mut client, "localhost", port).await, 0);
    let opened = setup.opened().await;
    assert_eq!((opened.call.as_deref(), opened.method.as_str()), (Some("call-7"), "SOCKS5"));
    let mut server = accept(&listener).await;
    client.send("ping").await;
    let mut four = [0; 4];
    server.read_exact(&mut four).await.unwrap();
    server.write_all(b"pong").await.unwrap();
    client.stream.read_exact(&mut four).await.unwrap();
    assert_eq!(&four, b"pong");
    drop((client.stream, server));
    assert_eq!(setup.closed().await.bytes_up, 4);
}

#[tokio::test]
async fn socks_connections_obey_policy_and_refused_ranges() {
    for (mode, host, code) in [
        ("\"off\"", "example.org", ReasonCode::EgressOff),
        (r#"{"allow": ["a.example"]}"#, "example.org", ReasonCode::NotInList),
        ("\"open\"", "127.0.0.1", ReasonCode::RefusedRange),
        ("\"open\"", "169.254.169.254", ReasonCode::RefusedRange),
    ] {
        let mut setup = Setup::new(strict_policy(mode));
        let mut client = setup.client();
        assert_eq!(ask(&mut client, host, 443).await, 2, "{mode} {host}");
        assert_eq!(setup.refused().await.code, Some(code));
    }
}

#[tokio::test]
async fn listening_and_datagrams_are_refused() {
    for command in [2, 3] {
        let mut setup = Setup::new(strict_policy("\"open\""));
        let mut client = setup.client();
        client.send(b"\x05\x01\x00").await;
        let mut two = [0; 2];
        client.stream.read_exact(&mut two).await.unwrap();
        client.send([5, command, 0, 1, 192, 0, 2, 1, 0, 80]).await;
        let mut answer = [0; 10];
        client.stream.read_exact(&mut answer).await.unwrap();
        assert_eq!(answer[1], 7);
        assert_eq!(setup.refused().await.code, Some(ReasonCode::BadRequest));
    }
}
