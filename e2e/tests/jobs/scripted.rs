//! A server whose model plays a recorded dialogue over real HTTP.

use e2e::{Job, Options, Server};
use model::scripted::{Order, Script, ScriptedAnswer, ScriptedServer};
use serde_json::{Value, json};

/// The server and its model.
pub(crate) struct Scripted {
    pub(crate) server: Server,
    pub(crate) model: ScriptedServer,
}

impl Scripted {
    /// Plays answers by the turns of each conversation: a client that was killed is answered the same again.
    pub(crate) fn turns(answers: Vec<ScriptedAnswer>) -> Self {
        Self::start(Script { order: Order::Turns, ..Script::of(answers) }, "")
    }

    /// Plays answers one after another, whoever asks.
    pub(crate) fn sequence(answers: Vec<ScriptedAnswer>) -> Self {
        Self::start(Script::of(answers), "")
    }

    pub(crate) fn start(script: Script, config: &str) -> Self {
        let model = ScriptedServer::start_on_thread(script).unwrap();
        let url = format!("http://{}/v1", model.address());
        let config = format!("{config}\n{}", model_section(&url));
        let server = Server::start_with(Options { config, ..Options::default() });
        Self { server, model }
    }

    pub(crate) fn task(&self, task: &str) -> Job<'_> {
        self.schedule(&json!({ "task": task }))
    }

    pub(crate) fn schedule(&self, body: &Value) -> Job<'_> {
        self.server.schedule(body)
    }
}

/// The configuration of a server without any model.
pub(crate) fn no_model() -> String {
    "[model]\nlocal = false\n".to_owned()
}

/// The configuration that names a model server by its address.
pub(crate) fn model_section(url: &str) -> String {
    format!("[model]\nname = \"{url}\"\n")
}

/// An answer that calls one tool.
pub(crate) fn call(name: &str, arguments: Value) -> ScriptedAnswer {
    ScriptedAnswer::calls(&[(name, arguments)])
}

/// An answer that runs a command.
pub(crate) fn shell(command: &str) -> ScriptedAnswer {
    call("shell", json!({ "command": command }))
}

/// The last answer.
pub(crate) fn finish() -> ScriptedAnswer {
    call("finish", json!({"summary": "It is done."}))
}
