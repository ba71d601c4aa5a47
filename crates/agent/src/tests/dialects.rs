//! Tests of the agent loop over HTTP: several turns in each dialect, checked against what the providers reject.

use model::Dialect;
use model::scripted::{Script, ScriptedAnswer, ScriptedCall, ScriptedServer};
use serde_json::{Value, json};

use super::test_host::TestHost;
use crate::{AgentSettings, RunOutcome};

const SIGNATURE: &str = "c2lnbmVkIGJ5IHRoZSBzY3JpcHQ=";

/// An answer that begins with reasoning. The provider assigns its own call ids.
fn thinking_answer(calls: &[(&str, &str, Value)]) -> ScriptedAnswer {
    let call = |(id, name, arguments): &(&str, &str, Value)| ScriptedCall {
        id: Some((*id).to_owned()),
        name: (*name).to_owned(),
        arguments: arguments.clone(),
        ..ScriptedCall::default()
    };
    ScriptedAnswer {
        reasoning: "I think.".into(),
        calls: calls.iter().map(call).collect(),
        ..ScriptedAnswer::default()
    }
}

/// What a request contains of earlier turns: call ids, the ids in results, and how many answers carry their
/// reasoning.
#[derive(Debug, Default, PartialEq)]
struct SentHistory {
    calls: Vec<String>,
    results: Vec<String>,
    thoughts: usize,
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn sent_history(dialect: Dialect, body: &Value) -> SentHistory {
    let mut sent = SentHistory::default();
    match dialect {
        Dialect::OpenAi => {
            for message in list(&body["messages"]) {
                sent.calls.extend(list(&message["tool_calls"]).map(|call| text(&call["id"])));
                sent.thoughts += usize::from(message["reasoning_content"] == "I think.");
                sent.results.extend(message["tool_call_id"].as_str().map(str::to_owned));
            }
        }
        Dialect::Responses => {
            for item in list(&body["input"]) {
                match item["type"].as_str() {
                    Some("function_call") => sent.calls.push(text(&item["call_id"])),
                    Some("function_call_output") => sent.results.push(text(&item["call_id"])),
                    Some("reasoning") => sent.thoughts += usize::from(item["encrypted_content"] == SIGNATURE),
                    _ => {}
                }
            }
        }
        Dialect::Anthropic => {
            for block in list(&body["messages"]).flat_map(|message| list(&message["content"])) {
                match block["type"].as_str() {
                    Some("tool_use") => sent.calls.push(text(&block["id"])),
                    Some("tool_result") => sent.results.push(text(&block["tool_use_id"])),
                    Some("thinking") => sent.thoughts += usize::from(block["signature"] == SIGNATURE),
                    _ => {}
                }
            }
        }
        Dialect::Gemini => {
            for part in list(&body["contents"]).flat_map(|content| list(&content["parts"])) {
                if let Some(call) = part.get("functionCall") {
                    sent.calls.push(text(&call["id"]));
                    sent.thoughts += usize::from(part["thoughtSignature"] == SIGNATURE);
                }
                sent.results.extend(part.get("functionResponse").map(|response| text(&response["id"])));
            }
        }
    }
    sent
}

#[tokio::test]
async fn every_dialect_sends_back_calls_results_and_reasoning() {
    for dialect in [Dialect::OpenAi, Dialect::Responses, Dialect::Anthropic, Dialect::Gemini] {
        let read = |path: &str| json!({"path": path});
        let script = Script::of(vec![
            thinking_answer(&[("fcA", "read_file", read("a.txt")), ("fcB", "read_file", read("b.txt"))]),
            thinking_answer(&[("fcC", "shell", json!({"command": "ls"}))]),
            thinking_answer(&[("fcD", "finish", json!({"summary": "all done"}))]),
        ]);
        let server = ScriptedServer::start(script).await.unwrap();
        let model = model::connect(&server.settings(dialect, "sk-test")).await.unwrap();
        let host = TestHost::with_task("look around");
        let mut agent = host.agent_of(model, AgentSettings::default(), crate::SummaryMode::Model);
        assert!(matches!(agent.run(&host).await.unwrap(), RunOutcome::Finished(_)), "{dialect:?}");
        let requests = server.requests();
        assert_eq!(requests.len(), 3, "{dialect:?}");
        let sent = sent_history(dialect, &requests[2].body);
        assert_eq!(sent.thoughts, 2, "{dialect:?}: {:#}", requests[2].body);
        assert_eq!((sent.calls.len(), &sent.calls), (3, &sent.results), "{dialect:?}");
        assert!(sent.calls.iter().all(|id| !id.is_empty()), "{dialect:?}: {sent:?}");
        if dialect == Dialect::Gemini {
            assert_eq!(sent.calls, ["fcA", "fcB", "fcC"], "the provider's own ids");
        }
    }
}
