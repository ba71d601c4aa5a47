//! Provider faults and their handling, with every API.

use std::time::Duration;

use model::scripted::{Fault, ScriptedAnswer, Times};
use model::{Dialect, ModelError, ModelEvent, Settings};

use crate::support::{DIALECTS, ask, request, server, settings};

/// The error that a fault causes, without retries.
async fn error_of(dialect: Dialect, fault: Fault, silence: Duration) -> ModelError {
    let server = server(vec![ScriptedAnswer { letters: Some(4), ..ScriptedAnswer::fault(fault) }]).await;
    let settings = Settings { silence_timeout: Some(silence), ..settings(&server, dialect) };
    let model = model::connect(&settings).await.unwrap();
    ask(model.as_ref(), request("hello")).await.unwrap_err()
}

#[tokio::test]
async fn each_fault_maps_to_its_error_in_every_dialect() {
    let long = Duration::from_secs(20);
    for dialect in DIALECTS {
        for (fault, silence, code) in [
            (Fault::RateLimited { retry_after_s: Some(3) }, long, "rate_limited"),
            (Fault::Status { status: 500, message: String::new() }, long, "model_server"),
            (Fault::Status { status: 529, message: "overloaded".into() }, long, "model_server"),
            (Fault::Status { status: 400, message: "tools: no".into() }, long, "model_rejected"),
            (Fault::Status { status: 404, message: "what?".into() }, long, "unknown_model"),
            (Fault::BadKey, long, "model_auth"),
            (Fault::Overflow, long, "context_overflow"),
            (Fault::Cut { after_events: None }, long, "model_cut"),
            (Fault::Cut { after_events: Some(0) }, long, "model_cut"),
            (Fault::MalformedEvent, long, "model_malformed"),
            (Fault::ErrorEvent, long, "model_server"),
            (Fault::Silence { milliseconds: 30_000 }, Duration::from_millis(300), "model_timeout"),
        ] {
            let error = error_of(dialect, fault.clone(), silence).await;
            assert_eq!(error.code(), code, "{dialect:?} {fault:?}: {error}");
            match error {
                ModelError::RateLimited { retry_after, .. } => {
                    assert_eq!(retry_after, Some(Duration::from_secs(3)))
                }
                ModelError::Overflow { requested, limit, .. } => {
                    assert_eq!((requested, limit), (Some(9000), Some(8192)), "{dialect:?}");
                }
                _ => {}
            }
        }
    }
}

#[tokio::test]
async fn a_retry_after_a_fault_is_announced_before_the_answer() {
    for dialect in DIALECTS {
        let fault = ScriptedAnswer::fault(Fault::Cut { after_events: Some(3) });
        let server = server(vec![fault, ScriptedAnswer::text("whole")]).await;
        let model = model::connect(&Settings { retries: 2, ..settings(&server, dialect) }).await.unwrap();
        let (events, answer) = ask(model.as_ref(), request("hello")).await.unwrap();
        assert_eq!(answer.text(), "whole");
        let restarted = events
            .iter()
            .position(|event| matches!(event, ModelEvent::Restarted { attempt: 2, .. }))
            .unwrap();
        let after: String = events[restarted..]
            .iter()
            .filter_map(|event| if let ModelEvent::Text(text) = event { Some(text.as_str()) } else { None })
            .collect();
        assert_eq!(after, "whole", "{dialect:?}");
        assert_eq!(server.requests().len(), 2);
        assert_eq!(server.requests()[0].body, server.requests()[1].body, "{dialect:?}");
    }
}

#[tokio::test]
async fn interrupted_attempts_are_counted_and_priced() {
    let fault = ScriptedAnswer {
        usage: Some(model::Usage { input: 1000, ..model::Usage::default() }),
        ..ScriptedAnswer::fault(Fault::Cut { after_events: None })
    };
    let whole = ScriptedAnswer {
        usage: Some(model::Usage { input: 1000, output: 10, ..model::Usage::default() }),
        ..ScriptedAnswer::text("whole")
    };
    let server = server(vec![fault, whole]).await;
    let model =
        model::connect(&Settings { retries: 2, ..settings(&server, Dialect::Anthropic) }).await.unwrap();
    let (_, answer) = ask(model.as_ref(), request("hello")).await.unwrap();
    assert_eq!((answer.usage.input, answer.lost.input, answer.lost.output), (1000, 1000, 1));
    assert_eq!(answer.cost.unwrap().nanodollars(), 2000 * 5000 + 11 * 25_000);
}

#[tokio::test]
async fn a_dropped_stream_closes_the_connection() {
    let slow = ScriptedAnswer {
        event_delay_ms: 50,
        letters: Some(1),
        times: Times(1),
        ..ScriptedAnswer::text(&"x".repeat(2000))
    };
    let server = server(vec![slow]).await;
    let model = model::connect(&settings(&server, Dialect::OpenAi)).await.unwrap();
    let mut stream = model.stream(request("hello").into()).await.unwrap();
    while let Some(event) = futures::StreamExt::next(&mut stream).await {
        if matches!(event.unwrap(), ModelEvent::Text(_)) {
            break;
        }
    }
    assert_eq!(server.remaining(), 0);
    drop(stream);
    // The server notices that the client disconnected and takes the answer back.
    while server.remaining() == 0 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn an_unreachable_address_is_reported_as_such() {
    let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let settings = Settings { name: Some(format!("http://{address}/v1")), ..Settings::default() };
    let error = model::connect(&settings).await.err().unwrap();
    assert_eq!(error.code(), "model_unreachable");
    assert!(error.is_retryable() && error.to_string().contains(&address.to_string()), "{error}");
}
