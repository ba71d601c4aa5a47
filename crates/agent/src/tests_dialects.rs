//! Tests of the agent loop over HTTP: several turns in each dialect, checked against what the providers reject.

use model::Dialect;
use model::scripted::{Script, ScriptedAnswer, ScriptedCall, ScriptedServer};
use serde_json::{Value, json};

use crate::testing::TestHost;
use crate::{AgentSettings, Ending};

const SIGNATURE: &str = "c2lnbmVkIGJ5IHRoZSBzY3JpcHQ=";

/// An answer that begins with reasoning. The provider assigns its own call ids.
fn thinks(calls: &[(&str, &str, Value)]) -> ScriptedAnswer {
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
struct Told {
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

fn told(dialect: Dialect, body: &Value) -> Told {
    let mut told = Told::default();
    match dialect {
        Dialect::OpenAi => {
            for message in list(&body["messages"]) {
                told.calls.extend(list(&message["tool_calls"]).map(|call| text(&call["id"])));
                told.thoughts += usize::from(message["reasoning_content"] == "I think.");
                told.results.extend(message["tool_call_id"].as_str().map(str::to_owned));
            }
        }
        Dialect::Responses => {
            for item in list(&body["input"]) {
                match item["type"].as_str() {
                    Some("function_call") => told.calls.push(text(&item["call_id"])),
                    Some("function_call_output") => told.results.push(text(&item["call_id"])),
                    Some("reasoning") => told.thoughts += usize::from(item["encrypted_content"] == SIGNATURE),
                    _ => {}
                }
            }
        }
        Dialect::Anthropic => {
            for block in list(&body["messages"]).flat_map(|message| list(&message["content"])) {
                match block["type"].as_str() {
                    Some("tool_use") => told.calls.push(text(&block["id"])),
                    Some("tool_result") => told.results.push(text(&block["tool_use_id"])),
                    Some("thinking") => told.thoughts += usize::from(block["signature"] == SIGNATURE),
                    _ => {}
                }
            }
        }
        Dialect::Gemini => {
            for part in list(&body["contents"]).flat_map(|content| list(&content["parts"])) {
                if let Some(call) = part.get("functionCall") {
                    told.calls.push(text(&call["id"]));
                    told.thoughts += usize::from(part["thoughtSignature"] == SIGNATURE);
                }
                told.results.extend(part.get("functionResponse").map(|response| text(&response["id"])));
            }
        }
    }
    told
}

#[tokio::test]
async fn calls_results_and_thoughts_of_all_turns_go_back_in_every_dialect() {
    for dialect in [Dialect::OpenAi, Dialect::Responses, Dialect::Anthropic, Dialect::Gemini] {
        let read = |path: &str| json!({"path": path});
        let script = Script::of(vec![
            thinks(&[("fcA", "read_file", read("a.txt")), ("fcB", "read_file", read("b.txt"))]),
            thinks(&[("fcC", "shell", json!({"command": "ls"}))]),
            thinks(&[("fcD", "finish", json!({"summary": "all done"}))]),
        ]);
        let server = ScriptedServer::start(script).await.unwrap();
        let model = model::connect(&server.settings(dialect, "sk-test")).await.unwrap();
        let host = TestHost::with_task("look around");
        let mut agent = host.agent_of(model, AgentSettings::default(), crate::SummaryMode::Model);
        assert!(matches!(agent.run(&host).await.unwrap(), Ending::Finished(_)), "{dialect:?}");
        let requests = server.requests();
        assert_eq!(requests.len(), 3, "{dialect:?}");
        let told = told(dialect, &requests[2].body);
        assert_eq!(told.thoughts, 2, "{dialect:?}: {:#}", requests[2].body);
        assert_eq!((told.calls.len(), &told.calls), (3, &told.results), "{dialect:?}");
        assert!(told.calls.iter().all(|id| !id.is_empty()), "{dialect:?}: {told:?}");
        if dialect == Dialect::Gemini {
            assert_eq!(told.calls, ["fcA", "fcB", "fcC"], "the provider's own ids");
        }
    }
}
