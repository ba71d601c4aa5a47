//! Tests of connections to a host of a secret: which ones are allowed, and which rules apply inside TLS.

use std::sync::Arc;

use egress::{Answer, Approver, Question, ReasonCode};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::fixture::{open, scene};
use crate::support::read_head;

#[tokio::test]
async fn non_tls_client_of_a_secret_host_gets_an_error() {
    let mut scene = scene("localhost", open).await;
    let mut client = scene.setup.client();
    client.connect(format!("localhost:{}", scene.port)).await;
    client.send(scene.request("/", "X: y")).await;
    let answer = client.answer().await;
    assert!(answer.head.starts_with("HTTP/1.1 400") && answer.body.contains("use https"), "{}", answer.body);
    scene.setup.opened().await;
    assert_eq!(scene.setup.closed().await.code, Some(ReasonCode::BadRequest));
}

#[tokio::test]
async fn once_approved_connection_allows_its_requests() {
    for rule in ["\"off\"", "\"packages\"", r#"{"allow": ["else.example"]}"#] {
        let mut scene = scene("localhost", |_| rule.to_owned()).await;
        let yes = Arc::new(ApproveAll(std::sync::Mutex::default(), Answer::Once));
        scene.setup.proxy = scene.setup.proxy.with_approver(Arc::clone(&yes) as Arc<dyn Approver>);
        let (mut client, mut server) = tokio::join!(scene.client(), scene.server());
        client.write_all(scene.request("/", "X: y").as_bytes()).await.unwrap();
        read_head(&mut server).await;
        server.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").await.unwrap();
        server.flush().await.unwrap();
        assert!(read_head(&mut client).await.starts_with("HTTP/1.1 204"), "{rule}");
        assert_eq!(yes.0.lock().unwrap().len(), 1, "{rule}: asked once");
    }
}

#[tokio::test]
async fn server_connection_close_reaches_the_client() {
    let scene = scene("localhost", open).await;
    let request = scene.request("/", "X: y");
    let (mut client, mut server) = tokio::join!(scene.client(), scene.server());
    client.write_all(request.as_bytes()).await.unwrap();
    read_head(&mut server).await;
    server.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok").await.unwrap();
    let head = read_head(&mut client).await;
    assert!(head.contains("connection: close"), "{head}");
    let mut rest = Vec::new();
    client.read_to_end(&mut rest).await.unwrap();
    assert_eq!(rest, b"ok");
    // A server that closes an idle connection is noticed too.
    let (mut client, mut server) = tokio::join!(scene.client(), scene.server());
    client.write_all(request.as_bytes()).await.unwrap();
    read_head(&mut server).await;
    server.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await.unwrap();
    assert!(!read_head(&mut client).await.contains("connection: close"));
    server.shutdown().await.unwrap();
    drop(server);
    let mut rest = Vec::new();
    client.read_to_end(&mut rest).await.unwrap();
    assert_eq!(rest, b"ok");
}

#[tokio::test]
async fn a_certificate_that_does_not_match_is_refused_with_the_reason() {
    let mut scene = scene("other.example", open).await;
    let request = scene.request("/", &format!("Authorization: {}", scene.placeholder));
    let accepting = async {
        let stream = scene.listener.accept().await.unwrap().0;
        drop(scene.server.accept(stream).await);
    };
    let (mut client, ()) = tokio::join!(scene.client(), accepting);
    client.write_all(request.as_bytes()).await.unwrap();
    let head = read_head(&mut client).await;
    assert!(head.starts_with("HTTP/1.1 502") && head.contains("x-caisson-reason: bad_certificate"), "{head}");
    assert!(head.contains("its certificate is for another name"), "{head}");
    drop(client);
    scene.setup.opened().await;
    let refused = scene.setup.refused().await;
    assert_eq!(refused.code, Some(ReasonCode::BadCertificate));
    assert!(refused.remedy.contains("a valid certificate"), "{}", refused.remedy);
    assert_eq!(scene.setup.closed().await.code, Some(ReasonCode::BadCertificate));
}

