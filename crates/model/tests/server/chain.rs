//! Fallbacks: which model is used if the first one fails.

use model::scripted::{Fault, ScriptedAnswer};
use model::{Dialect, ModelEvent, Settings};

use crate::support::{ask, request, server, settings};

#[tokio::test]
async fn a_fallback_answers_if_the_first_model_fails() {
    for fault in [
        Fault::BadKey,
        Fault::Status { status: 503, message: String::new() },
        Fault::RateLimited { retry_after_s: Some(4000) },
    ] {
        let first = server(vec![ScriptedAnswer::fault(fault)]).await;
        let second = server(vec![ScriptedAnswer::text("from the second")]).await;
        let fallback = vec![format!("{}#second", second.base_url(Dialect::OpenAi))];
        let settings = Settings { fallback, ..settings(&first, Dialect::Anthropic) };
        let model = model::connect(&settings).await.unwrap();
        let (events, answer) = ask(model.as_ref(), request("hello")).await.unwrap();
        assert_eq!(answer.text(), "from the second");
        assert!(answer.model.as_str().ends_with("#second"), "{}", answer.model);
        assert!(matches!(&events[0], ModelEvent::Restarted { model, .. } if *model == answer.model));
    }
}

#[tokio::test]
async fn a_failed_model_is_asked_last_for_a_while() {
    let first = server(vec![ScriptedAnswer::fault(Fault::BadKey), ScriptedAnswer::text("first")]).await;
    let second = server(vec![ScriptedAnswer::text("one"), ScriptedAnswer::text("two")]).await;
    let fallback = vec![format!("{}#second", second.base_url(Dialect::OpenAi))];
    let model = model::connect(&Settings { fallback, ..settings(&first, Dialect::Anthropic) }).await.unwrap();
    for expected in ["one", "two"] {
        assert_eq!(ask(model.as_ref(), request("hello")).await.unwrap().1.text(), expected);
    }
    assert_eq!(first.requests().len(), 1);
}

#[tokio::test]
async fn a_context_overflow_is_not_retried_with_a_fallback() {
    let first = server(vec![ScriptedAnswer::fault(Fault::Overflow)]).await;
    let second = server(vec![ScriptedAnswer::text("never")]).await;
    let fallback = vec![format!("{}#second", second.base_url(Dialect::OpenAi))];
    let model = model::connect(&Settings { fallback, ..settings(&first, Dialect::Anthropic) }).await.unwrap();
    assert_eq!(ask(model.as_ref(), request("hello")).await.unwrap_err().code(), "context_overflow");
    assert!(second.requests().is_empty());
}

#[tokio::test]
async fn an_unreachable_model_is_skipped() {
    let second = server(vec![ScriptedAnswer::text("here")]).await;
    let settings = Settings {
        name: Some("http://127.0.0.1:9/v1".into()),
        fallback: vec![second.base_url(Dialect::OpenAi)],
        ..Settings::default()
    };
    let model = model::connect(&settings).await.unwrap();
    assert_eq!(ask(model.as_ref(), request("hello")).await.unwrap().1.text(), "here");
}

#[tokio::test]
async fn the_retryable_of_two_errors_is_returned() {
    let first =
        server(vec![ScriptedAnswer::fault(Fault::Status { status: 500, message: String::new() })]).await;
    let second = server(vec![ScriptedAnswer::fault(Fault::BadKey)]).await;
    let fallback = vec![second.base_url(Dialect::OpenAi)];
    let model = model::connect(&Settings { fallback, ..settings(&first, Dialect::Gemini) }).await.unwrap();
    assert_eq!(ask(model.as_ref(), request("hello")).await.unwrap_err().code(), "model_server");
}
