//! Tests of where a placeholder must not be sent.

use egress::ReasonCode;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::fixture::{open, scene};
use crate::support::{listen, read_head};

#[tokio::test]
async fn placeholder_in_a_host_name_is_refused_before_dns_lookup() {
    let mut scene = scene("localhost", open).await;
    let name = format!("{}.other.example", scene.other_placeholder);
    let mut client = scene.setup.client();
    client.send(format!("CONNECT {name}:443 HTTP/1.1\r\nHost: {name}\r\n\r\n")).await;
    let answer = client.answer().await;
    assert!(answer.head.starts_with("HTTP/1.1 403") && answer.body.contains("OTHER"), "{}", answer.body);
    assert_eq!(scene.setup.refused().await.code, Some(ReasonCode::SecretHostMismatch));
    let mut client = scene.setup.client();
    let upper = name.to_uppercase();
    client.send(format!("GET http://{upper}/ HTTP/1.1\r\nHost: {upper}\r\n\r\n")).await;
    assert!(client.answer().await.body.contains("secret_host_mismatch"));
    assert_eq!(scene.setup.refused().await.code, Some(ReasonCode::SecretHostMismatch));
    let mut client = scene.setup.client();
    let mut asked = vec![5, 1, 0, 5, 1, 0, 3, u8::try_from(name.len()).unwrap()];
    asked.extend(name.as_bytes());
    asked.extend(443u16.to_be_bytes());
    client.send(asked).await;
    assert_eq!(scene.setup.refused().await.code, Some(ReasonCode::SecretHostMismatch));
}

#[tokio::test]
async fn placeholder_in_plain_http_is_refused_for_every_host() {
    let mut scene = scene("localhost", open).await;
    for target in [format!("localhost:{}", scene.port), "127.0.0.1:9".to_owned()] {
        let mut client = scene.setup.client();
        let placeholder = &scene.placeholder;
        client
            .send(format!("GET http://{target}/ HTTP/1.1\r\nHost: x\r\nX-Token: {placeholder}\r\n\r\n"))
            .await;
        let answer = client.answer().await;
        assert!(answer.head.starts_with("HTTP/1.1 403"), "{}", answer.head);
        assert!(
            answer.body.contains("secret_host_mismatch") && answer.body.contains("TOKEN"),
            "{}",
            answer.body
        );
        assert_eq!(scene.setup.refused().await.code, Some(ReasonCode::SecretHostMismatch));
    }
}

#[tokio::test]
async fn placeholder_in_a_tunnel_closes_the_tunnel() {
    let mut scene = scene("localhost", open).await;
    let (listener, port) = listen().await;
    let mut client = scene.setup.client();
    client.connect(format!("127.0.0.1:{port}")).await;
    let mut server = listener.accept().await.unwrap().0;
    // In two chunks, as a client that wants to hide it would send it.
    let (first, second) = scene.placeholder.split_at(20);
    client.send(format!("harmless {first}")).await;
    client.stream.flush().await.unwrap();
    let mut seen = vec![0; 9 + first.len()];
    server.read_exact(&mut seen).await.unwrap();
    client.send(second).await;
    let mut rest = Vec::new();
    server.read_to_end(&mut rest).await.unwrap();
    assert!(rest.is_empty(), "{rest:?}");
    scene.setup.opened().await;
    assert_eq!(scene.setup.closed().await.code, Some(ReasonCode::SecretHostMismatch));
}

#[tokio::test]
async fn placeholder_in_a_plain_http_body_aborts_the_request() {
    let mut scene = scene("localhost", open).await;
    let (listener, port) = listen().await;
    let mut client = scene.setup.client();
    let placeholder = scene.placeholder.clone();
    let length = 6 + placeholder.len();
    let head =
        format!("POST http://127.0.0.1:{port}/ HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\n");
    // In two chunks, as a client that wants to hide it would send it.
    let (first, second) = placeholder.split_at(20);
    client.send(format!("{head}token={first}")).await;
    let mut server = listener.accept().await.unwrap().0;
    let mut seen = Vec::new();
    while !seen.windows(first.len()).any(|window| window == first.as_bytes()) {
        server.read_buf(&mut seen).await.unwrap();
    }
    client.send(second).await;
    let answer = client.answer().await;
    assert!(answer.head.starts_with("HTTP/1.1 403"), "{}", answer.head);
    assert!(answer.body.contains("secret_host_mismatch") && answer.body.contains("TOKEN"), "{}", answer.body);
    let mut rest = Vec::new();
    let _ = server.read_to_end(&mut rest).await;
    assert!(rest.is_empty(), "{rest:?}");
    scene.setup.opened().await;
    assert_eq!(scene.setup.closed().await.code, Some(ReasonCode::SecretHostMismatch));
}

#[tokio::test]
async fn placeholder_of_another_host_in_a_tls_body_aborts_the_request() {
    let mut scene = scene("localhost", open).await;
    let (mut client, mut server) = tokio::join!(scene.client(), scene.server());
    let body = format!("a={}", scene.other_placeholder);
    let request = format!(
        "POST / HTTP/1.1\r\nHost: localhost:{}\r\nContent-Length: {}\r\n\r\n{body}",
        scene.port,
        body.len()
    );
    client.write_all(request.as_bytes()).await.unwrap();
    let head = read_head(&mut client).await;
    assert!(head.starts_with("HTTP/1.1 403") && head.contains("secret_host_mismatch"), "{head}");
    let mut seen = Vec::new();
    let _ = server.read_to_end(&mut seen).await;
    assert!(!String::from_utf8_lossy(&seen).contains(&scene.other_placeholder));
    scene.setup.opened().await;
    assert_eq!(scene.setup.refused().await.code, Some(ReasonCode::SecretHostMismatch));
}
