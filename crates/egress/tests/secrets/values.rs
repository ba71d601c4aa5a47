//! Tests that only the server sees the value.

use egress::EgressEvent;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::fixture::{VALUE, base64, open, scene};
use crate::support::read_head;

#[tokio::test]
async fn the_server_sees_the_value_and_the_client_never_does() {
    let mut scene = scene("localhost", open).await;
    let header = format!("Authorization: Bearer {}", scene.placeholder);
    let request = scene.request("/me?x=1", &header);
    let (mut client, mut server) = tokio::join!(scene.client(), scene.server());
    client.write_all(request.as_bytes()).await.unwrap();
    let seen = read_head(&mut server).await;
    assert!(seen.contains(&format!("authorization: Bearer {VALUE}")), "{seen}");
    assert!(seen.contains("accept-encoding: identity"), "{seen}");
    // The server echoes the request.
    let echo = format!("you sent {VALUE} to me");
    let answer = format!(
        "HTTP/1.1 200 OK\r\nX-Echo: {VALUE}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{echo}",
        echo.len()
    );
    server.write_all(answer.as_bytes()).await.unwrap();
    server.shutdown().await.unwrap();
    let head = read_head(&mut client).await;
    let mut body = vec![0; echo.len()];
    client.read_exact(&mut body).await.unwrap();
    let body = String::from_utf8(body).unwrap();
    assert_eq!(body, echo.replace(VALUE, &"*".repeat(VALUE.len())));
    assert!(head.starts_with("HTTP/1.1 200") && !head.contains(VALUE), "{head}");
    drop(client);
    scene.setup.opened().await;
    scene.setup.closed().await;
    let fetch = &scene.setup.fetched[0];
    assert_eq!(
        (fetch.status, fetch.bytes, fetch.secrets.as_slice()),
        (200, echo.len() as u64, &["TOKEN".to_owned()][..])
    );
    assert!(fetch.url.ends_with("/me") && !fetch.url.contains("x=1"), "{}", fetch.url);
    assert!(fetch.sha256.as_ref().is_some_and(|digest| digest.len() == 64));
}

#[tokio::test]
async fn values_are_redacted_in_status_line_header_names_and_trailers() {
    let scene = scene("localhost", open).await;
    let request = scene.request("/", &format!("TE: trailers\r\nX-Token: {}", scene.placeholder));
    let (mut client, mut server) = tokio::join!(scene.client(), scene.server());
    client.write_all(request.as_bytes()).await.unwrap();
    assert!(read_head(&mut server).await.contains(VALUE));
    let capitals = VALUE.to_uppercase();
    let answer = format!(
        "HTTP/1.1 401 bad token {VALUE}\r\nX-{capitals}: 1\r\n{VALUE}: 2\r\nX-Kept: 3\r\nTrailer: x-{VALUE}\r\n\
         Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n2\r\nok\r\n0\r\nx-{VALUE}: {VALUE}\r\n\r\n"
    );
    server.write_all(answer.as_bytes()).await.unwrap();
    server.shutdown().await.unwrap();
    let head = read_head(&mut client).await;
    let mut rest = Vec::new();
    let _ = client.read_to_end(&mut rest).await;
    let all = format!("{head}{}", String::from_utf8_lossy(&rest));
    assert!(head.starts_with("HTTP/1.1 401 ") && head.contains("x-kept: 3"), "{head}");
    assert!(all.contains("ok") && !all.to_lowercase().contains(VALUE), "{all}");
}

#[tokio::test]
async fn upgrade_response_hides_values_and_keeps_placeholders() {
    let mut scene = scene("localhost", open).await;
    let offer = format!("bearer.{}", scene.placeholder);
    let upgrade = format!("Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Protocol: {offer}");
    let (mut client, mut server) = tokio::join!(scene.client(), scene.server());
    client.write_all(scene.request("/socket", &upgrade).as_bytes()).await.unwrap();
    assert!(read_head(&mut server).await.contains(&format!("bearer.{VALUE}")));
    let answer = format!(
        "HTTP/1.1 101 hello {VALUE}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Protocol: bearer.{VALUE}\r\nX-Echo: {}\r\n{VALUE}: 1\r\n\r\n",
        base64(VALUE)
    );
    server.write_all(answer.as_bytes()).await.unwrap();
    server.flush().await.unwrap();
    let head = read_head(&mut client).await;
    assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
    assert!(head.contains(&format!("sec-websocket-protocol: {offer}\r\n")), "{head}");
    assert!(!head.contains(VALUE) && !head.contains(&base64(VALUE)), "{head}");
    // The log has the upgrade request although the upgraded connection has not ended.
    scene.setup.opened().await;
    drop((client, server));
    scene.setup.closed().await;
    assert_eq!(scene.setup.fetched[0].status, 101);
}

#[tokio::test]
async fn no_event_holds_the_value() {
    let mut scene = scene("localhost", open).await;
    let header = format!("Authorization: Bearer {}", scene.placeholder);
    let request = scene.request("/", &header);
    let (mut client, mut server) = tokio::join!(scene.client(), scene.server());
    client.write_all(request.as_bytes()).await.unwrap();
    read_head(&mut server).await;
    server.write_all(b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n").await.unwrap();
    read_head(&mut client).await;
    drop((client, server));
    let mut closed = false;
    while !closed {
        let event = scene.setup.events.recv().await.unwrap();
        closed = matches!(event, EgressEvent::Closed(_));
        assert!(!format!("{event:?}{}", serde_json::to_string(&event).unwrap()).contains(VALUE));
    }
}
