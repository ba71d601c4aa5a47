//! Hosts that a secret names: TLS ends in the proxy, placeholders become values, and nothing shows the value.

#![allow(clippy::unwrap_used, reason = "tests")]

mod support;

use std::sync::Arc;

use egress::{
    Allowance, Answer, Approver, Authority, EgressEvent, Hidden, Interception, ProxySettings, Question,
    ReasonCode, Secret, Secrets, Upstream,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use support::{Setup, listen, policy, read_head};
use tokio::io::{AsyncReadExt, AsyncWriteExt, BufReader, DuplexStream};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::server::TlsStream as ServerStream;
use tokio_rustls::{TlsAcceptor, TlsConnector};

const VALUE: &str = "canary-5f1e-value";

fn base64(text: &str) -> String {
    base64::Engine::encode(&base64::engine::general_purpose::STANDARD, text)
}

/// A proxy with one secret for `localhost`, and a server there with a certificate of its own.
struct Scene {
    setup: Setup,
    placeholder: String,
    /// Of a secret for another host.
    other_placeholder: String,
    authority: Arc<Authority>,
    listener: TcpListener,
    port: u16,
    server: TlsAcceptor,
}

async fn scene(names_of_the_certificate: &str, rule: impl Fn(u16) -> String) -> Scene {
    scene_with(names_of_the_certificate, rule, ProxySettings::default()).await
}

async fn scene_with(
    names_of_the_certificate: &str,
    rule: impl Fn(u16) -> String,
    settings: ProxySettings,
) -> Scene {
    let (listener, port) = listen().await;
    let made = rcgen::generate_simple_self_signed([names_of_the_certificate.to_owned()]).unwrap();
    let chain = vec![made.cert.der().clone()];
    let key = PrivateKeyDer::from_pem_slice(made.signing_key.serialize_pem().as_bytes()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .unwrap();
    let hosts = vec![format!("localhost:{port}").parse().unwrap()];
    let authority = Arc::new(Authority::generate("test", &hosts).unwrap());
    let secret = Secret::new("TOKEN", Secret::placeholder([9; 16]), Hidden::new(VALUE), hosts).unwrap();
    let elsewhere = vec!["other.example".parse().unwrap()];
    let other_placeholder = Secret::placeholder([8; 16]);
    let other =
        Secret::new("OTHER", other_placeholder.clone(), Hidden::new("another-canary"), elsewhere).unwrap();
    let secrets = Secrets::new(vec![secret, other]);
    let placeholder = secrets.environment()["TOKEN"].clone();
    let upstream = Upstream::load(&[made.cert.pem()]).unwrap();
    let mut setup = Setup::with(policy(&rule(port)), settings, 64);
    setup.proxy = setup.proxy.with_interception(Interception::new(secrets, Arc::clone(&authority), upstream));
    let server = TlsAcceptor::from(Arc::new(config));
    Scene { setup, placeholder, other_placeholder, authority, listener, port, server }
}

fn open(_port: u16) -> String {
    "\"open\"".to_owned()
}

impl Scene {
    /// A client that trusts the job's authority, inside a tunnel to the server.
    async fn client(&self) -> BufReader<tokio_rustls::client::TlsStream<BufReader<DuplexStream>>> {
        let mut client = self.setup.client();
        client.connect(format!("localhost:{}", self.port)).await;
        let mut roots = rustls::RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(self.authority.certificate().as_bytes()).unwrap()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let name = ServerName::try_from("localhost").unwrap();
        BufReader::new(TlsConnector::from(Arc::new(config)).connect(name, client.stream).await.unwrap())
    }

    async fn server(&self) -> BufReader<ServerStream<TcpStream>> {
        let stream = self.listener.accept().await.unwrap().0;
        BufReader::new(self.server.accept(stream).await.unwrap())
    }

    fn request(&self, path: &str, header: &str) -> String {
        format!("GET {path} HTTP/1.1\r\nHost: localhost:{}\r\n{header}\r\n\r\n", self.port)
    }
}

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
    // A server that echoes what it got.
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
async fn the_value_is_neither_in_the_status_line_nor_in_the_name_of_a_header_nor_behind_the_body() {
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
async fn a_change_of_the_protocol_tells_no_value_and_the_client_knows_its_words_again() {
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
    // What was asked for by this request is in the log, though it has no end.
    scene.setup.opened().await;
    drop((client, server));
    scene.setup.closed().await;
    assert_eq!(scene.setup.fetched[0].status, 101);
}

#[tokio::test]
async fn the_placeholder_in_a_name_is_refused_before_anybody_is_asked_for_the_name() {
    let mut scene = scene("localhost", open).await;
    let name = format!("{}.other.example", scene.other_placeholder);
    let mut client = scene.setup.client();
    client.send(format!("CONNECT {name}:443 HTTP/1.1\r\nHost: {name}\r\n\r\n")).await;
    let answer = client.answer().await;
    assert!(answer.head.starts_with("HTTP/1.1 403") && answer.body.contains("OTHER"), "{}", answer.body);
    assert_eq!(scene.setup.refused().await.code, Some(ReasonCode::SecretElsewhere));
    let mut client = scene.setup.client();
    let upper = name.to_uppercase();
    client.send(format!("GET http://{upper}/ HTTP/1.1\r\nHost: {upper}\r\n\r\n")).await;
    assert!(client.answer().await.body.contains("secret_elsewhere"));
    assert_eq!(scene.setup.refused().await.code, Some(ReasonCode::SecretElsewhere));
    let mut client = scene.setup.client();
    let mut asked = vec![5, 1, 0, 5, 1, 0, 3, u8::try_from(name.len()).unwrap()];
    asked.extend(name.as_bytes());
    asked.extend(443u16.to_be_bytes());
    client.send(asked).await;
    assert_eq!(scene.setup.refused().await.code, Some(ReasonCode::SecretElsewhere));
}

#[tokio::test]
async fn a_client_that_does_not_speak_tls_to_a_host_of_a_secret_is_told_so() {
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
async fn a_connection_to_a_host_of_a_secret_that_is_allowed_once_carries_its_requests() {
    for rule in ["\"off\"", "\"packages\"", r#"{"allow": ["else.example"]}"#] {
        let mut scene = scene("localhost", |_| rule.to_owned()).await;
        let yes = Arc::new(Yes(std::sync::Mutex::default(), Answer::Once));
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
async fn a_client_sees_that_the_server_answers_nothing_more_on_a_connection() {
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
    // One that closes a connection later, while nobody asks anything, is noticed too.
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
async fn methods_and_paths_of_a_rule_bind_inside_tls() {
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

/// Says yes, and keeps what it was asked.
struct Yes(std::sync::Mutex<Vec<String>>, Answer);

#[async_trait::async_trait]
impl Approver for Yes {
    async fn ask(&self, question: Question, _patience: std::time::Duration) -> Answer {
        self.0.lock().unwrap().push(question.rule.to_string());
        match &self.1 {
            Answer::Always(_) => Answer::Always(question.rule),
            other => other.clone(),
        }
    }
}

#[tokio::test]
async fn a_request_that_a_person_allows_opens_nothing_else() {
    for answer in [Answer::Once, Answer::Always("x.example".parse().unwrap())] {
        let rule = |port| format!(r#"{{"allow": [{{"host": "localhost:{port}", "paths": ["/ok"]}}]}}"#);
        let mut scene = scene("localhost", rule).await;
        let yes = Arc::new(Yes(std::sync::Mutex::default(), answer.clone()));
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
async fn the_placeholder_in_plain_http_is_refused_wherever_it_goes() {
    let mut scene = scene("localhost", open).await;
    for target in [format!("localhost:{}", scene.port), "127.0.0.1:9".to_owned()] {
        let mut client = scene.setup.client();
        let placeholder = &scene.placeholder;
        client
            .send(format!("GET http://{target}/ HTTP/1.1\r\nHost: x\r\nX-Token: {placeholder}\r\n\r\n"))
            .await;
        let answer = client.answer().await;
        assert!(answer.head.starts_with("HTTP/1.1 403"), "{}", answer.head);
        assert!(answer.body.contains("secret_elsewhere") && answer.body.contains("TOKEN"), "{}", answer.body);
        assert_eq!(scene.setup.refused().await.code, Some(ReasonCode::SecretElsewhere));
    }
}

#[tokio::test]
async fn the_placeholder_in_a_tunnel_to_another_host_breaks_the_tunnel() {
    let mut scene = scene("localhost", open).await;
    let (listener, port) = listen().await;
    let mut client = scene.setup.client();
    client.connect(format!("127.0.0.1:{port}")).await;
    let mut server = listener.accept().await.unwrap().0;
    // In two pieces, as a client that wants to hide it would.
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
    assert_eq!(scene.setup.closed().await.code, Some(ReasonCode::SecretElsewhere));
}

/// A WebSocket that stands: both ends.
async fn web_socket(
    scene: &Scene,
) -> (BufReader<tokio_rustls::client::TlsStream<BufReader<DuplexStream>>>, BufReader<ServerStream<TcpStream>>)
{
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

/// A frame of text as a server sends it.
fn frame(text: &str) -> Vec<u8> {
    let mut bytes = vec![0x81, u8::try_from(text.len()).unwrap()];
    bytes.extend(text.as_bytes());
    bytes
}

#[tokio::test]
async fn a_websocket_passes_with_the_value_covered_and_is_counted_to_its_end() {
    let mut scene = scene("localhost", open).await;
    let (mut client, mut server) = web_socket(&scene).await;
    // What ends like the start of the value comes at once, and the value itself is covered wherever the bytes are cut.
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
    assert_eq!(scene.setup.closed().await.code, Some(ReasonCode::BudgetUsedUp));
    sending.await.unwrap();
}

#[tokio::test]
async fn the_placeholder_in_the_body_of_a_plain_request_breaks_it_off() {
    let mut scene = scene("localhost", open).await;
    let (listener, port) = listen().await;
    let mut client = scene.setup.client();
    let placeholder = scene.placeholder.clone();
    let length = 6 + placeholder.len();
    let head =
        format!("POST http://127.0.0.1:{port}/ HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\n");
    // In two pieces, as a client that wants to hide it would.
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
    assert!(answer.body.contains("secret_elsewhere") && answer.body.contains("TOKEN"), "{}", answer.body);
    let mut rest = Vec::new();
    let _ = server.read_to_end(&mut rest).await;
    assert!(rest.is_empty(), "{rest:?}");
    scene.setup.opened().await;
    assert_eq!(scene.setup.closed().await.code, Some(ReasonCode::SecretElsewhere));
}

#[tokio::test]
async fn the_placeholder_of_another_host_in_a_body_inside_tls_breaks_the_request_off() {
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
    assert!(head.starts_with("HTTP/1.1 403") && head.contains("secret_elsewhere"), "{head}");
    let mut seen = Vec::new();
    let _ = server.read_to_end(&mut seen).await;
    assert!(!String::from_utf8_lossy(&seen).contains(&scene.other_placeholder));
    scene.setup.opened().await;
    assert_eq!(scene.setup.refused().await.code, Some(ReasonCode::SecretElsewhere));
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