#[tokio::test]
async fn method_and_path_rules_apply_inside_tls() {
    let rule = |port| {
        format!(r#"{{"allow": [{{"host": "localhost:{port}", "methods": ["GET"], "paths": ["/ok"]}}]}}"#)
    };
    let mut scene = scene("localhost", rule).await;
    let (mut client, _server) = tokio::join!(scene.client(), scene.server());
    client.write_all(scene.request("/secret", "X: y").as_bytes()).await.unwrap();
    let head = read_head(&mut client).await;
    assert!(head.starts_with("HTTP/1.1 403") && head.contains("request_not_allowed"), "{head}");
    scene.setup.opened().await;
    assert_eq!(scene.setup.refused().await.code, Some(ReasonCode::RequestNotAllowed));
}

/// Approves everything and records the questions.
struct ApproveAll(std::sync::Mutex<Vec<String>>, Answer);

#[async_trait::async_trait]
impl Approver for ApproveAll {
    async fn ask(&self, question: Question, _patience: std::time::Duration) -> Answer {
        self.0.lock().unwrap().push(question.rule.to_string());
        match &self.1 {
            Answer::Always(_) => Answer::Always(question.rule),
            other => other.clone(),
        }
    }
}

#[tokio::test]
async fn approved_request_allows_nothing_else() {
    for answer in [Answer::Once, Answer::Always("x.example".parse().unwrap())] {
        let rule = |port| format!(r#"{{"allow": [{{"host": "localhost:{port}", "paths": ["/ok"]}}]}}"#);
        let mut scene = scene("localhost", rule).await;
        let yes = Arc::new(ApproveAll(std::sync::Mutex::default(), answer.clone()));
        scene.setup.proxy = scene.setup.proxy.with_approver(Arc::clone(&yes) as Arc<dyn Approver>);
        let (mut client, mut server) = tokio::join!(scene.client(), scene.server());
        for path in ["/asked", "/asked", "/other"] {
            client.write_all(scene.request(path, "X: y").as_bytes()).await.unwrap();
            read_head(&mut server).await;
            server.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").await.unwrap();
            server.flush().await.unwrap();
            assert!(read_head(&mut client).await.starts_with("HTTP/1.1 204"), "{path}");
        }
        let place = format!("localhost:{}", scene.port);
        let (asked, other) = (format!("{place} [GET /asked]"), format!("{place} [GET /other]"));
        let told = yes.0.lock().unwrap().clone();
        if answer == Answer::Once {
            assert_eq!(told, [asked.clone(), asked.clone(), other]);
        } else {
            assert_eq!(
                told,
                [asked.clone(), other],
                "the rest of the job may ask the same again, and nothing else"
            );
        }
        drop((client, server));
        scene.setup.opened().await;
        scene.setup.closed().await;
        let by = if answer == Answer::Once { "approved once" } else { "approved" };
        assert_eq!(scene.setup.fetched[0].rule, format!("{by}:{asked}"));
    }
}

#[tokio::test]
async fn a_request_inside_that_names_another_host_is_refused() {
    let scene = scene("localhost", open).await;
    let (mut client, _server) = tokio::join!(scene.client(), scene.server());
    client.write_all(b"GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n").await.unwrap();
    let head = read_head(&mut client).await;
    assert!(head.starts_with("HTTP/1.1 400") && head.contains("evil.example"), "{head}");
}

#[tokio::test]
async fn request_with_two_hosts_is_refused_and_not_forwarded() {
    let mut scene = scene("localhost", open).await;
    for second in ["evil.example", "localhost"] {
        let (mut client, mut server) = tokio::join!(scene.client(), scene.server());
        let header = format!("Host: {second}\r\nAuthorization: Bearer {}", scene.placeholder);
        client.write_all(scene.request("/", &header).as_bytes()).await.unwrap();
        let head = read_head(&mut client).await;
        assert!(head.starts_with("HTTP/1.1 400") && head.contains("duplicate_header"), "{head}");
        drop(client);
        let mut seen = Vec::new();
        let _ = server.read_to_end(&mut seen).await;
        assert!(seen.is_empty(), "{}", String::from_utf8_lossy(&seen));
        scene.setup.opened().await;
        assert_eq!(scene.setup.refused().await.code, Some(ReasonCode::DuplicateHeader));
        scene.setup.closed().await;
    }
}

#[tokio::test]
async fn upstream_host_header_is_the_checked_host() {
    let scene = scene("localhost", open).await;
    let (mut client, mut server) = tokio::join!(scene.client(), scene.server());
    // Headers named in `Connection` are removed, but `Host` must not be.
    let request = "GET / HTTP/1.1\r\nHost: LOCALHOST.\r\nConnection: host, close\r\n\r\n";
    client.write_all(request.as_bytes()).await.unwrap();
    let seen = read_head(&mut server).await;
    assert!(seen.contains(&format!("host: localhost:{}\r\n", scene.port)), "{seen}");
}

#[tokio::test]
async fn handshake_for_another_server_gets_no_secret_value() {
    let mut scene = scene("localhost", open).await;
    let mut client = scene.client_for("evil.example").await;
    let header = format!("Authorization: Bearer {}", scene.placeholder);
    client.write_all(scene.request("/", &header).as_bytes()).await.unwrap();
    let head = read_head(&mut client).await;
    assert!(head.starts_with("HTTP/1.1 403") && head.contains("server_name_mismatch"), "{head}");
    drop(client);
    let mut seen = Vec::new();
    scene.listener.accept().await.unwrap().0.read_to_end(&mut seen).await.unwrap();
    assert!(seen.is_empty(), "not even a handshake");
    scene.setup.opened().await;
    assert_eq!(scene.setup.refused().await.code, Some(ReasonCode::ServerNameMismatch));
    assert_eq!(scene.setup.closed().await.code, Some(ReasonCode::ServerNameMismatch));
}
