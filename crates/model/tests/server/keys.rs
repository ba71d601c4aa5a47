//! Keys go to their provider in one header, and nowhere else.

use model::scripted::{Fault, ScriptedAnswer};
use model::{Dialect, Secret, Settings};

use crate::support::{DIALECTS, KEY, ask, request, server, settings};

#[tokio::test]
async fn a_key_is_in_its_header_and_nowhere_else() {
    for dialect in DIALECTS {
        let server = server(vec![ScriptedAnswer::text("x")]).await;
        let settings = settings(&server, dialect);
        let model = model::connect(&settings).await.unwrap();
        let (_, answer) = ask(model.as_ref(), request("hello")).await.unwrap();
        let recorded = &server.requests()[0];
        let (header, value) = match dialect {
            Dialect::OpenAi | Dialect::Responses => ("authorization", format!("Bearer {KEY}")),
            Dialect::Anthropic => ("x-api-key", KEY.to_owned()),
            Dialect::Gemini => ("x-goog-api-key", KEY.to_owned()),
        };
        assert_eq!(recorded.header(header), Some(value.as_str()), "{dialect:?}");
        let others = recorded.headers.iter().filter(|(name, _)| name != header);
        assert!(others.into_iter().all(|(_, value)| !value.contains(KEY)), "{dialect:?}");
        assert!(!recorded.path.contains(KEY) && !recorded.body.to_string().contains(KEY), "{dialect:?}");
        assert!(!format!("{settings:?} {answer:?}").contains(KEY), "{dialect:?}");
    }
}

#[tokio::test]
async fn a_key_echoed_by_a_provider_is_redacted_in_errors() {
    for dialect in DIALECTS {
        let message = format!("Incorrect API key provided: {KEY}. Find it at example.org");
        for fault in
            [Fault::Status { status: 401, message: message.clone() }, Fault::Status { status: 500, message }]
        {
            let server = server(vec![ScriptedAnswer::fault(fault)]).await;
            let model = model::connect(&settings(&server, dialect)).await.unwrap();
            let error = ask(model.as_ref(), request("hello")).await.unwrap_err();
            let told = format!("{error} {error:?}");
            assert!(!told.contains(KEY) && told.contains("***"), "{dialect:?}: {told}");
        }
    }
}

#[tokio::test]
async fn the_key_of_the_first_model_is_not_sent_to_fallbacks() {
    let first = server(vec![ScriptedAnswer::fault(Fault::BadKey)]).await;
    let second = server(vec![ScriptedAnswer::text("x")]).await;
    let fallback = vec![second.base_url(Dialect::OpenAi)];
    let model = model::connect(&Settings { fallback, ..settings(&first, Dialect::Anthropic) }).await.unwrap();
    ask(model.as_ref(), request("hello")).await.unwrap();
    assert!(!format!("{:?}", second.requests()).contains(KEY));
}

#[test]
fn a_key_prints_as_stars() {
    let secret = Secret::new(" key-in-a-file\n");
    assert_eq!(format!("{secret} {secret:?}"), "*** ***");
}

#[tokio::test]
async fn a_key_with_a_line_break_is_rejected_without_printing_it() {
    let server = server(vec![]).await;
    let key = Some(Secret::new("two\nlines"));
    let model = model::connect(&Settings { key, ..settings(&server, Dialect::Anthropic) }).await.unwrap();
    let error = ask(model.as_ref(), request("hello")).await.unwrap_err().to_string();
    assert!(error.contains("key_file") && !error.contains("lines"), "{error}");
}
