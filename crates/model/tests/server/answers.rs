//! Answers without faults, with every API.

use model::scripted::{ScriptedAnswer, ScriptedCall};
use model::{Dialect, Message, ModelEvent, Money, Part, StopReason, ToolResult, Usage};
use serde_json::json;

use crate::support::{DIALECTS, ask, connect, request, server};

const USAGE: Usage = Usage { input: 1000, cached_input: 3000, cache_write: 0, output: 200, reasoning: 50 };

#[tokio::test]
async fn text_is_streamed_and_complete_at_the_end() {
    for dialect in DIALECTS {
        let text = "A long answer with ünicode, that comes in several pieces, one after another.";
        let server = server(vec![ScriptedAnswer {
            usage: Some(USAGE),
            letters: Some(7),
            ..ScriptedAnswer::text(text)
        }])
        .await;
        let model = connect(&server, dialect).await;
        let (events, answer) = ask(model.as_ref(), request("hello")).await.unwrap();
        let pieces: Vec<&str> = events
            .iter()
            .filter_map(|event| if let ModelEvent::Text(text) = event { Some(text.as_str()) } else { None })
            .collect();
        assert!(pieces.len() > 5, "{dialect:?}: {pieces:?}");
        assert_eq!(pieces.concat(), text, "{dialect:?}");
        assert_eq!((answer.text().as_str(), &answer.stop_reason), (text, &StopReason::End), "{dialect:?}");
        assert_eq!((answer.usage, &answer.model), (USAGE, model.name()), "{dialect:?}");
    }
}

#[tokio::test]
async fn usage_is_priced_by_the_table_and_local_models_are_free() {
    for (dialect, nanodollars) in [
        (Dialect::OpenAi, 0),
        (Dialect::Responses, 1000 * 1250 + 3000 * 125 + 200 * 10_000),
        (Dialect::Anthropic, 1000 * 5000 + 3000 * 500 + 200 * 25_000),
        (Dialect::Gemini, 1000 * 2000 + 3000 * 200 + 200 * 12_000),
    ] {
        let server = server(vec![ScriptedAnswer { usage: Some(USAGE), ..ScriptedAnswer::text("x") }]).await;
        let (_, answer) = ask(connect(&server, dialect).await.as_ref(), request("hello")).await.unwrap();
        assert_eq!(answer.cost, Some(Money::from_nanodollars(nanodollars)), "{dialect:?}");
    }
}

#[tokio::test]
async fn parallel_calls_are_parsed() {
    for dialect in DIALECTS {
        let calls = [
            ("read_file", json!({"path": "a long path to a file.rs"})),
            ("list_files", json!({"path": "b"})),
        ];
        let server =
            server(vec![ScriptedAnswer { text: "I look.".into(), ..ScriptedAnswer::calls(&calls) }]).await;
        let (events, answer) = ask(connect(&server, dialect).await.as_ref(), request("hello")).await.unwrap();
        let found: Vec<_> =
            answer.tool_calls().map(|call| (call.name.as_str(), call.arguments.clone())).collect();
        assert_eq!(found, calls, "{dialect:?}");
        assert_eq!(answer.stop_reason, StopReason::ToolCalls, "{dialect:?}");
        assert!(answer.tool_calls().all(|call| !call.id.is_empty()));
        let mut shown = [String::new(), String::new()];
        for event in events {
            if let ModelEvent::ToolCall { index, arguments, .. } = event {
                shown[index] += &arguments;
            }
        }
        assert_eq!(
            shown.map(|text| serde_json::from_str::<serde_json::Value>(&text).unwrap()),
            calls.map(|call| call.1),
            "{dialect:?}"
        );
    }
}

