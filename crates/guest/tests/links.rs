//! Links: handshake, replacement by a newer link, garbage, ports, outgoing connections, relay.
// Clippy does not recognize the helper functions as part of the tests.
#![allow(clippy::unwrap_used, clippy::panic)]

mod support;

use std::os::fd::AsRawFd;
use std::process::Stdio;

use protocol::{
    CallStatus, Follow, GuestClient, GuestRequest, Link, LinkCredentials, LinkRefusal, ProtocolError, Reply,
    Request, Side, TerminalSize,
};
use support::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

#[tokio::test]
async fn newest_link_replaces_the_older_and_calls_continue() {
    let guest = TestGuest::start();
    let (first, welcome, _) = guest.connect().await;
    assert_eq!(welcome.boot_id.len(), 32);
    let mut call = shell("long", "read line; echo $line");
    call.keep_stdin_open = true;
    let mut follower = first.exec(call, Follow::Live).await.unwrap();
    follower.next().await.unwrap();
    let (second, ..) = guest.connect().await;
    first.link().closed().await;
    assert!(first.ping().await.is_err());
    assert!(matches!(second.call_status(key("long")).await.unwrap(), CallStatus::Running { .. }));
    let mut input = second.input(key("long")).await.unwrap();
    input.write(b"still here\n").await.unwrap();
    let (seen, _) = finish(&mut second.follow(key("long"), 0, Follow::Live).await.unwrap()).await;
    assert_eq!(seen.text(), "still here\n");
}

#[tokio::test]
async fn a_newer_owner_takes_the_guest_over_and_others_are_refused() {
    let guest = TestGuest::start();
    let open = async |secret: &str, generation| {
        GuestClient::connect(guest.dial().await, LinkCredentials::new(secret, generation)).await
    };
    let (first, ..) = open("secret", 1).await.unwrap();
    let refusal = open("guessed", 9).await.map(drop).unwrap_err();
    assert!(matches!(refusal, ProtocolError::LinkRefused(LinkRefusal::WrongSecret)), "{refusal}");
    first.ping().await.unwrap();
    let (second, ..) = open("secret", 2).await.unwrap();
    first.link().closed().await;
    let refusal = open("secret", 1).await.map(drop).unwrap_err();
    let ProtocolError::LinkRefused(LinkRefusal::OlderGeneration { newest: 2 }) = refusal else {
        panic!("{refusal}")
    };
    second.ping().await.unwrap();
}

#[tokio::test]
async fn link_without_handshake_is_closed_and_replaces_no_other() {
    let guest = TestGuest::start();
    let client = guest.client().await;
    let (rude, _incoming) = Link::start(guest.dial().await, Side::Host);
    let mut stream = rude.open().await.unwrap();
    stream.send(&Request::Ping).await.unwrap();
    assert!(matches!(stream.receive_message::<Reply>().await, Ok(Reply::Refused { .. })));
    rude.closed().await;
    client.ping().await.unwrap();
}

#[tokio::test]
async fn garbage_ends_only_its_own_link() {
    let guest = TestGuest::start();
    let client = guest.client().await;
    for seed in 0..20u8 {
        let mut raw = guest.dial().await;
        let garbage: Vec<u8> =
            (0..4096u32).map(|at| (at.wrapping_mul(31) as u8).wrapping_mul(seed ^ 0x5a)).collect();
        let _ = raw.write_all(&garbage).await;
        let mut rest = Vec::new();
        let _ = raw.read_to_end(&mut rest).await;
    }
    client.ping().await.unwrap();
    assert_eq!(run_shell(&client, "fine", "echo fine").await, "fine\n");
}

#[tokio::test]
async fn unknown_request_is_refused_only_on_its_stream() {
    let guest = TestGuest::start();
    let client = guest.client().await;
    let mut stream = client.link().open().await.unwrap();
    stream.send(&serde_json::json!({"request": "levitate"})).await.unwrap();
    let Reply::Refused { message } = stream.receive_message().await.unwrap() else { panic!("not refused") };
    assert!(message.contains("levitate"), "{message}");
    client.ping().await.unwrap();
}

