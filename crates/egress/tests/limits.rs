//! Tests of a job's network limits and of approvals.

#![allow(clippy::unwrap_used, reason = "tests")]

mod support;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use egress::{Allowance, Answer, Approver, ProxySettings, Question, ReasonCode};
use support::{Setup, accept, listen, policy};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

fn with(allowance: Allowance) -> Setup {
    Setup::with(policy("\"open\""), ProxySettings { allowance, ..ProxySettings::default() }, 64)
}

#[tokio::test]
async fn connections_beyond_the_allowance_are_refused() {
    let (_listener, port) = listen().await;
    let mut setup = with(Allowance { connections: Some(1), ..Allowance::default() });
    setup.client().connect(format!("127.0.0.1:{port}")).await;
    setup.opened().await;
    let mut second = setup.client();
    second.send(format!("CONNECT 127.0.0.1:{port} HTTP/1.1\r\n\r\n")).await;
    let answer = second.answer().await;
    assert!(
        answer.head.starts_with("HTTP/1.1 403") && answer.body.contains("budget_exhausted"),
        "{}",
        answer.body
    );
}

#[tokio::test]
async fn a_tunnel_ends_when_the_bytes_are_used_up() {
    let (listener, port) = listen().await;
    let mut setup = with(Allowance { bytes: Some(100_000), ..Allowance::default() });
    let mut client = setup.client();
    client.connect(format!("127.0.0.1:{port}")).await;
    let mut server = accept(&listener).await;
    let sending = tokio::spawn(async move { while server.write_all(&[7; 10_000]).await.is_ok() {} });
    let received = client.rest().await.len();
    assert!((1..=400_000).contains(&received), "{received}");
    setup.opened().await;
    assert_eq!(setup.closed().await.code, Some(ReasonCode::BudgetExhausted));
    sending.await.unwrap();
}

// Uses the real clock: a paused one does not wait for data in the kernel and jumps to the next timeout.
#[tokio::test]
async fn bytes_are_throttled_to_the_rate_limit() {
    let (listener, port) = listen().await;
    let setup = with(Allowance { bytes_per_second: Some(100_000), ..Allowance::default() });
    let mut client = setup.client();
    client.connect(format!("127.0.0.1:{port}")).await;
    let mut server = accept(&listener).await;
    let started = tokio::time::Instant::now();
    server.write_all(&[7; 100_000]).await.unwrap();
    server.shutdown().await.unwrap();
    let mut received = vec![0; 100_000];
    client.stream.read_exact(&mut received).await.unwrap();
    // Only a lower bound, so a slow machine does not fail the test. Nothing waits after the last chunk.
    assert!(started.elapsed() >= Duration::from_millis(800), "{:?}", started.elapsed());
}

/// Returns scripted answers and records the questions.
struct Person {
    answers: Mutex<Vec<Answer>>,
    asked: Mutex<Vec<Question>>,
}

#[async_trait]
impl Approver for Person {
    async fn ask(&self, question: Question, _patience: Duration) -> Answer {
        self.asked.lock().unwrap().push(question);
        self.answers.lock().unwrap().pop().unwrap_or(Answer::Refuse)
    }
}

#[tokio::test]
async fn a_person_may_allow_once_and_for_the_rest() {
    let (_listener, port) = listen().await;
    let target = format!("127.0.0.1:{port}");
    let rule = target.parse().unwrap();
    // Taken from the end.
    let answers = Mutex::new(vec![Answer::Always(rule), Answer::Refuse, Answer::Once]);
    let person = Arc::new(Person { answers, asked: Mutex::default() });
    let mut setup = Setup::new(policy("\"off\""));
    setup.proxy = setup.proxy.with_approver(Arc::clone(&person) as Arc<dyn Approver>);
    setup.client().connect(&target).await;
    assert_eq!(setup.opened().await.rule, format!("approved once:{target}"));
    let mut refused = setup.client();
    refused.send(format!("CONNECT {target} HTTP/1.1\r\n\r\n")).await;
    assert!(refused.answer().await.head.starts_with("HTTP/1.1 403"));
    setup.client().connect(&target).await;
    setup.client().connect(&target).await;
    assert_eq!(person.asked.lock().unwrap().len(), 3, "the rule holds for the last one, nobody is asked");
    assert_eq!(person.asked.lock().unwrap()[0].rule.to_string(), target);
}

#[tokio::test]
async fn operator_only_refusals_are_not_sent_for_approval() {
    for mode in ["\"open\"", "\"off\"", "\"packages\"", r#"{"allow": ["example.org"]}"#] {
        let person = Arc::new(Person { answers: Mutex::default(), asked: Mutex::default() });
        let mut setup = Setup::new(support::strict_policy(mode));
        setup.proxy = setup.proxy.with_approver(Arc::clone(&person) as Arc<dyn Approver>);
        let mut client = setup.client();
        client
            .send("GET http://169.254.169.254/latest/meta-data/ HTTP/1.1\r\nHost: 169.254.169.254\r\n\r\n")
            .await;
        let answer = client.answer().await;
        assert!(answer.head.starts_with("HTTP/1.1 403"), "{mode}: {}", answer.head);
        assert!(answer.body.contains("allow_ranges"), "{mode}: {}", answer.body);
        assert!(person.asked.lock().unwrap().is_empty(), "{mode}");
    }
}

/// Allows one connection and records whether the permission is returned.
#[derive(Default)]
struct OneTimeApprover(Mutex<Vec<String>>);

#[async_trait]
impl Approver for OneTimeApprover {
    async fn ask(&self, _question: Question, _patience: Duration) -> Answer {
        Answer::Once
    }

    async fn give_back(&self, rule: &str) {
        self.0.lock().unwrap().push(rule.to_owned());
    }
}

#[tokio::test]
async fn unused_one_time_permission_is_returned() {
    let (listener, port) = listen().await;
    let mut setup = Setup::new(policy("\"off\""));
    let approver = Arc::new(OneTimeApprover::default());
    setup.proxy = setup.proxy.with_approver(Arc::clone(&approver) as Arc<dyn Approver>);
    let mut client = setup.client();
    client.connect(format!("127.0.0.1:{port}")).await;
    setup.opened().await;
    assert!(approver.0.lock().unwrap().is_empty(), "it was used");
    drop((listener, client));
    setup.closed().await;
    let mut client = setup.client();
    client.send(format!("CONNECT 127.0.0.1:{port} HTTP/1.1\r\n\r\n")).await;
    assert!(client.answer().await.head.starts_with("HTTP/1.1 502"));
    assert_eq!(*approver.0.lock().unwrap(), [format!("127.0.0.1:{port}")]);
}

#[tokio::test]
async fn repeated_refusals_of_one_client_do_not_fill_the_log() {
    let mut setup = Setup::with(policy("\"off\""), ProxySettings::default(), 1000);
    let mut client = setup.client();
    for _ in 0..110 {
        client.send("GET http://a.example/ HTTP/1.1\r\nHost: a.example\r\n\r\n").await;
        assert!(client.answer().await.body.contains("egress_off"));
    }
    setup.proxy.flush_refusals().await;
    let (mut told, mut counted) = (0, 0);
    while counted < 110 {
        let refused = setup.refused().await;
        assert!(refused.remedy.contains("a.example"), "{refused:?}");
        told += 1;
        counted += 1 + refused.repeated;
    }
    assert!(counted == 110 && told < 40, "{told} of {counted}");
}
