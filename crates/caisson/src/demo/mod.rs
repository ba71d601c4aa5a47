//! The recorded demo: an agent's dialogue, played by a scripted model.

use anyhow::{Context, Result};
use model::scripted::{Order, Script, ScriptedServer};
use serde_json::{Value, json};
use tokio::sync::OnceCell;

/// The recorded dialogue.
const DIALOGUE: &str = include_str!("todo_app.json");
/// The task of the demo.
pub(crate) const TASK: &str = "Build me a todo app in React";

/// The recording, served by a scripted model for demos on a server; starts with the first demo and lasts until the
/// server ends.
#[derive(Default)]
pub(crate) struct Recording(OnceCell<ScriptedServer>);

impl Recording {
    /// The job of the demo, with the recording as its model.
    pub(crate) async fn job(&self) -> Result<Value> {
        let start = || async {
            // Several users may run the demo at the same time.
            let script = Script { order: Order::Turns, ..Script::parse(DIALOGUE)? };
            ScriptedServer::start(script).await.context("starting the recorded model")
        };
        let mut job = job_without_model();
        job["model"] = json!(model_name(self.0.get_or_try_init(start).await?));
        Ok(job)
    }
}

/// The job without its model.
pub(crate) fn job_without_model() -> Value {
    json!({"task": TASK, "name": "demo", "egress": "packages", "acceptance": ["test -f dist/index.html"]})
}

/// The model name that makes a job use the recording.
pub(crate) fn model_name(model: &ScriptedServer) -> String {
    format!("http://{}/v1#recorded-todo-app", model.address())
}

/// Starts a model that plays the recording once.
pub(crate) async fn start_model() -> Result<ScriptedServer> {
    let script = Script::parse(DIALOGUE)?;
    ScriptedServer::start(script).await.context("starting the recorded model")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recorded_dialogue_parses_and_is_marked_as_recorded() {
        let script = Script::parse(DIALOGUE).unwrap();
        assert!(script.model.contains("recorded") && script.about.contains("written down beforehand"));
        assert!(script.answers.len() > 5);
    }
}
