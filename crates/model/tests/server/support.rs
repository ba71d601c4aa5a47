//! Shared helpers: a server for a script, a model for an API, a conversation that uses all features.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use model::scripted::{Script, ScriptedAnswer, ScriptedServer};
use model::{
    Answer, Dialect, Image, Message, Model, ModelError, ModelEvent, ModelRequest, Part, ResultPart, Role,
    Settings, ToolCall, ToolResult, ToolSpec,
};
use serde_json::{Value, json};

pub(crate) const KEY: &str = "sk-very-secret-0123456789";
pub(crate) const DIALECTS: [Dialect; 4] =
    [Dialect::OpenAi, Dialect::Responses, Dialect::Anthropic, Dialect::Gemini];

pub(crate) async fn server(answers: Vec<ScriptedAnswer>) -> ScriptedServer {
    ScriptedServer::start(Script::of(answers)).await.unwrap()
}

pub(crate) fn settings(server: &ScriptedServer, dialect: Dialect) -> Settings {
    Settings { silence_timeout: Some(Duration::from_secs(20)), ..server.settings(dialect, KEY) }
}

pub(crate) async fn connect(server: &ScriptedServer, dialect: Dialect) -> Arc<dyn Model> {
    model::connect(&settings(server, dialect)).await.unwrap()
}

/// All events before the answer, and the answer.
pub(crate) async fn ask(
    model: &dyn Model,
    request: ModelRequest,
) -> Result<(Vec<ModelEvent>, Answer), ModelError> {
    let mut stream = model.stream(Arc::new(request)).await?;
    let mut events = Vec::new();
    while let Some(event) = stream.next().await {
        match event? {
            ModelEvent::Answer(answer) => return Ok((events, *answer)),
            event => events.push(event),
        }
    }
    panic!("the stream ended without an answer");
}

/// The same body in alphabetical order, for snapshots that are easy to compare.
pub(crate) fn sorted(body: &Value) -> Value {
    let mut body = body.clone();
    body.sort_all_objects();
    body
}

pub(crate) fn tools() -> Vec<ToolSpec> {
    let schema = json!({
        "type": "object",
        "properties": {"path": {"type": "string", "description": "Where the file is"}, "start": {"type": "integer"}},
        "required": ["path"],
    });
    let tool = |name: &str, description: &str| ToolSpec {
        name: name.into(),
        description: description.into(),
        input_schema: schema.clone(),
    };
    vec![tool("read_file", "Reads a file."), tool("list_files", "Lists a folder.")]
}

pub(crate) fn request(text: &str) -> ModelRequest {
    ModelRequest {
        system: "You are a test.".into(),
        messages: vec![Message::user(text).into()],
        tools: tools().into(),
        ..ModelRequest::default()
    }
}

/// Two parallel calls, their results with an image, then a user message.
pub(crate) fn long_conversation() -> ModelRequest {
    let call = |id: &str, name: &str| ToolCall {
        id: id.into(),
        name: name.into(),
        arguments: json!({"path": "a.rs"}),
        opaque: None,
    };
    let calls = [call("call_1", "read_file"), call("call_2", "list_files")];
    let picture = Image { media_type: "image/png".into(), bytes: vec![1, 2, 3] };
    let mut results: Vec<Part> = vec![
        Part::ToolResult(ToolResult::text(&calls[0], "fn main() {}")),
        Part::ToolResult(ToolResult {
            id: "call_2".into(),
            name: "list_files".into(),
            parts: vec![ResultPart::Text("no such folder".into()), ResultPart::Image(picture.clone())],
            is_error: true,
        }),
    ];
    results.push(Part::Text("Go on.".into()));
    let mut said = vec![Part::Text("I look.".into())];
    said.extend(calls.into_iter().map(Part::ToolCall));
    ModelRequest {
        messages: vec![
            Message {
                role: Role::User,
                parts: vec![Part::Text("What is this?".into()), Part::Image(picture)],
            }
            .into(),
            Message::assistant(said).into(),
            Message { role: Role::User, parts: results }.into(),
        ],
        max_output_tokens: Some(1000),
        temperature: Some(0.0),
        cache_after: vec![0, 2],
        cache_key: Some("job-1".into()),
        ..request("")
    }
}