#[tokio::test]
async fn a_port_in_the_sandbox_is_a_stream_with_two_halves() {
    let guest = TestGuest::start();
    let client = guest.client().await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let server = tokio::spawn(async move {
        let (mut connection, _) = listener.accept().await.unwrap();
        let mut request = Vec::new();
        connection.read_to_end(&mut request).await.unwrap();
        connection.write_all(&request.repeat(2)).await.unwrap();
    });
    let mut stream = client.connect_port(port).await.unwrap();
    let sent = vec![7u8; 300_000];
    stream.write_all(&sent).await.unwrap();
    stream.shutdown().await.unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.unwrap();
    assert_eq!(answer.len(), 600_000);
    server.await.unwrap();
    let Err(ProtocolError::Refused(message)) = client.connect_port(port).await.map(drop) else {
        panic!("connected")
    };
    assert!(message.contains("nothing listens"), "{message}");
}

#[tokio::test]
async fn a_port_that_listens_on_ipv6_alone_is_found() {
    let guest = TestGuest::start();
    let client = guest.client().await;
    let listener = TcpListener::bind("[::1]:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let mut stream = client.connect_port(port).await.unwrap();
    let (mut connection, _) = listener.accept().await.unwrap();
    connection.write_all(b"six").await.unwrap();
    drop(connection);
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert_eq!(answer, "six");
}

#[tokio::test]
async fn outgoing_connections_wait_for_a_link_and_use_the_newest() {
    let egress_listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = egress_listener.local_addr().unwrap().port();
    // The guest inherits the listener: a port that is free now may be taken by another process a moment later.
    rustix::io::fcntl_setfd(&egress_listener, rustix::io::FdFlags::empty()).unwrap();
    let guest = TestGuest::start_with(&["--egress-fd", &egress_listener.as_raw_fd().to_string()]);
    drop(egress_listener);
    drop(guest.dial().await);
    // There is no link yet, so this connection waits.
    let mut early = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    early.write_all(b"early").await.unwrap();
    let (client, _, mut incoming) = guest.connect().await;
    let mut stream = incoming.next().await.unwrap();
    assert_eq!(stream.receive_message::<GuestRequest>().await.unwrap(), GuestRequest::Egress);
    let mut raw = stream.into_raw();
    let mut request = [0; 5];
    raw.read_exact(&mut request).await.unwrap();
    assert_eq!(&request, b"early");
    assert_eq!(client.stats().await.unwrap().egress_connections, 1);
    raw.write_all(b"answer").await.unwrap();
    raw.shutdown().await.unwrap();
    let mut answer = String::new();
    early.read_to_string(&mut answer).await.unwrap();
    assert_eq!(answer, "answer");
}

fn pass_on(from: &mut impl std::io::Read, to: &mut impl std::io::Write) {
    let mut buffer = [0; 4096];
    while let Ok(count) = from.read(&mut buffer) {
        if count == 0 || to.write_all(&buffer[..count]).and_then(|()| to.flush()).is_err() {
            return;
        }
    }
}

#[tokio::test]
async fn a_link_can_be_relayed_over_standard_input_and_output() {
    let guest = TestGuest::start();
    drop(guest.dial().await);
    let mut relay = std::process::Command::new(env!("CARGO_BIN_EXE_caisson-guest"))
        .args(["relay", "--socket", guest.socket().to_str().unwrap()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let (ours, theirs) = tokio::net::UnixStream::pair().unwrap();
    let theirs = theirs.into_std().unwrap();
    theirs.set_nonblocking(false).unwrap();
    let mut to_relay = relay.stdin.take().unwrap();
    let mut from_relay = relay.stdout.take().unwrap();
    let mut reader = theirs.try_clone().unwrap();
    let mut writer = theirs;
    std::thread::spawn(move || pass_on(&mut reader, &mut to_relay));
    std::thread::spawn(move || pass_on(&mut from_relay, &mut writer));
    let (client, ..) = GuestClient::connect(ours, LinkCredentials::new("test", 1)).await.unwrap();
    assert_eq!(run_shell(&client, "relayed", "echo hello").await, "hello\n");
    relay.kill().unwrap();
    relay.wait().unwrap();
}

#[tokio::test]
async fn stats_are_reported() {
    let guest = TestGuest::start();
    let client = guest.client().await;
    let stats = client.stats().await.unwrap();
    assert!(
        stats.processes > 0 && stats.disk_free_bytes > 0 && stats.disk_total_bytes > stats.disk_free_bytes
    );
    assert!(client.resize(key("none"), TerminalSize { rows: 1, columns: 1 }).await.is_err());
}