#[tokio::test]
async fn reasoning_is_sent_back_in_the_provider_format() {
    for dialect in DIALECTS {
        let first = ScriptedAnswer {
            reasoning: "I should look at the file.".into(),
            ..ScriptedAnswer::calls(&[("read_file", json!({"path": "a"}))])
        };
        let server = server(vec![first, ScriptedAnswer::text("done")]).await;
        let model = connect(&server, dialect).await;
        let (events, answer) = ask(model.as_ref(), request("hello")).await.unwrap();
        assert!(events.iter().any(|event| matches!(event, ModelEvent::Reasoning(_))), "{dialect:?}");
        // Serialized and deserialized, as in the event log.
        let parts: Vec<Part> = serde_json::from_str(&serde_json::to_string(&answer.parts).unwrap()).unwrap();
        assert_eq!(parts, answer.parts);
        let mut next = request("hello");
        let results = answer.tool_calls().map(|call| ToolResult::text(call, "content")).collect();
        next.say(Message::assistant(parts));
        next.say(Message::results(results));
        ask(model.as_ref(), next).await.unwrap();
        let body = &server.requests()[1].body;
        let signature = json!("c2lnbmVkIGJ5IHRoZSBzY3JpcHQ=");
        match dialect {
            Dialect::OpenAi => {
                assert_eq!(body["messages"][2]["reasoning_content"], "I should look at the file.")
            }
            Dialect::Responses => {
                assert_eq!(body["input"][1]["encrypted_content"], signature);
                assert_eq!(body["input"][1]["id"], "rs_scripted");
            }
            Dialect::Anthropic => {
                let expected = json!({"type": "thinking", "thinking": "I should look at the file.", "signature": signature});
                assert_eq!(body["messages"][1]["content"][0], expected);
            }
            Dialect::Gemini => assert_eq!(body["contents"][1]["parts"][0]["thoughtSignature"], signature),
        }
    }
}

#[tokio::test]
async fn reasoning_of_another_provider_is_omitted() {
    let think = ScriptedAnswer {
        reasoning: "hm".into(),
        ..ScriptedAnswer::calls(&[("read_file", json!({"path": "a"}))])
    };
    let anthropic = server(vec![think]).await;
    let (_, answer) =
        ask(connect(&anthropic, Dialect::Anthropic).await.as_ref(), request("hello")).await.unwrap();
    let results = answer.tool_calls().map(|call| ToolResult::text(call, "content")).collect();
    let mut next = request("hello");
    next.say(Message::assistant(answer.parts));
    next.say(Message::results(results));
    for dialect in [Dialect::OpenAi, Dialect::Responses, Dialect::Gemini] {
        let server = server(vec![ScriptedAnswer::text("done")]).await;
        ask(connect(&server, dialect).await.as_ref(), next.clone()).await.unwrap();
        let body = server.requests()[0].body.to_string();
        assert!(!body.contains("c2lnbmVk") && !body.contains("\"hm\""), "{dialect:?}: {body}");
    }
}

#[tokio::test]
async fn an_empty_answer_has_no_parts() {
    for dialect in DIALECTS {
        let server = server(vec![ScriptedAnswer::text("")]).await;
        let (_, answer) = ask(connect(&server, dialect).await.as_ref(), request("hello")).await.unwrap();
        assert_eq!((answer.parts, answer.stop_reason), (vec![], StopReason::End), "{dialect:?}");
    }
}

#[tokio::test]
async fn an_answer_at_the_token_limit_reports_max_tokens() {
    for dialect in DIALECTS {
        let server =
            server(vec![ScriptedAnswer { is_cut_by_length: true, ..ScriptedAnswer::text("half an ans") }])
                .await;
        let (_, answer) = ask(connect(&server, dialect).await.as_ref(), request("hello")).await.unwrap();
        assert_eq!(answer.stop_reason, StopReason::MaxTokens, "{dialect:?}");
    }
}

#[tokio::test]
async fn duplicate_call_ids_are_replaced_and_broken_arguments_stay_text() {
    for dialect in [Dialect::OpenAi, Dialect::Responses, Dialect::Anthropic] {
        let call = |raw: &str| ScriptedCall {
            id: Some("same".into()),
            name: "fly".into(),
            raw_arguments: Some(raw.into()),
            ..ScriptedCall::default()
        };
        let answer = ScriptedAnswer {
            calls: vec![call("{'path': 'a',}"), call("{\"path\": \"half")],
            ..ScriptedAnswer::default()
        };
        let server = server(vec![answer]).await;
        let (_, answer) = ask(connect(&server, dialect).await.as_ref(), request("hello")).await.unwrap();
        let found: Vec<_> =
            answer.tool_calls().map(|call| (call.id.as_str(), call.arguments.clone())).collect();
        assert_eq!(
            found,
            [("same", json!({"path": "a"})), ("same_2", json!("{\"path\": \"half"))],
            "{dialect:?}"
        );
    }
}
