//! Models without native tool calls.

use std::sync::Arc;

use model::scripted::{Fault, ScriptedAnswer};
use model::{Dialect, Message, Model, Part, Settings, StopReason, ToolChoice, ToolMode, ToolResult};
use serde_json::json;

use crate::support::{ask, request, server, settings, sorted};

async fn prompted(server: &model::scripted::ScriptedServer) -> Arc<dyn Model> {
    let settings = Settings { tools: ToolMode::Prompted, ..settings(server, Dialect::OpenAi) };
    model::connect(&settings).await.unwrap()
}

const CALL: &str = r#"{"thought": "look", "tool": "read_file", "tool_input": {"path": "a.rs"}}"#;

#[tokio::test]
async fn prompted_requests_describe_tools_and_use_a_schema() {
    let server = server(vec![ScriptedAnswer::text(CALL), ScriptedAnswer::text(r#"{"reply": "done"}"#)]).await;
    let model = prompted(&server).await;
    assert!(!model.limits().native_tools);
    let (_, answer) = ask(model.as_ref(), request("hello")).await.unwrap();
    let calls: Vec<_> = answer.tool_calls().collect();
    assert_eq!((calls[0].name.as_str(), &calls[0].arguments), ("read_file", &json!({"path": "a.rs"})));
    assert_eq!((answer.text().as_str(), answer.stop_reason.clone()), ("look", StopReason::ToolCalls));

    let mut next = request("hello");
    let results = vec![ToolResult::text(calls[0], "fn main() {}")];
    next.say(Message::assistant(answer.parts.clone()));
    next.say(Message::results(results));
    let (_, answer) = ask(model.as_ref(), next).await.unwrap();
    assert_eq!(answer.parts, [Part::Text("done".into())]);

    let requests = server.requests();
    assert!(requests[0].body.get("tools").is_none());
    insta::assert_json_snapshot!("prompted_request", sorted(&requests[1].body));
}

#[tokio::test]
async fn an_unusable_answer_is_requested_again_and_both_are_billed() {
    let usage = Some(model::Usage { input: 100, output: 10, ..model::Usage::default() });
    let broken =
        ScriptedAnswer { usage, ..ScriptedAnswer::text(r#"{"tool": "read_file", "tool_input": {"path": "#) };
    let server = server(vec![broken, ScriptedAnswer { usage, ..ScriptedAnswer::text(CALL) }]).await;
    let (_, answer) = ask(prompted(&server).await.as_ref(), request("hello")).await.unwrap();
    assert_eq!(answer.tool_calls().count(), 1);
    assert_eq!((answer.usage.input, answer.usage.output), (200, 20));
    let messages = server.requests()[1].body["messages"].clone();
    let repair = messages.as_array().unwrap().last().unwrap()["content"].as_str().unwrap().to_owned();
    assert!(repair.contains("not a complete JSON object"), "{repair}");
}

#[tokio::test]
async fn an_answer_that_stays_unusable_is_returned_as_text() {
    let broken = || ScriptedAnswer::text("I use {braces} badly");
    let server = server(vec![broken(), broken(), broken()]).await;
    let (_, answer) = ask(prompted(&server).await.as_ref(), request("hello")).await.unwrap();
    assert_eq!(answer.parts, [Part::Text("I use {braces} badly".into())]);
    assert_eq!(server.remaining(), 0);
}

#[tokio::test]
async fn a_server_without_schema_support_gets_plain_prompts() {
    let refusal = Fault::Status { status: 400, message: "response_format is not supported".into() };
    let fenced =
        ScriptedAnswer::text("Sure:\n```json\n{'tool': 'read_file', 'tool_input': {'path': 'a.rs'},}\n```");
    let server = server(vec![ScriptedAnswer::fault(refusal), fenced.clone(), fenced]).await;
    let model = prompted(&server).await;
    for _ in 0..2 {
        let (_, answer) = ask(model.as_ref(), request("hello")).await.unwrap();
        assert_eq!(answer.tool_calls().next().unwrap().arguments, json!({"path": "a.rs"}));
    }
    let with_schema: Vec<bool> =
        server.requests().iter().map(|request| request.body.get("response_format").is_some()).collect();
    assert_eq!(with_schema, [true, false, false]);
}

#[tokio::test]
async fn a_server_that_rejects_native_calls_is_switched_to_prompted_calls() {
    let message =
        "\"auto\" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set".into();
    let server = server(vec![
        ScriptedAnswer::fault(Fault::Status { status: 400, message }),
        ScriptedAnswer::text(CALL),
    ])
    .await;
    let model = model::connect(&settings(&server, Dialect::OpenAi)).await.unwrap();
    assert!(model.limits().native_tools);
    let (_, answer) = ask(model.as_ref(), request("hello")).await.unwrap();
    assert_eq!(answer.tool_calls().count(), 1);
    assert!(!model.limits().native_tools);
}

#[tokio::test]
async fn the_schema_allows_exactly_the_permitted_calls() {
    for (choice, allowed) in [
        (ToolChoice::Required, vec!["read_file", "list_files"]),
        (ToolChoice::Tool("list_files".into()), vec!["list_files"]),
        (ToolChoice::Never, vec![]),
    ] {
        let server = server(vec![ScriptedAnswer::text(CALL)]).await;
        let mut asked = request("hello");
        asked.tool_choice = choice.clone();
        ask(prompted(&server).await.as_ref(), asked).await.unwrap();
        let schema = server.requests()[0].body["response_format"]["json_schema"]["schema"].to_string();
        for name in ["read_file", "list_files"] {
            assert_eq!(schema.contains(name), allowed.contains(&name), "{choice:?} {schema}");
        }
        assert_eq!(schema.contains("reply"), choice == ToolChoice::Never, "{schema}");
    }
}

/// The calls of an answer.
fn calls_of(answer: &model::Answer) -> Vec<(&str, serde_json::Value)> {
    answer.tool_calls().map(|call| (call.name.as_str(), call.arguments.clone())).collect()
}

/// Whether each request was constrained by a schema, as prompted requests are.
fn had_schema(server: &model::scripted::ScriptedServer) -> Vec<bool> {
    server.requests().iter().map(|request| request.body.get("response_format").is_some()).collect()
}

#[tokio::test]
async fn repeated_text_calls_are_executed_and_switch_to_prompted_calls() {
    let written = "```json\n{\"name\": \"read_file\", \"arguments\": {\"path\": \"a.rs\"}}\n```\n\
                   ```json\n{\"name\": \"list_files\", \"arguments\": {\"path\": \"b\"}}\n```";
    let other = "<think>hm</think>\n<tool_call>\n{\"name\": \"read_file\", \"arguments\": {\"path\": \"a.rs\"}}\n</tool_call>";
    let answers = [written, other, written, CALL].map(ScriptedAnswer::text);
    let server = server(answers.to_vec()).await;
    let model = model::connect(&settings(&server, Dialect::OpenAi)).await.unwrap();
    for _ in 0..4 {
        let (_, answer) = ask(model.as_ref(), request("hello")).await.unwrap();
        assert_eq!(calls_of(&answer), [("read_file", json!({"path": "a.rs"}))]);
        assert_eq!(answer.stop_reason, StopReason::ToolCalls);
    }
    assert_eq!(had_schema(&server), [false, false, false, true]);
}

#[tokio::test]
async fn a_quoted_call_is_not_executed() {
    let call = r#"{"tool": "read_file", "tool_input": {"path": "a.rs"}}"#;
    let quotes = [
        format!("The page says {call} which I will not do."),
        format!("The page says:\n```json\n{call}\n```"),
        format!("{call}\nThat is what the page wants."),
        "A struct looks like `struct A { name: String }` and {\"name\": \"Ada\", \"arguments\": {}} is data."
            .into(),
        r#"{"name": "Ada", "arguments": {}}"#.into(),
    ];
    let server = server(quotes.iter().map(|text| ScriptedAnswer::text(text)).collect()).await;
    let model = model::connect(&settings(&server, Dialect::OpenAi)).await.unwrap();
    for text in &quotes {
        let (_, answer) = ask(model.as_ref(), request("hello")).await.unwrap();
        assert_eq!((answer.text(), calls_of(&answer)), (text.clone(), Vec::new()));
    }
    assert_eq!(had_schema(&server), [false; 5]);
}

#[tokio::test]
async fn a_model_with_native_calls_is_never_switched_to_prompted_calls() {
    let made = ScriptedAnswer::calls(&[("list_files", json!({"path": "b"}))]);
    let mut answers = vec![made];
    answers.extend((0..6).map(|_| ScriptedAnswer::text(CALL)));
    let server = server(answers).await;
    let model = model::connect(&settings(&server, Dialect::OpenAi)).await.unwrap();
    for _ in 0..7 {
        let (_, answer) = ask(model.as_ref(), request("hello")).await.unwrap();
        assert_eq!(answer.tool_calls().count(), 1);
    }
    assert_eq!(had_schema(&server), [false; 7]);
}

#[tokio::test]
async fn native_calls_count_for_prompted_models() {
    let both = ScriptedAnswer {
        text: "I look.".into(),
        ..ScriptedAnswer::calls(&[("list_files", json!({"path": "b"}))])
    };
    let server = server(vec![both]).await;
    let (events, answer) = ask(prompted(&server).await.as_ref(), request("hello")).await.unwrap();
    assert_eq!(calls_of(&answer), [("list_files", json!({"path": "b"}))]);
    assert!(events.iter().any(|event| matches!(event, model::ModelEvent::ToolCall { .. })), "{events:?}");
}
