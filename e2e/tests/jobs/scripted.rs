//! A server whose model plays a scripted conversation over real HTTP.

use e2e::{Job, Options, Server};
use model::scripted::{Order, Script, ScriptedAnswer, ScriptedServer};
use serde_json::{Value, json};

pub(crate) struct Scripted {
    pub(crate) server: Server,
    pub(crate) model: ScriptedServer,
}

impl Scripted {
    /// Selects answers by the turn of each conversation: a restarted server gets the same answer again.
    pub(crate) fn turns(answers: Vec<ScriptedAnswer>) -> Self {
        Self::start(Script { order: Order::Turns, ..Script::of(answers) }, "")
    }

    /// Gives the answers one after another, to any request.
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

/// The configuration of a server without a model.
pub(crate) fn no_model() -> String {
    "[model]\nlocal = false\n".to_owned()
}

/// The configuration that selects a model server by its URL.
pub(crate) fn model_section(url: &str) -> String {
    format!("[model]\nname = \"{url}\"\n")
}

/// Waits until the job is paused because its agent repeats itself; returns its status.
#[track_caller]
pub(crate) fn wait_until_stuck(job: &Job<'_>) -> Value {
    e2e::wait_until("it is stuck", || job.status()["detail"] == "paused: stuck");
    job.status()
}

/// An answer that calls one tool.
pub(crate) fn call(name: &str, arguments: Value) -> ScriptedAnswer {
    ScriptedAnswer::calls(&[(name, arguments)])
}

/// An answer that runs a command.
pub(crate) fn shell(command: &str) -> ScriptedAnswer {
    call("shell", json!({ "command": command }))
}

/// An answer that finishes the task.
pub(crate) fn finish() -> ScriptedAnswer {
    call("finish", json!({"summary": "It is done."}))
}

/// An answer that marks every point of the plan as done and finishes the task.
pub(crate) fn finish_plan(points: &[&str]) -> ScriptedAnswer {
    let items: Vec<Value> = points.iter().map(|text| json!({"text": text, "status": "done"})).collect();
    ScriptedAnswer::calls(&[
        ("plan", json!({ "items": items })),
        ("finish", json!({"summary": "It is done."})),
    ])
}
