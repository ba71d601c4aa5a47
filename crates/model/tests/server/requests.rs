//! Exact request bodies for each API.

use std::sync::Arc;

use model::scripted::ScriptedAnswer;
use model::{
    Dialect, Image, Message, OutputSchema, Part, Role, Settings, ToolCall, ToolChoice, ToolResult, ToolSpec,
};
use serde_json::{Value, json};

use crate::support::{DIALECTS, ask, connect, long_conversation, request, server, settings, sorted};

async fn body(dialect: Dialect, asked: model::ModelRequest) -> Value {
    let server = server(vec![ScriptedAnswer::text("x")]).await;
    ask(connect(&server, dialect).await.as_ref(), asked).await.unwrap();
    server.requests()[0].body.clone()
}

#[tokio::test]
async fn arguments_keep_their_declared_order_in_each_dialect() {
    let schema = json!({
        "type": "object",
        "properties": {"path": {"type": "string"}, "old": {"type": "string"}, "new": {"type": "string"}},
        "required": ["path", "old", "new"],
    });
    let tool = ToolSpec { name: "edit_file".into(), description: "Edits.".into(), input_schema: schema };
    let call = ToolCall {
        id: "call_1".into(),
        name: "edit_file".into(),
        arguments: json!({"path": "a.rs", "old": "x", "new": "y"}),
        opaque: None,
    };
    for dialect in DIALECTS {
        let mut asked = request("hello");
        asked.tools = Arc::new([tool.clone()]);
        asked.say(Message::assistant(vec![Part::ToolCall(call.clone())]));
        asked.say(Message::results(vec![ToolResult::text(&call, "edited")]));
        // Arguments are JSON within a text in some dialects.
        let text = body(dialect, asked).await.to_string().replace('\\', "");
        for names in [
            [r#""path":{"type""#, r#""old":{"type""#, r#""new":{"type""#],
            [r#""path":"a.rs""#, r#""old":"x""#, r#""new":"y""#],
        ] {
            let places = names.map(|name| text.find(name));
            assert!(
                places.iter().all(Option::is_some) && places.is_sorted(),
                "{dialect:?} {places:?}: {text}"
            );
        }
    }
}

#[tokio::test]
async fn a_full_conversation_is_serialized_in_each_dialect() {
    for dialect in DIALECTS {
        let body = body(dialect, long_conversation()).await;
        insta::assert_json_snapshot!(format!("conversation_{dialect:?}").to_lowercase(), sorted(&body));
    }
}

#[tokio::test]
async fn choices_and_schemas_in_each_dialect() {
    for dialect in DIALECTS {
        let mut asked = request("hello");
        asked.tool_choice = ToolChoice::Tool("read_file".into());
        let named = body(dialect, asked).await;
        let mut asked = request("hello");
        asked.tools = Arc::default();
        asked.effort = Some(model::Effort::High);
        asked.output_schema = Some(OutputSchema { name: "colour".into(), schema: json!({"type": "object"}) });
        let held = body(dialect, asked).await;
        insta::assert_json_snapshot!(
            format!("choices_{dialect:?}").to_lowercase(),
            sorted(&json!({"named": named, "held": held}))
        );
    }
}

#[tokio::test]
async fn thinking_can_be_switched_off_in_each_dialect() {
    for dialect in DIALECTS {
        let mut asked = request("hello");
        asked.effort = Some(model::Effort::Off);
        let body = body(dialect, asked).await;
        let text = body.to_string();
        for word in ["adaptive", "budget_tokens", "\"medium\"", "\"high\""] {
            assert!(!text.contains(word), "{dialect:?}: {text}");
        }
    }
}

#[tokio::test]
async fn at_most_four_cache_breakpoints_are_set_preferring_the_last() {
    let mut asked = long_conversation();
    for turn in 0..10 {
        asked.say(model::Message::assistant(vec![model::Part::Text(format!("answer {turn}"))]));
        asked.say(model::Message::user(format!("question {turn}")));
    }
    asked.cache_after = (0..asked.messages.len()).collect();
    let body = body(Dialect::Anthropic, asked).await;
    assert_eq!(body.to_string().matches("cache_control").count(), 4);
    let messages = body["messages"].as_array().unwrap();
    assert!(messages.last().unwrap()["content"][0].get("cache_control").is_some());
    assert!(body["system"][0].get("cache_control").is_some());
}

#[tokio::test]
async fn images_become_text_for_models_without_vision() {
    // The server does not report vision support.
    let body = body(Dialect::OpenAi, long_conversation()).await.to_string();
    assert!(body.contains("that this model cannot see") && !body.contains("base64"), "{body}");
}

#[tokio::test]
async fn limits_from_the_settings_win() {
    let server = server(vec![]).await;
    let settings = Settings {
        context_tokens: Some(5000),
        output_tokens: Some(700),
        ..settings(&server, Dialect::Anthropic)
    };
    let limits = model::connect(&settings).await.unwrap().limits();
    assert_eq!((limits.context_tokens, limits.output_tokens, limits.vision), (5000, 700, true));
}

/// The roles of a request's messages, and the messages.
fn roles(body: &Value) -> (Vec<&str>, &Vec<Value>) {
    let messages = body["messages"].as_array().unwrap();
    (messages.iter().map(|message| message["role"].as_str().unwrap()).collect(), messages)
}

#[tokio::test]
async fn consecutive_user_messages_are_merged() {
    let mut asked = request("the task");
    asked.say(Message::user("the status"));
    let (body, picture) = (body(Dialect::OpenAi, asked.clone()).await, vec![1, 2, 3]);
    assert_eq!(roles(&body).0, ["system", "user"]);
    assert_eq!(roles(&body).1[1]["content"], "the task\n\nthe status");
    let image = Part::Image(Image { media_type: "image/png".into(), bytes: picture });
    asked.say(Message { role: Role::User, parts: vec![image] });
    let body = self::body(Dialect::OpenAi, asked).await;
    assert_eq!(roles(&body).0, ["system", "user"]);
    let content = roles(&body).1[1]["content"].as_str().unwrap();
    assert!(content.starts_with("the task\n\nthe status\n\n[a picture"), "{content}");
}

#[tokio::test]
async fn mistral_gets_short_ids_and_no_user_message_after_results() {
    let server = server(vec![ScriptedAnswer::text("hi"), ScriptedAnswer::text("hi")]).await;
    let settings = Settings {
        name: Some("mistral/devstral-small-latest".into()),
        base_url: Some(server.base_url(Dialect::OpenAi)),
        ..settings(&server, Dialect::OpenAi)
    };
    let model = model::connect(&settings).await.unwrap();
    let call = |id: &str| ToolCall {
        id: id.into(),
        name: "read_file".into(),
        arguments: json!({"path": "a"}),
        opaque: None,
    };
    let calls = [call("turn-1-1"), call("turn-1-2")];
    let mut asked = request("the task");
    asked.say(Message::assistant(calls.iter().cloned().map(Part::ToolCall).collect()));
    asked.say(Message::results(calls.iter().map(|call| ToolResult::text(call, "content")).collect()));
    let mut steered = asked.clone();
    asked.say(Message::user("the status"));
    asked.ends_with_status = true;
    ask(model.as_ref(), asked).await.unwrap();
    steered.say(Message::user("Stop that."));
    ask(model.as_ref(), steered).await.unwrap();
    let requests = server.requests();
    let (first, messages) = roles(&requests[0].body);
    assert_eq!(first, ["system", "user", "assistant", "tool", "tool"]);
    for number in 0..2 {
        let id = messages[2]["tool_calls"][number]["id"].as_str().unwrap();
        assert!(id.len() == 9 && id.bytes().all(|byte| byte.is_ascii_alphanumeric()), "{id}");
        assert_eq!(messages[3 + number]["tool_call_id"], id);
    }
    assert_ne!(messages[3]["tool_call_id"], messages[4]["tool_call_id"]);
    assert_eq!(messages[4]["content"], "content\n\nthe status");
    let (second, _) = roles(&requests[1].body);
    assert_eq!(second, ["system", "user", "assistant", "tool", "tool", "assistant", "user"]);
}
