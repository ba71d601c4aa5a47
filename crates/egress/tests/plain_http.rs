//! Tests of plain HTTP with servers on loopback.

mod support;

use egress::{ReasonCode, Verdict};
use support::{Setup, accept, allow, listen, policy, read_head};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

#[tokio::test]
async fn two_requests_share_a_client_connection_and_each_is_logged() {
    let (listener, port) = listen().await;
    let mut setup = Setup::new(allow(format!("127.0.0.1:{port}")));
    let server = tokio::spawn(async move {
        let mut heads = Vec::new();
        for answer in ["first", "second"] {
            let mut server = accept(&listener).await;
            heads.push(read_head(&mut server).await);
            let text = format!(
                "HTTP/1.1 200 Fine\r\nContent-Length: {}\r\nKeep-Alive: x\r\n\r\n{answer}",
                answer.len()
            );
            server.write_all(text.as_bytes()).await.unwrap();
        }
        heads
    });
    let mut client = setup.client();
    for (path, expected) in [("/one?a=b", "first"), ("", "second")] {
        client
            .send(format!(
                "GET http://me@127.0.0.1:{port}{path} HTTP/1.1\r\nHost: liar.example\r\nProxy-Connection: keep-alive\r\n\
                 Proxy-Authorization: Basic Y2FsbC0xOng=\r\nConnection: keep-alive, X-Private\r\nX-Private: 1\r\n\
                 X-Kept: 1\r\n\r\n"
            ))
            .await;
        let answer = client.answer().await;
        assert!(answer.head.starts_with("HTTP/1.1 200 Fine"), "{}", answer.head);
        assert!(!answer.head.contains("keep-alive"), "{}", answer.head);
        assert_eq!(answer.body, expected);
    }
    let heads = server.await.unwrap();
    assert!(heads[0].starts_with("GET /one?a=b HTTP/1.1\r\n"), "{}", heads[0]);
    assert!(heads[1].starts_with("GET / HTTP/1.1\r\n"), "{}", heads[1]);
    for head in heads {
        let head = head.to_ascii_lowercase();
        assert!(
            head.contains(&format!("host: 127.0.0.1:{port}\r\n")) && head.contains("x-kept: 1"),
            "{head}"
        );
        assert!(!head.contains("proxy-") && !head.contains("x-private") && !head.contains("liar"), "{head}");
    }
    for id in [1, 2] {
        let opened = setup.opened().await;
        let closed = setup.closed().await;
        assert_eq!((opened.id, closed.id), (id, id));
        assert_eq!((opened.method.as_str(), opened.call.as_deref()), ("GET", Some("call-1")));
        assert_eq!(closed.reason, "answered");
        assert!(closed.bytes_up > 50 && closed.bytes_down > 40, "{closed:?}");
    }
}

#[tokio::test]
async fn request_body_and_chunked_response_are_forwarded() {
    let (listener, port) = listen().await;
    let setup = Setup::new(allow(format!("127.0.0.1:{port}")));
    let mut client = setup.client();
    let request = format!(
        "POST http://127.0.0.1:{port}/ HTTP/1.1\r\nContent-Length: 6\r\nExpect: 100-continue\r\n\r\n"
    );
    client.send(request).await;
    assert!(client.head().await.starts_with("HTTP/1.1 100"));
    client.send("upload").await;
    let mut server = accept(&listener).await;
    let head = read_head(&mut server).await;
    assert!(!head.to_ascii_lowercase().contains("expect"), "{head}");
    let mut body = [0; 6];
    server.read_exact(&mut body).await.unwrap();
    assert_eq!(&body, b"upload");

    server.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n").await.unwrap();
    let head = client.head().await.to_ascii_lowercase();
    assert!(head.contains("transfer-encoding: chunked"), "{head}");
    // The first chunk arrives before the second one is sent.
    let mut part = [0; 8];
    client.stream.read_exact(&mut part).await.unwrap();
    assert_eq!(&part, b"3\r\nabc\r\n");
    server.write_all(b"2\r\nde\r\n0\r\n\r\n").await.unwrap();
    let mut part = [0; 12];
    client.stream.read_exact(&mut part).await.unwrap();
    assert_eq!(&part, b"2\r\nde\r\n0\r\n\r\n");
}

#[tokio::test]
async fn a_chunked_upload_stays_chunked() {
    let (listener, port) = listen().await;
    let setup = Setup::new(allow(format!("127.0.0.1:{port}")));
    let mut client = setup.client();
    let head = format!(
        "PUT http://127.0.0.1:{port}/ HTTP/1.1\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n"
    );
    client.send(head + "4\r\nwhat\r\n0\r\n\r\n").await;
    let mut server = accept(&listener).await;
    let head = read_head(&mut server).await.to_ascii_lowercase();
    assert!(head.contains("transfer-encoding: chunked") && !head.contains("content-length"), "{head}");
    let mut body = [0; 14];
    server.read_exact(&mut body).await.unwrap();
    assert_eq!(&body, b"4\r\nwhat\r\n0\r\n\r\n");
}

