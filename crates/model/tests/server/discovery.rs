//! Queries of servers for their kind and models.

use model::Settings;
use model::scripted::{Fault, Script, ScriptedAnswer, ScriptedServer};
use model::{Dialect, Secret};

use crate::support::KEY;

#[tokio::test]
async fn a_server_named_by_url_reports_its_model_and_limits() {
    let script = Script { model: "tiny".into(), context_tokens: 4096, ..Script::of(vec![]) };
    let server = ScriptedServer::start(script).await.unwrap();
    let settings = Settings { name: Some(server.base_url(Dialect::OpenAi)), ..Settings::default() };
    let model = model::connect(&settings).await.unwrap();
    assert_eq!(model.name().as_str(), format!("{}#tiny", server.base_url(Dialect::OpenAi)));
    assert_eq!((model.limits().context_tokens, model.limits().output_tokens), (4096, 1024));
}

#[tokio::test]
async fn reachable_sources_are_listed_and_errors_contain_no_key() {
    let server = ScriptedServer::start(Script::of(vec![])).await.unwrap();
    let settings = Settings {
        name: Some("anthropic/claude-opus-5".into()),
        base_url: Some(server.base_url(Dialect::Anthropic)),
        key: Some(Secret::new(KEY)),
        fallback: vec!["http://127.0.0.1:9/v1".into()],
        local: false,
        ..Settings::default()
    };
    let sources = model::list(&settings).await.unwrap();
    assert_eq!(sources.len(), 2);
    assert_eq!(
        (sources[0].kind.as_str(), sources[0].models[0].name.as_str()),
        ("anthropic", "anthropic/scripted")
    );
    assert!(sources[1].trouble.as_ref().unwrap().contains("cannot reach"), "{sources:?}");
    assert!(!format!("{sources:?}").contains(KEY));
}

#[tokio::test]
async fn a_test_of_a_model_says_whether_it_answers() {
    let answers = vec![ScriptedAnswer::text("ok"), ScriptedAnswer::fault(Fault::BadKey)];
    let server = ScriptedServer::start(Script::of(answers)).await.unwrap();
    let settings = Settings {
        fallback: vec!["http://127.0.0.1:9/v1".into()],
        ..server.settings(Dialect::Anthropic, KEY)
    };
    let good = model::test_model(&settings).await;
    assert!(good.ok && good.code.is_none() && good.detail.ends_with(" answers"), "{good:?}");
    let bad = model::test_model(&settings).await;
    assert_eq!((bad.ok, bad.code.as_deref(), bad.model.as_ref()), (false, Some("model_auth"), None));
    assert!(!bad.detail.contains(KEY), "{bad:?}");
    let gone = Settings { base_url: Some("http://127.0.0.1:9/v1".into()), ..settings };
    assert_eq!(model::test_model(&gone).await.code.as_deref(), Some("model_unreachable"));
    let requests = server.requests();
    assert_eq!((requests.len(), requests[0].header("x-api-key")), (2, Some(KEY)));
}

#[test]
fn a_server_on_its_own_thread_serves_callers_without_a_runtime() {
    use std::io::{Read, Write};
    let server = ScriptedServer::start_on_thread(Script::of(vec![])).unwrap();
    let mut stream = std::net::TcpStream::connect(server.address()).unwrap();
    stream.write_all(b"GET /v1/models HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    assert!(text.contains("\"scripted\""), "{text}");
}
