//! Responses of a host of a secret must be searchable, whether or not the request carried a value.

use egress::ReasonCode;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::fixture::{VALUE, open, scene};
use crate::support::{accept, read_head};

#[tokio::test]
async fn unsearchable_response_is_refused_even_without_a_secret_in_the_request() {
    for (head, why) in [
        ("HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 2\r\n", "compressed"),
        (
            "HTTP/1.1 200 OK\r\nContent-Encoding: identity\r\nContent-Encoding: br\r\nContent-Length: 2\r\n",
            "compressed",
        ),
        ("HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n", "transfer-encoding"),
        ("HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n", "transfer-encoding"),
        (
            "HTTP/1.1 206 Partial Content\r\nContent-Range: bytes 0-1/9\r\nContent-Length: 2\r\n",
            "it is partial",
        ),
    ] {
        let mut scene = scene("localhost", open).await;
        let (mut client, mut server) = tokio::join!(scene.client(), scene.server());
        client.write_all(scene.request("/", "X: y").as_bytes()).await.unwrap();
        read_head(&mut server).await;
        server.write_all(format!("{head}\r\nxx").as_bytes()).await.unwrap();
        server.flush().await.unwrap();
        let refused = read_head(&mut client).await;
        assert!(refused.starts_with("HTTP/1.1 502") && refused.contains(why), "{head}: {refused}");
        scene.setup.opened().await;
        assert_eq!(scene.setup.refused().await.code, Some(ReasonCode::UnscannableResponse));
    }
}

#[tokio::test]
async fn bodyless_response_may_have_a_content_encoding() {
    let scene = scene("localhost", open).await;
    let (mut client, mut server) = tokio::join!(scene.client(), scene.server());
    let request = scene.request("/", "X: y").replace("GET", "HEAD");
    client.write_all(request.as_bytes()).await.unwrap();
    read_head(&mut server).await;
    server
        .write_all(b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 20\r\n\r\n")
        .await
        .unwrap();
    server.flush().await.unwrap();
    assert!(read_head(&mut client).await.starts_with("HTTP/1.1 200"));
}

#[tokio::test]
async fn complete_responses_are_requested_and_escaped_values_redacted() {
    let scene = scene("localhost", open).await;
    let (mut client, mut server) = tokio::join!(scene.client(), scene.server());
    let parts = "Range: bytes=3-9\r\nIf-Range: \"tag\"\r\nA-IM: gzip\r\nAccept-Encoding: gzip, br";
    client.write_all(scene.request("/", parts).as_bytes()).await.unwrap();
    let seen = read_head(&mut server).await;
    assert!(seen.contains("accept-encoding: identity"), "{seen}");
    assert!(!seen.contains("range") && !seen.contains("a-im"), "{seen}");
    let forms = [
        VALUE.replace('-', "\\u002d"),
        VALUE.replace('-', "&#45;"),
        VALUE.replace('-', "=2D"),
        VALUE.bytes().map(|byte| format!("{byte:02x}")).collect(),
        VALUE.chars().flat_map(|letter| [letter, '\0']).collect(),
    ];
    let body = forms.map(|form| format!("<{form}>")).concat();
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
    server.write_all(head.as_bytes()).await.unwrap();
    for piece in body.as_bytes().chunks(7) {
        server.write_all(piece).await.unwrap();
        server.flush().await.unwrap();
    }
    read_head(&mut client).await;
    let mut shown = vec![0; body.len()];
    client.read_exact(&mut shown).await.unwrap();
    let shown = String::from_utf8(shown).unwrap();
    assert!(shown.chars().all(|letter| "<>*\0".contains(letter)), "{shown}");
    assert_eq!(shown.matches('<').count(), 5, "{shown}");
}

#[tokio::test]
async fn plain_http_responses_of_secret_hosts_are_redacted() {
    let mut scene = scene("localhost", open).await;
    let ask = format!(
        "GET http://localhost:{0}/ HTTP/1.1\r\nHost: localhost:{0}\r\nRange: bytes=0-3\r\n\r\n",
        scene.port
    );
    for (coding, is_refused) in [("", false), ("Content-Encoding: gzip\r\n", true)] {
        let mut client = scene.setup.client();
        client.send(&ask).await;
        let mut server = accept(&scene.listener).await;
        let seen = read_head(&mut server).await;
        assert!(seen.contains("accept-encoding: identity") && !seen.contains("range"), "{seen}");
        let answer = format!(
            "HTTP/1.1 200 OK\r\n{coding}X-Echo: {VALUE}\r\nContent-Length: {}\r\n\r\n{VALUE}",
            VALUE.len()
        );
        server.write_all(answer.as_bytes()).await.unwrap();
        let answer = client.answer().await;
        assert!(
            !answer.head.contains(VALUE) && !answer.body.contains(VALUE),
            "{}{}",
            answer.head,
            answer.body
        );
        assert_eq!(answer.head.starts_with("HTTP/1.1 502"), is_refused, "{}", answer.head);
        drop((client, server));
        scene.setup.opened().await;
        // The end of the connection and the refusal are logged in either order.
        let mut told = Vec::new();
        for _ in 0..1 + usize::from(is_refused) {
            told.extend(scene.setup.next().await.unwrap().connection().unwrap().code);
        }
        let expected = is_refused.then_some(ReasonCode::UnscannableResponse);
        assert_eq!(told, expected.into_iter().collect::<Vec<_>>());
    }
}
