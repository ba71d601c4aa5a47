//! Tests of every kind of refusal: status, code, explanation, log.

mod support;

use egress::{ProxySettings, ReasonCode, Verdict};
use proptest::prelude::*;
use support::{Answer, Setup, listen, policy, strict_policy};
use tokio::io::AsyncWriteExt;

async fn ask(setup: &Setup, request: &str) -> Answer {
    let mut client = setup.client();
    client.send(request).await;
    client.answer().await
}

#[tokio::test]
async fn refusal_states_target_rule_and_remedy() {
    let list = r#"{"allow": ["example.org", "10.0.0.0/8"]}"#;
    for (mode, target, code, rule, hint) in [
        ("\"off\"", "example.org:443", "egress_off", "off", r#"{"allow": ["example.org"]}"#),
        (
            "\"packages\"",
            "example.org:443",
            "not_in_packages",
            "packages",
            r#"{"allow": ["packages", "example.org"]}"#,
        ),
        ("\"packages\"", "github.com:22", "port_not_allowed", "packages:github", r#""github.com:22""#),
        (list, "www.example.org:443", "not_in_list", "list", r#""10.0.0.0/8", "www.example.org"]"#),
        (list, "example.org:8443", "port_not_allowed", "example.org", r#""example.org:8443""#),
        (list, "10.1.2.3:443", "refused_range", "10.0.0.0/8", "operator"),
        ("\"open\"", "169.254.169.254:80", "refused_range", "169.254.0.0/16", "operator"),
        ("\"open\"", "[::ffff:169.254.169.254]:80", "refused_range", "169.254.0.0/16", "operator"),
        ("\"open\"", "[64:ff9b::a9fe:a9fe]:80", "refused_range", "169.254.0.0/16", "operator"),
        ("\"open\"", "[::1]:80", "refused_range", "::1", "operator"),
        ("\"open\"", "localhost:80", "refused_range", "", "operator"),
        ("\"open\"", "example.org:25", "port_not_allowed", "open", r#""example.org:25""#),
    ] {
        for request in [
            format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n"),
            format!("GET http://{target}/ HTTP/1.1\r\nHost: {target}\r\n\r\n"),
        ] {
            let mut setup = Setup::new(strict_policy(mode));
            let answer = ask(&setup, &request).await;
            let status_line = answer.head.lines().next().unwrap();
            assert!(
                status_line.starts_with("HTTP/1.1 403 ") && status_line.ends_with(&format!("({code})")),
                "{status_line}"
            );
            assert!(answer.head.contains(&format!("x-caisson-reason: {code}\r\n")), "{}", answer.head);
            let refused = setup.refused().await;
            let host = &refused.host;
            for part in [host.as_str(), &format!("reason: {code}"), &format!("rule: {rule}"), hint] {
                assert!(answer.body.contains(part), "{part} is not in {}", answer.body);
            }
            assert_eq!(refused.verdict, Verdict::Refused);
            assert_eq!(refused.code.map(ReasonCode::as_str), Some(code));
            assert!(rule.is_empty() || refused.rule == rule, "{}", refused.rule);
            assert!(answer.body.contains(&refused.reason));
        }
    }
}

#[tokio::test]
async fn failures_and_refusals_have_different_codes() {
    let (listener, port) = listen().await;
    drop(listener);
    for (target, status, code) in [
        (format!("127.0.0.1:{port}"), "502", ReasonCode::ConnectFailed),
        ("nothing.invalid:443".into(), "502", ReasonCode::ResolveFailed),
    ] {
        let mut setup = Setup::new(policy("\"open\""));
        let answer = ask(&setup, &format!("CONNECT {target} HTTP/1.1\r\n\r\n")).await;
        assert!(answer.head.starts_with(&format!("HTTP/1.1 {status}")), "{}", answer.head);
        let refused = setup.refused().await;
        assert_eq!(
            (refused.code, refused.verdict, refused.rule.as_str()),
            (Some(code), Verdict::Failed, "open")
        );
        assert_eq!(refused.address, None);
    }
}

#[tokio::test]
async fn a_request_that_no_proxy_can_serve_is_refused_and_logged() {
    let long = "a".repeat(10_000);
    for request in [
        "GET / HTTP/1.1\r\nHost: example.org\r\n\r\n".to_owned(),
        "GET https://example.org/ HTTP/1.1\r\n\r\n".into(),
        "GET ftp://example.org/ HTTP/1.1\r\n\r\n".into(),
        "GET http://example.org:99999/ HTTP/1.1\r\n\r\n".into(),
        "CONNECT example.org HTTP/1.1\r\n\r\n".into(),
        "CONNECT 2130706433:80 HTTP/1.1\r\n\r\n".into(),
        "CONNECT 0x7f.1:80 HTTP/1.1\r\n\r\n".into(),
        format!("CONNECT {long}:443 HTTP/1.1\r\n\r\n"),
        format!("GET http://{long}/ HTTP/1.1\r\n\r\n"),
    ] {
        let mut setup = Setup::new(policy("\"open\""));
        let answer = ask(&setup, &request).await;
        assert!(answer.head.starts_with("HTTP/1.1 400"), "{request:.60} {}", answer.head);
        assert!(
            answer.head.contains("x-caisson-reason: bad_request") && answer.head.len() < 1000,
            "{}",
            answer.head
        );
        assert_eq!(setup.refused().await.code, Some(ReasonCode::BadRequest));
    }
}

#[tokio::test]
async fn a_head_that_is_too_large_ends_the_connection_and_is_logged() {
    let mut setup = Setup::new(policy("\"open\""));
    let mut client = setup.client();
    let head = format!("GET http://example.org/ HTTP/1.1\r\nX: {}\r\n\r\n", "a".repeat(100_000));
    // The proxy stops reading before the end; only its response matters.
    let _ = client.stream.write_all(head.as_bytes()).await;
    assert!(client.head().await.starts_with("HTTP/1.1 431"));
    assert_eq!(setup.refused().await.code, Some(ReasonCode::BadRequest));
}

#[tokio::test(start_paused = true)]
async fn slow_request_head_times_out() {
    let mut setup = Setup::new(policy("\"open\""));
    let mut client = setup.client();
    client.send("GET http://example.org/ HTTP/1.1\r\nX-Slow").await;
    let started = tokio::time::Instant::now();
    assert_eq!(client.rest().await, b"");
    assert!(started.elapsed() >= ProxySettings::default().header_timeout);
    assert_eq!(setup.refused().await.code, Some(ReasonCode::Timeout));
}

#[tokio::test(start_paused = true)]
async fn end_of_an_idle_connection_is_not_logged_as_a_refusal() {
    let mut setup = Setup::new(policy("\"off\""));
    let mut client = setup.client();
    for _ in 0..2 {
        client.send("GET http://example.org/ HTTP/1.1\r\nHost: example.org\r\n\r\n").await;
        assert!(client.answer().await.head.starts_with("HTTP/1.1 403"));
        assert_eq!(setup.refused().await.code, Some(ReasonCode::EgressOff));
    }
    assert_eq!(client.rest().await, b"");
    client.served.await.unwrap();
    assert!(setup.events.try_recv().is_err(), "waiting for a next request was logged");
}

#[tokio::test]
async fn without_a_log_nothing_passes() {
    let (listener, port) = listen().await;
    let mut setup = Setup::new(support::allow(format!("127.0.0.1:{port}")));
    setup.events.close();
    let answer = ask(&setup, &format!("CONNECT 127.0.0.1:{port} HTTP/1.1\r\n\r\n")).await;
    assert!(
        answer.head.starts_with("HTTP/1.1 503") && answer.body.contains("reason: ending"),
        "{}",
        answer.head
    );
    drop(listener);
}

#[tokio::test]
async fn connections_far_beyond_the_limit_are_dropped_unread() {
    let settings = ProxySettings { connections: 1, ..ProxySettings::default() };
    let setup = Setup::with(policy("\"open\""), settings, 64);
    let waiting = [setup.client(), setup.client()];
    // Both must hold a permit before the third connects.
    tokio::task::yield_now().await;
    let mut third = setup.client();
    assert_eq!(third.rest().await, b"");
    drop(waiting);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn arbitrary_sandbox_bytes_do_not_break_the_proxy(
        bytes in proptest::collection::vec(any::<u8>(), 0..300),
        line in "(GET|CONNECT|POST) [ -~]{0,40} HTTP/1\\.[01]\r\n([A-Za-z-]{1,20}: [ -~]{0,20}\r\n){0,3}\r\n",
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            for input in [&bytes[..], line.as_bytes()] {
                let setup = Setup::new(policy("\"off\""));
                let mut client = setup.client();
                let _ = client.stream.write_all(input).await;
                client.stream.shutdown().await.unwrap();
                let answer = client.rest().await;
                client.served.await.unwrap();
                // A first byte of 5 is SOCKS5, and the response is SOCKS5 too.
                let expected: &[u8] = if input.first() == Some(&5) { &[5] } else { b"HTTP/1." };
                assert!(answer.is_empty() || answer.starts_with(expected), "{answer:?}");
            }
        });
    }
}

#[tokio::test]
async fn duplicate_unique_header_is_refused_by_name() {
    for (name, value) in
        [("host", "a.example"), ("transfer-encoding", "chunked"), ("content-encoding", "gzip")]
    {
        for line in ["POST http://127.0.0.1:9/ HTTP/1.1", "CONNECT 127.0.0.1:9 HTTP/1.1"] {
            let mut setup = Setup::new(policy("\"open\""));
            let answer = ask(&setup, &format!("{line}\r\n{name}: {value}\r\n{name}: {value}\r\n\r\n")).await;
            assert!(answer.head.starts_with("HTTP/1.1 400"), "{line} {name}: {}", answer.head);
            assert!(
                answer.body.contains("duplicate_header") && answer.body.contains(name),
                "{}",
                answer.body
            );
            assert_eq!(setup.refused().await.code, Some(ReasonCode::DuplicateHeader));
        }
    }
    // Two different lengths make the request invalid.
    let mut setup = Setup::new(policy("\"open\""));
    let mut client = setup.client();
    client
        .send(
            "POST http://127.0.0.1:9/ HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        )
        .await;
    assert!(client.head().await.starts_with("HTTP/1.1 400"));
    assert_eq!(setup.refused().await.code, Some(ReasonCode::BadRequest));
}
