//! Tests of WebSockets to a host of a secret.

use egress::{Allowance, ProxySettings, ReasonCode};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::fixture::{ClientEnd, Scene, ServerEnd, VALUE, open, scene, scene_with};
use crate::support::read_head;

/// Both ends of an established WebSocket.
async fn web_socket(scene: &Scene) -> (ClientEnd, ServerEnd) {
    let (mut client, mut server) = tokio::join!(scene.client(), scene.server());
    let upgrade = format!(
        "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Extensions: permessage-deflate\r\nX-Token: {}",
        scene.placeholder
    );
    client.write_all(scene.request("/socket", &upgrade).as_bytes()).await.unwrap();
    let seen = read_head(&mut server).await;
    assert!(seen.contains(VALUE) && seen.contains("upgrade: websocket"), "{seen}");
    assert!(!seen.contains("deflate"), "what is compressed cannot be searched: {seen}");
    server
        .write_all(b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
        .await
        .unwrap();
    server.flush().await.unwrap();
    assert!(read_head(&mut client).await.starts_with("HTTP/1.1 101"));
    (client, server)
}

/// A text frame as a server sends it.
fn frame(text: &str) -> Vec<u8> {
    let mut bytes = vec![0x81, u8::try_from(text.len()).unwrap()];
    bytes.extend(text.as_bytes());
    bytes
}

#[tokio::test]
async fn websocket_is_redacted_and_counted() {
    let mut scene = scene("localhost", open).await;
    let (mut client, mut server) = web_socket(&scene).await;
    // A frame that ends like the start of the value arrives immediately, and the value itself is masked wherever the
    // bytes are split.
    let first = frame("hello cana");
    server.write_all(&first).await.unwrap();
    server.flush().await.unwrap();
    let mut seen = vec![0; first.len()];
    client.read_exact(&mut seen).await.unwrap();
    assert_eq!(seen, first);
    let second = frame(&format!("your token is {VALUE}, keep it"));
    for piece in second.chunks(19) {
        server.write_all(piece).await.unwrap();
        server.flush().await.unwrap();
    }
    let mut seen = vec![0; second.len()];
    client.read_exact(&mut seen).await.unwrap();
    assert_eq!(seen, frame(&format!("your token is {}, keep it", "*".repeat(VALUE.len()))));
    client.write_all(b"back").await.unwrap();
    client.flush().await.unwrap();
    let mut back = [0; 4];
    server.read_exact(&mut back).await.unwrap();
    assert_eq!(&back, b"back");
    assert!(scene.setup.opened().await.code.is_none());
    client.shutdown().await.unwrap();
    server.shutdown().await.unwrap();
    drop((client, server));
    let closed = scene.setup.closed().await;
    let carried = (first.len() + second.len()) as u64;
    assert!(closed.bytes_down > carried && closed.bytes_up > 100, "{closed:?}");
}

#[tokio::test]
async fn a_websocket_ends_when_the_bytes_of_the_job_are_used_up() {
    let allowance = Allowance { bytes: Some(100_000), ..Allowance::default() };
    let settings = ProxySettings { allowance, ..ProxySettings::default() };
    let mut scene = scene_with("localhost", open, settings).await;
    let (mut client, mut server) = web_socket(&scene).await;
    let sending = tokio::spawn(async move {
        let piece = frame(&"x".repeat(120)).repeat(50);
        while server.write_all(&piece).await.is_ok() && server.flush().await.is_ok() {}
    });
    let mut received = Vec::new();
    let _ = client.read_to_end(&mut received).await;
    assert!((1..=400_000).contains(&received.len()), "{}", received.len());
    scene.setup.opened().await;
    assert_eq!(scene.setup.closed().await.code, Some(ReasonCode::BudgetExhausted));
    sending.await.unwrap();
}