#[tokio::test]
async fn an_answer_without_a_body_ends_the_connection_to_the_server() {
    let (listener, port) = listen().await;
    let mut setup = Setup::new(allow(format!("127.0.0.1:{port}")));
    let mut client = setup.client();
    client.send(format!("HEAD http://127.0.0.1:{port}/ HTTP/1.1\r\n\r\n")).await;
    let mut server = accept(&listener).await;
    read_head(&mut server).await;
    server.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 900\r\n\r\n").await.unwrap();
    assert!(client.head().await.to_ascii_lowercase().contains("content-length: 900"));
    setup.opened().await;
    assert_eq!(setup.closed().await.reason, "answered");
}

#[tokio::test]
async fn a_client_that_leaves_ends_the_connection_to_the_server() {
    let (listener, port) = listen().await;
    let mut setup = Setup::new(allow(format!("127.0.0.1:{port}")));
    let mut client = setup.client();
    client.send(format!("GET http://127.0.0.1:{port}/ HTTP/1.1\r\n\r\n")).await;
    let mut server = accept(&listener).await;
    read_head(&mut server).await;
    server.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 900\r\n\r\npart").await.unwrap();
    client.head().await;
    drop(client.stream);
    setup.opened().await;
    assert!(setup.closed().await.bytes_down > 4);
    assert_eq!(server.read(&mut [0; 1]).await.unwrap_or(0), 0);
}

#[tokio::test]
async fn truncated_response_is_not_forwarded_as_complete() {
    let (listener, port) = listen().await;
    let mut setup = Setup::new(allow(format!("127.0.0.1:{port}")));
    let mut client = setup.client();
    client.send(format!("GET http://127.0.0.1:{port}/ HTTP/1.1\r\n\r\n")).await;
    let mut server = accept(&listener).await;
    read_head(&mut server).await;
    server.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\npart\r\n").await.unwrap();
    drop(server);
    let rest = String::from_utf8(client.rest().await).unwrap();
    assert!(rest.contains("part") && !rest.contains("0\r\n\r\n"), "{rest}");
    setup.opened().await;
    setup.closed().await;
}

#[tokio::test]
async fn server_without_response_yields_bad_gateway() {
    let (listener, port) = listen().await;
    let mut setup = Setup::new(allow(format!("127.0.0.1:{port}")));
    let mut client = setup.client();
    client.send(format!("GET http://127.0.0.1:{port}/ HTTP/1.1\r\n\r\n")).await;
    let mut server = accept(&listener).await;
    read_head(&mut server).await;
    drop(server);
    let answer = client.answer().await;
    assert!(answer.head.starts_with("HTTP/1.1 502"), "{}", answer.head);
    assert!(answer.head.contains("x-caisson-reason: connect_failed"), "{}", answer.head);
    setup.opened().await;
    setup.closed().await;
}

#[tokio::test]
async fn a_server_that_never_answers_is_a_gateway_timeout() {
    let (listener, port) = listen().await;
    let mut setup = Setup::new(allow(format!("127.0.0.1:{port}")));
    let mut client = setup.client();
    client.send(format!("GET http://127.0.0.1:{port}/ HTTP/1.1\r\n\r\n")).await;
    let mut server = accept(&listener).await;
    read_head(&mut server).await;
    tokio::time::pause();
    let answer = client.answer().await;
    assert!(answer.head.starts_with("HTTP/1.1 504"), "{}", answer.head);
    setup.opened().await;
    assert_eq!(setup.closed().await.code, Some(ReasonCode::Timeout));
}

#[tokio::test]
async fn a_new_policy_holds_for_the_next_request_of_a_connection() {
    let (listener, port) = listen().await;
    let mut setup = Setup::new(policy("\"off\""));
    let mut client = setup.client();
    let request = format!("GET http://127.0.0.1:{port}/ HTTP/1.1\r\n\r\n");
    client.send(&request).await;
    assert!(client.answer().await.head.starts_with("HTTP/1.1 403"));
    assert_eq!(setup.refused().await.verdict, Verdict::Refused);

    setup.proxy.set_policy(allow(format!("127.0.0.1:{port}")));
    client.send(&request).await;
    let mut server = accept(&listener).await;
    read_head(&mut server).await;
    server.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await.unwrap();
    assert_eq!(client.answer().await.body, "ok");
    setup.opened().await;
    setup.closed().await;

    setup.proxy.set_policy(policy("\"packages\""));
    client.send(&request).await;
    assert!(client.answer().await.head.contains("not_in_packages"));
}
